"""What goes to a model and what comes back: plain frozen values that every provider adapter translates (§12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from .canonical import Json

MAX_TOKENS = 2**40
"""No single answer took more: what a provider says above it is an error of its own, and would overflow sums."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls: ``total_tokens`` are ``prompt_tokens`` and ``completion_tokens``.

    ``prompt_tokens`` includes the cached ones (``cache_read_tokens``, ``cache_write_tokens``), whatever the provider
    counts.

    An answer whose usage cannot be true (a fraction, a negative or an absurdly large number) counts as one whose
    provider did not say: it is kept, and its cost is unknown.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def to_dict(self) -> dict[str, int]:
        """The five counts by name, as guards and JSON readers get them."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }


def usable_usage(usage: object) -> Usage | None:
    """``usage`` if its counts can be true, else None: what nobody can count with says nothing."""
    if not isinstance(usage, Usage):
        return None
    counts: list[object] = list(usage.to_dict().values())
    good = all(type(count) is int and 0 <= count <= MAX_TOKENS for count in counts)
    return usage if good else None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it: ``name``, ``description``, and ``parameters``, a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the host, a steering user or a continuation said."""

    text: str
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A recorded call as it is shown to a provider again.

    ``key`` is our unique call key (``t1-r1-c0``): adapters send it as the call's id, because providers' own ids repeat.
    ``id`` is what the provider called it. ``arguments`` is always one valid JSON object text.
    """

    key: str
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """An earlier answer. ``opaque`` is a provider's own signed data, to be sent back to that provider verbatim."""

    text: str
    calls: tuple[ChatCall, ...] = ()
    opaque: Json = None
    model: str = ""
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one earlier call, in call order right after its answer."""

    call_key: str
    call_id: str
    name: str
    text: str
    ok: bool
    role: Literal["tool"] = "tool"


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class Request:
    """One model request: a function of the log. ``instructions`` is the system message; ``output_schema``, a JSON
    Schema, is what the answer's text must fit, or None.

    ``messages`` is a read-only sequence that shares memory with the session's transcript (never copied here).
    ``tools`` is empty once the round cap is reached. ``settings`` are the host's model settings, passed through.
    """

    model: str
    instructions: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    output_schema: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's visible reasoning. Never part of the transcript."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one call's argument text; ``index`` is the call's position in the answer."""

    index: int
    delta: str
    name: str = ""
    id: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as the provider sent it: its own id (may repeat, may be empty) and the argument *text*, perhaps broken."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole answer; the last item of every model stream: ``text``, and ``calls`` in their order.

    ``stop_reason`` is the provider's word, normalised: ``stop``, ``length``, ``tool_calls``, ``content_filter``,
    ``pause`` or the provider's own. ``usage`` is None when the provider did not say. ``opaque`` is JSON of the
    provider's own that it wants to see again; ``model`` is who answered, empty for the name that was asked.
    """

    text: str = ""
    calls: tuple[RawCall, ...] = ()
    usage: Usage | None = None
    stop_reason: str = "stop"
    model: str = ""
    opaque: Json = None


@runtime_checkable
class SyncModel(Protocol):
    """A model with a blocking stream, on a worker thread.

    ``name`` is recorded with each run. ``stream`` yields :class:`TextDelta`, :class:`ReasoningDelta` and
    :class:`ToolCallDelta` as they come, none of which is kept, and then exactly one :class:`Reply` with all of it. What
    fails is raised as :class:`thence.ModelError`, whose ``retryable`` says whether the same request may be sent again.
    It is closed early when the run is to stop. One object may be asked from many threads at once.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> Iterator[Delta | Reply]: ...


@runtime_checkable
class AsyncModel(Protocol):
    """A model with an async stream, on the caller's loop or one of its own; the same rules as :class:`SyncModel`."""

    @property
    def name(self) -> str: ...

    def astream(self, request: Request) -> AsyncIterator[Delta | Reply]: ...


Model: TypeAlias = SyncModel | AsyncModel
"""Either face is enough; the driver adapts the other. Failures are raised as :class:`thence.errors.ModelError`."""
