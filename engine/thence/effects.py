"""What a turn may ask of the world. ``answer = yield from Effect(...)`` is typed by the effect.

Effects are made by the dozen in each round and read once: they are not frozen, because a frozen ``__init__`` costs
three times as much. Nobody changes one.

Stopping comes in as an ANSWER (:class:`Stopped`), never as an exception thrown into a flow: a turn that is cancelled
still gets to write what keeps its history valid.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from .budget import GuardDecision
from .canonical import Json
from .chat import Reply, Request, Usage
from .errors import ThenceError
from .events import NewEvent
from .facts import Returned
from .hooking import HookContext, HookOutcome
from .plan import Plan, Query, Rows
from .steps import OpenCall

T = TypeVar("T")
R = TypeVar("R")

Flow: TypeAlias = Generator["Effect[Any]", Any, R]
"""A computation that yields effects, is sent their answers, and returns an R."""


class Effect(Generic[T]):
    """Something only the world can do; ``yield from`` it to get its answer."""

    __slots__ = ()

    def __iter__(self) -> Generator[Effect[Any], Any, T]:
        answer: T = yield self
        return answer


@dataclass(frozen=True, slots=True)
class Stopped:
    """This run is to stop. ``cancel`` is final; after ``interrupt``, and after a ``timeout`` of the whole run, it can
    be resumed.

    ``grace_ms`` is how long in-flight results may still land.
    """

    kind: Literal["cancel", "interrupt", "timeout"]
    reason: str = ""
    grace_ms: int = 5000


@dataclass(slots=True)
class Now(Effect[int]):
    """The session's clock: milliseconds since the epoch."""


@dataclass(slots=True)
class Commit(Effect[tuple[Rows, ...]]):
    """Perform one transaction; once it is committed, show ``events`` to live readers. Raises StoreError."""

    plan: Plan
    events: tuple[NewEvent, ...] = ()
    ts_ms: int = 0


@dataclass(slots=True)
class Read(Effect[T]):
    """Read one snapshot. Raises StoreError."""

    query: Query[T]


@dataclass(slots=True)
class SafePoint(Effect[Stopped | None]):
    """Between two steps: whether somebody wants this run to stop, before anything else is started.

    ``look``: look into the inbox in any case, not only when it is due.
    """

    look: bool = False


@dataclass(slots=True)
class IsSteered(Effect[bool]):
    """Whether somebody has said something to this run that is not in the log yet."""


@dataclass(slots=True)
class AskGuard(Effect[GuardDecision]):
    """Ask the host's budget guard; without one, or without the method, the answer is allow."""

    method: Literal["check_before_llm", "record_after_llm", "check_before_tool"]
    argument: int | str | Usage


@dataclass(slots=True)
class AskHooks(Effect[HookOutcome]):
    """Tell the hooks of ``context.event_type``, lowest priority number first, and hear what they say.

    Once the run is to stop, gates are not waited for and say nothing: a safe point must follow.
    """

    context: HookContext


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The attempt gave no answer. ``error`` says whether trying again makes sense."""

    error: ThenceError
    retry_after_s: float | None = None


@dataclass(slots=True)
class AskModel(Effect[Reply | ModelFailed | Stopped]):
    """One attempt at a model request. ``step`` names the answer its deltas belong to; ``quiet``: nobody sees them."""

    request: Request
    step: str
    quiet: bool = False


@dataclass(slots=True)
class Backoff(Effect[Stopped | None]):
    """Wait before the attempt after ``attempt`` failed ones: exponential with jitter, or as the provider asked."""

    attempt: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification came to. ``report`` is JSON for the log, ``why`` a few words on what failed."""

    passed: bool
    report: Json
    why: str = ""


@dataclass(slots=True)
class RunVerification(Effect[Verified | Stopped]):
    """Run the session's verify commands and its verifier on the workspace, whose changes ``digest`` names; ``text`` is
    the model's answer, ``turn`` the key of the turn."""

    turn: str
    digest: str
    text: str


@dataclass(slots=True)
class StartTool(Effect[bool]):
    """Start one call; its result comes through :class:`AwaitTool`. False: it was not started, the run is to stop."""

    call: OpenCall
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Landed:
    """A call has a result. ``kept`` is its full output when the model saw only part of it."""

    result: Returned
    exit_code: int = 0
    duration_ms: int = 0
    output_bytes: int = 0
    kept: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class Postponed:
    """A tool has handed its call over: somebody will answer it, by ``deadline_ms`` if there is one."""

    call_key: str
    kind: Literal["deferred", "question"]
    question: str
    deadline_ms: int | None


@dataclass(slots=True)
class AwaitTool(Effect[Landed | Postponed | Stopped]):
    """The next call that lands, in whatever order tools finish."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What landed, and the stop as it is by then: a cancel may have come behind an interrupt."""

    landed: tuple[Landed | Postponed, ...]
    stopped: Stopped | None


@dataclass(slots=True)
class DrainTools(Effect[Drained]):
    """Tell running calls to stop and collect what lands within ``grace_ms``; the rest is left behind."""

    grace_ms: int
