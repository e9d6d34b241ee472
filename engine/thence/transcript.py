"""The conversation as a provider sees it, kept beside the fold and grown by one message a fact (§4, §5).

Requests share its memory: nothing here copies, scans or encodes the history per round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from .canonical import Json, NotJson, dumps, dumps_checked, loads
from .chat import AssistantMessage, ChatCall, Message, RawCall, Reply, ToolMessage, Usage, UserMessage
from .errors import ModelError
from .facts import MAX_TEXT_BYTES, Answered, Asked, Call, Denied, NewFact, Returned, call_key, text_of


class Messages(Sequence[Message]):
    """The first ``length`` messages of a growing list: an immutable sequence that shares its memory."""

    __slots__ = ("_length", "_list")

    def __init__(self, messages: list[Message], length: int) -> None:
        self._list, self._length = messages, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._list[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError("message index out of range")
        return self._list[index % self._length]

    def __iter__(self) -> Iterator[Message]:
        for index in range(self._length):
            yield self._list[index]

    def __repr__(self) -> str:
        return f"Messages({list(self)!r})"


class Transcript:
    """Messages of a log, in order. Append-only; :meth:`snapshot` is O(1)."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._calls: dict[str, ChatCall] = {}
        self._turn = 0
        self._request = 0
        self.bytes = 0
        """UTF-8 size of all texts so far: the basis of a request's token estimate."""

    def snapshot(self) -> Messages:
        """The messages so far, as a request carries them."""
        return Messages(self._messages, len(self._messages))

    def advance(self, fact: NewFact) -> None:
        """Add what ``fact`` says to a provider; most kinds add one message, some none."""
        payload = fact.payload
        if isinstance(payload, Asked):
            if payload.origin == "host":
                self._turn, self._request = self._turn + 1, 0
            text = text_of(payload.parts)
            self._add(UserMessage(text), text)
        elif isinstance(payload, Answered):
            self._request += 1
            calls = tuple(self._chat_call(i, call) for i, call in enumerate(payload.calls))
            self._calls = {call.key: call for call in calls}
            size = payload.text + "".join(call.arguments for call in calls)
            self._add(AssistantMessage(payload.text, calls, payload.opaque, payload.model), size)
        elif isinstance(payload, Returned):
            self._add_result(payload.call_key, text_of(payload.parts), payload.ok)
        elif isinstance(payload, Denied):
            self._add_result(payload.call_key, denied_text(payload), False)

    def _chat_call(self, position: int, call: Call) -> ChatCall:
        key = call_key(self._turn, self._request, position)
        return ChatCall(key, call.id, call.name, "{}" if call.arguments is None else dumps_checked(call.arguments))

    def _add_result(self, key: str, text: str, ok: bool) -> None:
        call = self._calls[key]
        self._add(ToolMessage(key, call.id, call.name, text, ok), text)

    def _add(self, message: Message, text: str) -> None:
        self._messages.append(message)
        self.bytes += len(text) if text.isascii() else len(text.encode())


def denied_text(fact: Denied) -> str:
    """What the model is told of a call that a budget did not let run."""
    return f"Budget exhausted on '{fact.resource}': {fact.reason}"


def record_answer(reply: Reply, model: str) -> Answered:
    """The fact that a provider's reply becomes. Broken arguments are kept as text with what is wrong with them.

    Raises:
        ModelError: a text of more than 16 MiB, or opaque data that is not JSON.
    """
    _check_types(reply)
    for size in (len(reply.text), *(len(call.arguments) for call in reply.calls)):
        if size * 4 > MAX_TEXT_BYTES:
            _check_size(reply)
            break
    calls = tuple(_record_call(call, reply.stop_reason) for call in reply.calls)
    text = clean(reply.text)
    name = clean(reply.model or model)
    try:
        opaque = None if reply.opaque is None else loads(dumps(reply.opaque))
    except NotJson as error:
        raise ModelError("bad_reply", f"the reply's opaque data cannot be recorded: {error}", retryable=False) from None
    return Answered(text, calls, reply.usage, clean(reply.stop_reason), name, opaque)


def _check_types(reply: Reply) -> None:
    """A model is somebody else's code: what it answers is looked at before it is recorded."""
    texts: list[object] = [reply.text, reply.stop_reason, reply.model]
    for call in reply.calls:
        if not isinstance(call, RawCall):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelError(
                "bad_reply", f"the model's answer holds a {type(call).__name__} as a call", retryable=False
            )
        texts += [call.id, call.name, call.arguments]
    for text in texts:
        if not isinstance(text, str):
            raise ModelError("bad_reply", f"the model's answer has a {type(text).__name__} as a text", retryable=False)
    if reply.usage is not None and not isinstance(reply.usage, Usage):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError("bad_reply", f"the model's usage is a {type(reply.usage).__name__}", retryable=False)


def _check_size(reply: Reply) -> None:
    for text in (reply.text, *(call.arguments for call in reply.calls)):
        size = len(text.encode("utf-8", "replace"))
        if size > MAX_TEXT_BYTES:
            message = f"the model's answer has a text of {size} bytes; the limit is {MAX_TEXT_BYTES}"
            raise ModelError("answer_too_large", message, retryable=False)


def _record_call(raw: RawCall, stop_reason: str) -> Call:
    identity, name, text = clean(raw.id), clean(raw.name), clean(raw.arguments)
    cut = stop_reason in ("length", "max_tokens")
    if not text.strip() and not cut:
        return Call(identity, name, {})
    try:
        value: Json = loads(raw.arguments)
    except NotJson as error:
        why = "the answer hit its length limit and the arguments were truncated" if cut else "arguments are not JSON"
        return Call(identity, name, None, text, f"{why}: {error}")
    if not isinstance(value, dict):
        return Call(identity, name, None, text, "arguments must be one JSON object")
    return Call(identity, name, value)


def clean(text: str) -> str:
    """Lone surrogates cannot be stored as UTF-8; a provider's text gets U+FFFD in their place."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
