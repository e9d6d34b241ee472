"""What happened, for ever: the kinds of fact and their values (§4).

Frozen values only; nothing here decides, reads a clock or touches a file. `codec` gives each its stored text, `fold`
says which may follow which. A kind whose name starts with ``note.`` is ancillary: a version that does not know it
keeps it and goes on. Any other unknown kind is critical: the session is read-only for that version.

Keys: turn ``t3``; its facts ``t3-config``, ``t3-user``, ``t3-r1`` (the first model answer), ``t3-r1-c0`` (the first
call of it *and* the result of that call), ``t3-r1-c0-w1`` (the first wait of that call) and ``t3-r1-c0-w1-answer``,
``t3-more1`` (a continuation), ``t3-verify1`` (a verification report), ``t3-waive1``, ``t3-compact1``, ``t3-end``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .canonical import Json, dumps_checked, loads_stored
from .chat import Usage
from .compacted import Compacted

GENESIS = bytes(32)
"""Previous hash of the first fact of a log."""

MAX_INLINE_BYTES = 64 * 1024
"""Texts longer than this (UTF-8 bytes) are stored once in the blob table and named by their SHA-256."""

MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Largest single text (a prompt, an answer, an argument text) that is accepted, in UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class Text:
    """A part that is text."""

    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """A part that is a JSON value, exact."""

    value: Json


@dataclass(frozen=True, slots=True)
class File:
    """A part that is a file in the blob table."""

    sha256: str
    size: int
    media_type: str = "application/octet-stream"
    name: str | None = None


Part: TypeAlias = Text | Data | File
Origin: TypeAlias = Literal["host", "steer", "continuation"]
EndStatus: TypeAlias = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Configured:
    """``run.configured``: all that shapes a request beside the messages. Written when it changes.

    ``instead_of`` is there when a hook chose ``model`` for the rest of the turn: the host's own model.
    """

    model: str
    instructions: str
    settings: Mapping[str, Json]
    limits: Mapping[str, Json]
    tools_sha256: str
    output_sha256: str | None = None
    instead_of: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """``user.message``"""

    parts: tuple[Part, ...]
    origin: Origin = "host"
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an answer, as recorded.

    ``arguments`` is the parsed object, or None when the text was not one JSON object: then ``raw`` keeps the text and
    ``problem`` says what is wrong with it. Such a call is never run.
    """

    id: str
    name: str
    arguments: Mapping[str, Json] | None
    raw: str = ""
    problem: str = ""
    _text: list[str] = field(default_factory=list[str], init=False, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The arguments as canonical JSON, or the text that is not one object. Encoded once, asked for four times."""
        if not self._text:
            self._text.append(self.raw if self.arguments is None else dumps_checked(self.arguments))
        return self._text[0]


@dataclass(frozen=True, slots=True)
class Answered:
    """``model.turn``"""

    text: str
    calls: tuple[Call, ...] = ()
    usage: Usage | None = None
    stop_reason: str = "stop"
    model: str = ""
    opaque: Json = None


@dataclass(frozen=True, slots=True)
class Returned:
    """``tool.result``: how a call ended. ``metadata`` may hold, beside a tool's own entries under ``tool``:

    ``effect`` (declared effect), ``workspace`` (a workspace tool that is not ``read``), ``repeatable``, ``refused``
    (why it was not run), ``fatal`` (the turn fails with this text), ``output`` (size and hash when it was cut),
    ``changed_paths``, ``late`` (an earlier tool was still running), ``hook`` (which one blocked it), ``arguments``
    (hash of those that it ran with, and the hooks that changed them), ``answered`` (somebody told the result).
    """

    call_key: str
    ok: bool
    parts: tuple[Part, ...]
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Denied:
    """``budget.denied``: the result of a call that the round cap or the budget guard did not let run."""

    call_key: str
    scope: Literal["round_cap", "guard"]
    resource: str
    reason: str


WaitKind: TypeAlias = Literal["confirmation", "question", "deferred", "unknown_outcome", "budget_hold", "child"]


@dataclass(frozen=True, slots=True)
class WaitOpened:
    """``wait.opened``: the turn goes on once the world has answered (§10).

    ``subject`` is the key of the call, or of the answer to a model request that is held. ``digest`` binds the answer to
    what was asked about. ``about`` is what people are shown beside the call: a question, a budget's reason.
    """

    wait_id: str
    kind: WaitKind
    subject: str
    digest: str
    deadline_ms: int | None = None
    about: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class WaitAnswered:
    """``wait.answered``: the answer that won, or that none came before the deadline."""

    wait_id: str
    value: Json
    by: str | None = None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """``verification.reported``: what a verification of the turn's workspace changes, known by ``digest``, came to."""

    digest: str
    passed: bool
    report: Json = None


@dataclass(frozen=True, slots=True)
class Waived:
    """``gate.waived``: the host lets the turn end although nobody has verified the changes known by ``digest``."""

    digest: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """``turn.ended``"""

    status: EndStatus
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """An ancillary fact of a kind this version does not know: kept, shown, ignored by the fold."""

    kind: str
    payload: Json


AtGate: TypeAlias = Reported | Waived
Known: TypeAlias = (
    Configured | Asked | Answered | Returned | Denied | WaitOpened | WaitAnswered | AtGate | Compacted | Ended
)
Payload: TypeAlias = Known | Note

KINDS: dict[type[Known], str] = {
    Configured: "run.configured",
    Asked: "user.message",
    Answered: "model.turn",
    Returned: "tool.result",
    Denied: "budget.denied",
    WaitOpened: "wait.opened",
    WaitAnswered: "wait.answered",
    Reported: "verification.reported",
    Waived: "gate.waived",
    Compacted: "compaction.done",
    Ended: "turn.ended",
}


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact that is about to be appended: its key, the key of the step that made it, and its value."""

    key: str
    cause: str | None
    payload: Payload


@dataclass(frozen=True, slots=True)
class Fact:
    """A stored fact: number ``seq`` (from 1) of its branch, ``kind``, ``key``, ``cause`` (key of the step behind it),
    ``payload``, and that as stored (``text``). ``run_id`` is None when the run that wrote it is unknown; ``hash`` and
    ``prev_hash`` are lower-case hex."""

    seq: int
    kind: str
    key: str
    cause: str | None
    payload: Payload
    run_id: str | None
    prev_hash: str
    hash: str
    text: str

    def to_dict(self) -> dict[str, Json]:
        """The fact as JSON: ``payload`` is the stored object."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "key": self.key,
            "cause": self.cause,
            "run_id": self.run_id,
            "prev_hash": self.prev_hash,
            "hash": self.hash,
            "payload": loads_stored(self.text),
        }


def turn_key(turn: int) -> str:
    """Key of the ``turn``-th turn of a log, from 1."""
    return f"t{turn}"


def answer_key(turn: int, request: int) -> str:
    """Key of the answer to the ``request``-th model request of a turn, both from 1."""
    return f"t{turn}-r{request}"


def call_key(turn: int, request: int, position: int) -> str:
    """Public id of a call and key of its result; ``position`` from 0."""
    return f"t{turn}-r{request}-c{position}"


def wait_key(subject: str, number: int) -> str:
    """Id of the ``number``-th wait, from 1, about a call or a model request; and key of its fact."""
    return f"{subject}-w{number}"


def text_of(parts: tuple[Part, ...]) -> str:
    """What a model is shown of ``parts``: texts as they are, JSON canonically, files by name and size."""
    shown: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            shown.append(part.text)
        elif isinstance(part, Data):
            shown.append(dumps_checked(part.value))
        else:
            shown.append(f"[file {part.name or part.sha256[:12]}, {part.media_type}, {part.size} bytes]")
    return "\n".join(shown)
