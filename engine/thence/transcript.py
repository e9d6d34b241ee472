"""The conversation as a provider sees it, kept beside the fold and grown by one message a fact (§4, §5).

Requests share its memory: nothing here copies, scans or encodes the history per round.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias, overload

from .canonical import Json, NotJson, clean, dumps, loads
from .chat import AssistantMessage, ChatCall, Message, RawCall, Reply, ToolMessage, UserMessage, usable_usage
from .compacted import Compacted
from .errors import IllegalFact, ModelError
from .facts import MAX_TEXT_BYTES, Answered, Asked, Call, Denied, NewFact, Payload, Returned, text_of
from .pages import StoredFact, new_fact, unreadable
from .parts import Blobs

Entry: TypeAlias = "Message | StoredFact"
"""A message, or the stored fact that becomes one when somebody looks at it."""

SPOKEN = frozenset({"user.message", "model.turn", "tool.result", "budget.denied"})
"""Kinds of facts that say something to a provider."""

SUMMARY_HEAD = "[Summary of the conversation so far]\n"
"""What a model is told before a summary."""


_SEQ = itemgetter(0)


class Messages(Sequence[Message]):
    """The first ``length`` messages of a growing transcript: an immutable sequence that shares its memory."""

    __slots__ = ("_length", "_transcript")

    def __init__(self, transcript: Transcript, length: int) -> None:
        self._transcript, self._length = transcript, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        message = self._transcript.message
        if isinstance(index, slice):
            return [message(i) for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError("message index out of range")
        return message(index % self._length)

    def __iter__(self) -> Iterator[Message]:
        message = self._transcript.message
        for index in range(self._length):
            yield message(index)

    def __repr__(self) -> str:
        return f"Messages({list(self)!r})"


class Transcript:
    """Messages of a log, in order. Append-only; :meth:`snapshot` is O(1). A compaction begins another one.

    What came from the file stays as it is stored until somebody reads that message: most of a long history is only
    ever passed on. One function makes a message of a fact, whether it was just staged or read back.
    """

    def __init__(self, compacted: Compacted | None = None) -> None:
        self._entries: list[Entry] = []
        self._seqs = array("Q")
        self._blobs: Blobs = {}
        self._bytes = self._measured = 0
        self.asked = 0
        """Seq of the newest message of the host; 0 for none."""
        self.starts_with_summary = compacted is not None
        if compacted is not None:
            self._append(UserMessage(SUMMARY_HEAD + compacted.summary), 0)

    def __len__(self) -> int:
        return len(self._entries)

    def snapshot(self) -> Messages:
        """The messages so far, as a request carries them."""
        return Messages(self, len(self._entries))

    @property
    def bytes(self) -> int:
        """UTF-8 size of all texts so far: the basis of a request's token estimate. Each message is measured once."""
        while self._measured < len(self._entries):
            self._bytes += size_of(self.message(self._measured))
            self._measured += 1
        return self._bytes

    def message(self, index: int) -> Message:
        """The message at ``index``, from 0. From any thread.

        Raises:
            StoreError: its fact cannot be read.
        """
        entry = self._entries[index]
        if isinstance(entry, tuple):
            fact = new_fact(entry, self._blobs)
            message = self._message(index, fact.key, fact.payload)
            if message is None:
                raise unreadable(entry[0], entry[2], TypeError("it is no message"))
            # Two threads may both come here; they make the same message.
            self._entries[index] = entry = message
        return entry

    def seq(self, index: int) -> int:
        """Seq of the fact that the message at ``index`` is made of; 0 for a summary."""
        return self._seqs[index]

    def index(self, seq: int) -> int:
        """Index of the first message that comes from the fact ``seq`` or a later one."""
        return bisect_left(self._seqs, seq)

    def advance(self, fact: NewFact, seq: int = 0) -> None:
        """Add what ``fact`` says to a provider; most kinds add one message, some none. ``seq`` is where it stands."""
        message = self._message(len(self._entries), fact.key, fact.payload)
        if message is not None:
            self._append(message, seq)
            if isinstance(fact.payload, Asked) and fact.payload.origin == "host":
                self.asked = seq

    def add_stored(self, facts: Sequence[StoredFact], blobs: Blobs) -> None:
        """Add stored facts, and the blobs that they name. They were checked to be what was written."""
        spoken = [fact for fact in facts if fact[1] in SPOKEN]
        self._entries += spoken
        self._seqs.extend(map(_SEQ, spoken))
        self._blobs.update(blobs)
        for fact in reversed(spoken):
            if fact[1] == "user.message" and fact[2].endswith("-user"):
                self.asked = fact[0]
                break

    def compacted(self, fact: Compacted) -> Transcript:
        """The transcript behind a compaction: its summary, the message that it kept, its tail. Shares their memory;
        this one stays as it is, for requests that were made of it."""
        other = Transcript(fact)
        if fact.kept_message is not None:
            index = self.index(fact.kept_message)
            if index == len(self._seqs) or self._seqs[index] != fact.kept_message:
                raise IllegalFact(f"a compaction keeps the message {fact.kept_message}, which is not there")
            other._append(self.message(index), self._seqs[index])
        for index in range(self.index(fact.kept_from), len(self._entries)):
            other._append(self.message(index), self._seqs[index])
        other.asked = self.asked
        return other

    def _append(self, message: Message, seq: int) -> None:
        self._entries.append(message)
        self._seqs.append(seq)

    def _message(self, index: int, key: str, payload: Payload) -> Message | None:
        if isinstance(payload, Answered):
            calls = tuple(_chat_call(f"{key}-c{i}", call) for i, call in enumerate(payload.calls))
            return AssistantMessage(payload.text, calls, payload.opaque, payload.model)
        if isinstance(payload, Returned):
            return self._result(index, payload.call_key, text_of(payload.parts), payload.ok)
        if isinstance(payload, Denied):
            return self._result(index, payload.call_key, denied_text(payload), False)
        return UserMessage(text_of(payload.parts)) if isinstance(payload, Asked) else None

    def _result(self, index: int, key: str, text: str, ok: bool) -> ToolMessage:
        # Results follow their answer in call order (§4), so the position of a call says how far back its answer is.
        position = int(key.rpartition("-c")[2])
        answer = self.message(index - position - 1)
        if not isinstance(answer, AssistantMessage):
            raise IllegalFact(f"the result of '{key}' does not follow the answer that made the call")
        call = answer.calls[position]
        return ToolMessage(key, call.id, call.name, text, ok)


def _chat_call(key: str, call: Call) -> ChatCall:
    return ChatCall(key, call.id, call.name, "{}" if call.arguments is None else call.text)


def size_of(message: Message) -> int:
    """UTF-8 size of a message's texts."""
    size = utf8_size(message.text)
    if isinstance(message, AssistantMessage):
        size += sum(utf8_size(call.arguments) for call in message.calls)
    return size


def utf8_size(text: str) -> int:
    """How many bytes ``text`` has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def denied_text(fact: Denied) -> str:
    """What the model is told of a call that a budget did not let run."""
    return f"Budget exhausted on '{fact.resource}': {fact.reason}"


def record_answer(reply: Reply, model: str) -> Answered:
    """The fact that a provider's reply becomes. Broken arguments are kept as text with what is wrong with them;
    a usage that cannot be true is none.

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
    return Answered(text, calls, usable_usage(reply.usage), clean(reply.stop_reason), name, opaque)


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
