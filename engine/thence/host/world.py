"""A run's world: which of its effects is done where (§5). Written once; both drivers use it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from ..budget import GuardDecision
from ..effects import (
    AskGuard,
    AskHooks,
    AskModel,
    AwaitTool,
    Backoff,
    Commit,
    DrainTools,
    Effect,
    Flow,
    IsSteered,
    RunVerification,
    SafePoint,
    StartTool,
    Stopped,
    Verified,
)
from ..hooking import HookContext, HookOutcome
from .asking import ask_model
from .guard import ask_guard
from .hooks import HookDesk, Waiting
from .jobs import Post
from .station import Station, Surroundings
from .using import ToolBench
from .verifying import verify

MAX_BACKOFF_S = 30.0
MAX_RETRY_AFTER_S = 60.0


class RunWorld:
    """Performs one run's effects."""

    def __init__(self, around: Surroundings, post: Post) -> None:
        self.station = station = Station(around, post)
        self._bench = bench = ToolBench(station)
        self._desk = HookDesk(
            around.hooks, around.tags, Waiting(post, station.take, lambda: station.stopped is not None)
        )
        self._interpreters: dict[type[Any], Callable[[Any], Flow[Any]]] = {
            AskModel: lambda effect: ask_model(station, effect),
            AskGuard: self._ask_guard,
            AskHooks: self._ask_hooks,
            StartTool: bench.start,
            AwaitTool: bench.take_landed,
            DrainTools: bench.drain,
            Backoff: self._backoff,
            SafePoint: lambda effect: station.safe_point(),
            RunVerification: self._verify,
            IsSteered: lambda effect: station.look_for_steers(),
        }

    def interpret(self, effect: Effect[Any]) -> Flow[Any]:
        """Take an effect apart into primitives."""
        return self._interpreters[type(effect)](effect)

    def committed(self, effect: Commit) -> None:
        """Show what was recorded to live readers, numbered as SQLite numbered it."""
        station = self.station
        for event in effect.events:
            station.show(event, station.next_sequence, effect.ts_ms)
            station.next_sequence += 1

    def now_ms(self) -> int:
        """The session's clock."""
        return self.station.now_ms()

    def is_guarded(self) -> bool:
        """Whether the session has a budget guard just now."""
        return self.station.around.guard() is not None

    def is_hooked(self, event_type: str) -> bool:
        """Whether the session has a hook of this type just now."""
        return bool(self.station.around.hooks.of(event_type))

    def has_pieces(self, step: str) -> bool:
        """Whether pieces of this answer or output went into the file."""
        return self.station.has_pieces(step)

    def start_session(self, session_id: str) -> Flow[None]:
        """Tell ``session_start`` hooks, at the first operation of a session object that has claimed its session."""
        if self.station.around.hooks.start_once():
            yield from self._desk.ask(HookContext("session_start", session_id))

    def is_steered(self) -> bool:
        """Whether a message waited when the inbox was last looked into."""
        return self.station.steered

    def inbox_due(self) -> bool:
        """Whether a safe point must look into the inbox first."""
        return self.station.inbox_due()

    def stop_now(self) -> Stopped | None:
        """What is known of a stop, without looking anywhere."""
        return self.station.stopped

    def cancelled(self) -> bool:
        """The task that drives this run was cancelled: interrupt the run."""
        self.station.request_stop(Stopped("interrupt", "the task was cancelled"))
        return True

    def _ask_hooks(self, effect: AskHooks) -> Flow[HookOutcome]:
        if effect.context.event_type == "run_end":
            self.station.leave()  # the hooks may take their time, and the session may be another's by now
        return (yield from self._desk.ask(effect.context))

    def _ask_guard(self, effect: AskGuard) -> Flow[GuardDecision]:
        station = self.station
        session_id = station.ids.session_id if station.ids else ""
        return (
            yield from ask_guard(
                station.around.guard(),
                effect,
                session_id,
                station.post,
                station.take,
                lambda: station.stopped is not None,
            )
        )

    def _verify(self, effect: RunVerification) -> Flow[Verified | Stopped]:
        # What a tool that outlived its limit still writes would not be what is verified.
        yield from self._bench.wait_for_overdue(self.station.around.verification.timeout_ms, effect.turn)
        return (yield from verify(self.station, effect))

    def _backoff(self, effect: Backoff) -> Flow[Stopped | None]:
        station = self.station
        base = station.around.limits.retry_base_ms / 1000
        delay = min(MAX_BACKOFF_S, base * 4 ** (effect.attempt - 1)) * random.uniform(0.5, 1.0)  # noqa: S311
        if effect.retry_after_s is not None:
            delay = max(delay, min(effect.retry_after_s, MAX_RETRY_AFTER_S))
        until = time.monotonic() + delay
        while station.stopped is None and time.monotonic() < until:
            yield from station.take(until)
        return station.stopped
