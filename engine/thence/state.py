"""What the facts of a log amount to: the value that `fold` moves and everything else asks (§4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .chat import Usage
from .facts import Configured, Ended
from .gate import OPEN, Gate
from .loopguard import LoopGuard
from .steps import OpenCall, OpenWait

FRESH = LoopGuard()
NO_USAGE = Usage()


class Phase(Enum):
    """Where a log stands."""

    IDLE = "idle"
    INFER = "infer"
    CALLS = "calls"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class State:
    """What the facts so far amount to. Small and of bounded size: the transcript is kept apart.

    ``turn`` counts turns of the log; ``request``, ``rounds``, ``usage``, ``tool_calls`` and the rest are of the newest
    turn. ``without_usage`` counts answers whose provider did not say what they cost. ``fatal`` is (code, message) of
    what makes the turn fail once all its calls have results. ``cut``: a result of this log was shown only in part.
    ``continued``: hashes of the texts that were continued. ``waits``: those about open calls and the next request.
    ``compactions`` counts those since the newest host's message, ``overflowed``: a provider's overflow asked for one of
    them. ``context_tokens``: what the newest answer and its request came to, where providers say; 0 after a compaction.
    A field that is added here gets its place in `state_json`.
    """

    phase: Phase = Phase.IDLE
    turn: int = 0
    request: int = 0
    rounds: int = 0
    open: tuple[OpenCall, ...] = ()
    waits: tuple[OpenWait, ...] = ()
    text: str = ""
    stop_reason: str = ""
    capped: bool = False
    fatal: tuple[str, str] | None = None
    loop: LoopGuard = FRESH
    gate: Gate = OPEN
    continuations: int = 0
    continued: tuple[str, ...] = ()
    steers: int = 0
    usage: Usage = NO_USAGE
    without_usage: int = 0
    tool_calls: int = 0
    cut: bool = False
    compactions: int = 0
    overflowed: bool = False
    context_tokens: int = 0
    configs: int = 0
    config: Configured | None = None
    ended: Ended | None = None
