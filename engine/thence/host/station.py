"""Where a run's effects are done: its surroundings, the stop token, live readers, and the inbox (§5, §8, §10).

`asking` (models) and `using` (tools) work at one station; `world` hands each effect to whoever does it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import inbox
from ..chat import Model
from ..effects import Commit, Flow, Read, Stopped
from ..events import Event, NewEvent
from ..identity import Tags
from ..limits import Limits
from ..verification import NOTHING, Verification
from ..writes import RunIds, add_deltas
from .drive import Take
from .env import HostEnv
from .guard import Guarded
from .hooks import Hooks
from .jobs import Item, Post, Wake
from .toolkit import Tool

DELTA_S = 0.05
"""Readers in other processes see a piece of an answer soon enough for the 100 ms of §10."""

GRACE_MS = 5000
"""How long running tools may still land when somebody interrupts a run and does not say."""

POLL_S = 0.25
"""The owner looks into the inbox at least this often while it works (§8)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run gets from its session and agent."""

    env: HostEnv
    tags: Tags
    workspace: Path
    limits: Limits
    tools: Mapping[str, Tool]
    model: Model | None
    guard: Callable[[], Guarded | None]
    hooks: Hooks
    forbidden_files: Callable[[], frozenset[tuple[int, int]]]
    prefer_async: bool
    file: str
    """Tells the file from all others that this process has open."""

    on_event: Callable[[Event], None] | None = None
    verification: Verification = NOTHING


class Station:
    """One run's place of work. ``request_stop`` and ``look_again`` may be called from any thread."""

    def __init__(self, around: Surroundings, post: Post) -> None:
        self.around, self.post = around, post
        self.ids: RunIds | None = None
        self._left = False
        self.stopped: Stopped | None = None
        self.steered = False
        self.drained_by = math.inf
        self.next_sequence = 0
        self.next_delta = 1
        self._last_ms = 0
        self._polled = 0.0  # what waits since before this run is taken first
        self._answers_for: set[int] = set()
        self._pieces: list[tuple[str, str, Mapping[str, Any]]] = []
        self._pieces_due: float | None = None
        self._written: set[str] = set()
        limit = around.limits.max_execution_time_ms
        self._run_deadline = None if limit is None else time.monotonic() + limit / 1000

    def enter(self, ids: RunIds, *, keep_numbering: bool = False, goes_on_from: int | None = None) -> None:
        """From now on this is the run that is done here; a new one numbers its events from 0.

        Orders for the run that it goes on from are orders for it.
        """
        self.ids = ids
        self._answers_for = {number for number in (ids.run_pk, goes_on_from) if number is not None}
        if not keep_numbering:
            self.next_sequence, self.next_delta = 0, 1

    def request_stop(self, stopped: Stopped) -> None:
        """Ask the run to stop at its next safe point; a cancel outranks an interrupt that came before it.

        Tools may land as long as the most impatient of those who ask allows.
        """
        self.drained_by = min(self.drained_by, time.monotonic() + stopped.grace_ms / 1000)
        if self.stopped is None or (stopped.kind == "cancel" and self.stopped.kind != "cancel"):
            self.stopped = stopped
        self.post(Wake())

    def look_again(self) -> None:
        """Something is in the inbox: do not wait for the next poll."""
        self._polled = 0.0
        self.post(Wake())

    def add_piece(self, step: str, event: NewEvent) -> None:
        """A provisional piece of an answer or an output: to live readers at once, to the file in bundles."""
        self.show(event, None)
        self._pieces.append((step, event.type, event.payload))
        if self._pieces_due is None:
            self._pieces_due = time.monotonic() + DELTA_S

    def _flush_pieces(self) -> Flow[None]:
        pieces, self._pieces, self._pieces_due = self._pieces, [], None
        if pieces and self.ids is not None and self.ids.run_pk is not None and not self._left:
            first, self.next_delta = self.next_delta, self.next_delta + len(pieces)
            self._written.update(step for step, _, _ in pieces)
            yield from Commit(add_deltas(self.ids, first, pieces))

    def has_pieces(self, step: str) -> bool:
        """Whether pieces of this answer or output went into the file."""
        return step in self._written

    def drop_pieces(self, step: str) -> None:
        """The answer or output is complete: what of it is not in the file yet need not go there."""
        self._pieces = [piece for piece in self._pieces if piece[0] != step]

    def safe_point(self) -> Flow[Stopped | None]:
        """Whether the run is to stop, by what is known here and in the inbox."""
        yield from self._poll_inbox()
        return self.stopped

    def look_for_steers(self) -> Flow[bool]:
        """Whether a message waits for this run, by what is in the inbox now."""
        yield from self._poll_inbox()
        return self.steered

    def leave(self) -> None:
        """The run has let go of its session: nothing of it is read or written any more."""
        self._left = True

    def inbox_due(self) -> bool:
        """Whether it is time to look into the inbox."""
        return time.monotonic() >= self._polled + POLL_S

    def show(self, event: NewEvent, sequence: int | None, ts_ms: int | None = None) -> None:
        """Give an event to live readers, if there are any. Provisional ones have no sequence."""
        ids, on_event = self.ids, self.around.on_event
        if on_event is None:
            return
        # Times of a stream never go back, here as in the file.
        self._last_ms = max(self._last_ms, self.now_ms() if ts_ms is None else ts_ms)
        metadata: dict[str, Any] = {
            "run_id": ids.run_id if ids else None,
            "session_id": ids.session_id if ids else None,
            "sequence": sequence,
            "timestamp_ms": self._last_ms,
            **self.around.tags.given(),
        }
        on_event(Event(event.type, event.payload, metadata))

    def now_ms(self) -> int:
        """The session's clock."""
        return self.around.env.now_ms()

    def take(self, until: float | None) -> Flow[Item | None]:
        """The next item, or None: at the latest when the inbox is due, and at the monotonic time ``until``."""
        now = time.monotonic()
        due = self._polled + POLL_S
        if now >= due:
            yield from self._poll_inbox()
            due = self._polled + POLL_S
        if self._run_deadline is not None and now >= self._run_deadline and self.stopped is None:
            limit = self.around.limits.max_execution_time_ms
            self.stopped = Stopped("timeout", f"Execution timeout: the run passed max_execution_time_ms={limit}")
        if self._pieces_due is not None and now >= self._pieces_due:
            yield from self._flush_pieces()
        deadline = None if self.stopped is not None else self._run_deadline
        wait = min(t for t in (until, due, deadline, self._pieces_due) if t is not None)
        item: Item | None = yield from Take(max(0.0, wait - now))
        return item

    def _poll_inbox(self) -> Flow[None]:
        """Turn what others said into events and stops."""
        self._polled = time.monotonic()
        ids = self.ids
        if ids is None or ids.run_pk is None or self._left:
            return
        found = yield from Read(inbox.waiting(ids.session_pk))
        rows, self.steered = found.rows, found.steered
        events = [row for row in rows if row.kind == "event"]
        if events:
            now = self.now_ms()
            plan = inbox.take(ids, [row.number for row in events], now)
            yield from Commit(plan, tuple(r.event() for r in events if r.stream_pk == ids.run_pk), now)
        orders = [row for row in rows if row.kind in ("cancel", "interrupt")]
        if orders:
            yield from Commit(inbox.drop(ids, [row.number for row in orders]))
        for order in orders:
            if order.stream_pk in self._answers_for:
                deadline = order.deadline_ms()
                grace = GRACE_MS if deadline is None else max(0, deadline - self.now_ms())
                kind: Literal["cancel", "interrupt"] = "cancel" if order.kind == "cancel" else "interrupt"
                self.request_stop(Stopped(kind, order.reason(), grace))
