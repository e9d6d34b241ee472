"""What a turn does next, as values. `fold.next_step` chooses one; `turn` performs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .canonical import Json
from .facts import Call, Denied, EndStatus, Returned, WaitAnswered, WaitKind


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A recorded call without a settled result. ``signature`` identifies tool and arguments for the duplicate guard."""

    key: str
    position: int
    call: Call
    signature: str


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait about an open call or a held model request, and its answer once the log has it."""

    wait_id: str
    kind: WaitKind
    subject: str
    digest: str = ""
    about: Mapping[str, Json] = field(default_factory=dict[str, Json])
    answer: WaitAnswered | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """The model must speak next. ``offer_tools`` is False once the round cap is reached."""

    offer_tools: bool


@dataclass(frozen=True, slots=True)
class UseTools:
    """Recorded calls want results."""


@dataclass(frozen=True, slots=True)
class Park:
    """The world must answer first: nothing else can be done."""


@dataclass(frozen=True, slots=True)
class Continue:
    """The answer stopped early: say ``Continue.``"""


@dataclass(frozen=True, slots=True)
class Verify:
    """The turn changed the workspace, and nobody has verified or waived the changes known by ``digest``."""

    digest: str


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over."""

    status: EndStatus
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is owed: resuming this log calls neither model nor tool."""


Step: TypeAlias = Ask | UseTools | Park | Continue | Verify | End | Settled


@dataclass(frozen=True, slots=True)
class Run:
    """This call runs, unless the guard says no."""

    call: OpenCall


@dataclass(frozen=True, slots=True)
class Refuse:
    """This call is not run; ``result`` is what the log and the model get instead."""

    call: OpenCall
    result: Returned | Denied


Verdict: TypeAlias = Run | Refuse


@dataclass(frozen=True, slots=True)
class Traits:
    """What the rules need to know of a tool; undeclared ``effect`` is None."""

    effect: str | None = None
    repeatable: bool = False
    timeout_ms: int | None = None
    workspace: bool = False
