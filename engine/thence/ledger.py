"""What a run is about to write: staged piece by piece, written by one commit (§5). Both halves of a turn use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from . import writes
from .budget import GuardDecision
from .canonical import Json, dumps, dumps_checked
from .chat import ToolSpec
from .effects import Commit, Flow, Now
from .events import NewEvent
from .facts import Configured, NewFact, Payload
from .limits import Limits
from .log import Log
from .parts import blob_sha
from .permissions import PermissionPolicy
from .plan import Op, Plan
from .report import threshold_hit
from .state import State
from .steps import Traits
from .writes import RunIds


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run started with and keeps: it shapes every request together with the log.

    ``gated``: the completion gate is on. ``verifies``: there are commands or a verifier to ask.
    ``instead_of`` is the host's own model while a hook has chosen another.
    """

    model: str
    instructions: str
    settings: Mapping[str, Json]
    specs: tuple[ToolSpec, ...]
    traits: Mapping[str, Traits]
    limits: Limits
    output_schema: Mapping[str, Json] | None = None
    reread: ToolSpec | None = None
    max_attempts: int = 3
    permissions: PermissionPolicy | None = None
    gated: bool = False
    verifies: bool = False
    instead_of: str | None = None


def estimate(setup: Setup, transcript_bytes: int, tool_bytes: int) -> int:
    """Tokens of the next request, roughly: a quarter of its bytes (§5)."""
    wanted = 0 if setup.output_schema is None else len(dumps_checked(setup.output_schema).encode())
    return (transcript_bytes + len(setup.instructions.encode()) + tool_bytes + wanted + 3) // 4


def tool_schemas(setup: Setup) -> bytes:
    """The tools as the log keeps them."""
    return dumps(
        [
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.parameters,
                "effect": setup.traits[spec.name].effect,
                "repeatable": setup.traits[spec.name].repeatable,
                **({"workspace": True} if setup.traits[spec.name].workspace else {}),
            }
            for spec in setup.specs
        ]
    ).encode()


def configuration(setup: Setup) -> tuple[Configured, dict[str, bytes]]:
    """The fact that says what a run started with, and the schemas it names by hash. Pure."""
    tools = tool_schemas(setup)
    blobs = {blob_sha(tools): tools}
    output: str | None = None
    if setup.output_schema is not None:
        schema = dumps(setup.output_schema).encode()
        output = blob_sha(schema)
        blobs[output] = schema
    config = Configured(
        setup.model,
        setup.instructions,
        setup.settings,
        setup.limits.to_dict(),
        blob_sha(tools),
        output,
        setup.instead_of,
    )
    return config, blobs


@dataclass(frozen=True, slots=True)
class Mark:
    """What was staged at some moment, and where the fold stood."""

    state: State
    facts: list[NewFact]
    events: list[NewEvent]
    ops: list[Op]
    complete: list[str]
    durable: bool
    settled: bool


class Present(Protocol):
    """What a turn may look at without asking: it may change while the run lives, and knowing it costs nothing."""

    def is_hooked(self, event_type: str) -> bool:
        """Whether there is a hook of this type just now."""
        ...

    def is_guarded(self) -> bool:
        """Whether there is a budget guard to ask just now."""
        ...

    def has_pieces(self, step: str) -> bool:
        """Whether pieces of this answer or output went into the file."""
        ...


class Nobody:
    """The present of a run that is not live here: nobody is asked, nothing streams."""

    def is_hooked(self, event_type: str) -> bool:
        """No."""
        return False

    def is_guarded(self) -> bool:
        """No."""
        return False

    def has_pieces(self, step: str) -> bool:
        """No: those of a run that parks go with it."""
        return False


class Ledger:
    """The log of a run in memory, and what is staged for its next commit."""

    def __init__(self, ids: RunIds, log: Log, setup: Setup, present: Present) -> None:
        self.ids, self.log, self.setup, self.present = ids, log, setup, present
        self.stream = ids
        """Whose events these are: those of the run, unless somebody puts the session's own channel here."""
        self.failed_requests = 0
        """Model requests that failed or were cut off, so that nobody knows their cost; by this run in this process."""
        self.soft: list[GuardDecision] = []
        self._facts: list[NewFact] = []
        self._events: list[NewEvent] = []
        self._ops: list[Op] = []
        self._complete: list[str] = []
        self._durable = self._settled = False

    def stage(self, key: str, cause: str | None, payload: Payload) -> None:
        """A fact for the next commit; the fold moves at once."""
        fact = NewFact(key, cause, payload)
        self.log.add((fact,))
        self._facts.append(fact)

    def say(self, *events: NewEvent) -> None:
        """Events for the next commit, and for live readers after it."""
        self._events.extend(events)

    def also(self, *ops: Op) -> None:
        """Other writes for the next commit."""
        self._ops.extend(ops)

    def clear_pieces(self, step: str) -> None:
        """An answer or an output is complete: what of its pieces went into the file goes with the next commit."""
        self._complete.append(step)

    def protect(self) -> None:
        """The next commit protects an effect or is acknowledged: it must survive a power cut."""
        self._durable = True

    def settle(self) -> None:
        """A round is settled: the next commit moves the run's checkpoint to where it leads."""
        self._settled = True

    def mark(self) -> Mark:
        """Where to come back to when the next commit is refused."""
        lists = [*self._facts], [*self._events], [*self._ops], [*self._complete]
        return Mark(self.log.state, *lists, self._durable, self._settled)

    def go_back(self, mark: Mark) -> None:
        """The commit since ``mark`` was refused: nothing of it is in the file. It must not have staged a message."""
        self.log.state, self.log.seq = mark.state, self.log.head.seq + len(mark.facts)
        self._facts, self._events, self._ops, self._complete = mark.facts, mark.events, mark.ops, mark.complete
        self._durable, self._settled = mark.durable, mark.settled

    @property
    def staged(self) -> bool:
        """Whether a flush would write anything."""
        return bool(self._facts or self._events or self._ops)

    def flush(self, now: int | None = None) -> Flow[None]:
        """Write all that is staged, as one transaction; ``now`` is for who has just looked at the clock."""
        if not self.staged:
            return
        if now is None:
            now = yield from Now()
        head = self.log.head
        ops: tuple[Op, ...] = ()
        answer_hash = None
        if self._facts:
            ops, head, answer_hash = writes.append(self.ids, head, self._facts, now)
        events = tuple(self._events)
        ops = (*ops, *writes.record_events(self.stream, events, now))
        if self._settled:
            ops = (*ops, writes.checkpoint(self.ids, head, self.log.state, now))
        ops = (*ops, *self._ops)
        for step in self._complete:
            if self.present.has_pieces(step):
                ops = (*ops, writes.clear_deltas(self.ids, step))
        plan = Plan(ops, self._durable)
        self._facts, self._events, self._ops, self._complete = [], [], [], []
        self._durable = self._settled = False
        yield from Commit(plan, events, now)
        self.log.head = head
        self.log.answer_hash = answer_hash or self.log.answer_hash

    def note_decision(self, decision: GuardDecision) -> None:
        """A soft or hard budget decision becomes an event."""
        if decision.decision != "allow":
            self.say(threshold_hit(decision))
        if decision.decision == "soft":
            self.soft.append(decision)
