"""A model that answers from a script: for tests, demos and documentation (§12). No network, no clock, no randomness."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import isawaitable
from typing import TypeAlias

from ..canonical import Json, dumps
from ..chat import Delta, RawCall, Reply, Request, TextDelta, Usage
from ..errors import ModelError


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call of a scripted answer; :func:`call` makes it. ``id`` None becomes ``c<position>`` within its reply."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A scripted answer and the deltas that lead to it; :func:`reply` makes it. An exception is raised in its place."""

    reply: Reply
    deltas: tuple[Delta | BaseException, ...] = ()


Answer: TypeAlias = "ScriptedReply | Reply"
Item: TypeAlias = "Answer | BaseException | Callable[[Request], Answer | Awaitable[Answer]]"
"""What a script is made of: an answer, an exception to raise, or a function of the request that returns or raises."""


def call(name: str, args: Mapping[str, Json] | str = "{}", id: str | None = None) -> ScriptedCall:
    """A tool call for :func:`reply`.

    Args:
        name: the tool.
        args: a mapping (encoded as canonical JSON), or the raw argument text, which may be broken on purpose.
        id: the provider's call id; None becomes ``c<position>``, which repeats from reply to reply as providers' do.
    """
    return ScriptedCall(name, args if isinstance(args, str) else dumps(args), id)


def reply(
    text: str = "",
    calls: Sequence[ScriptedCall | RawCall] = (),
    usage: Usage | Mapping[str, int] | None = None,
    deltas: Sequence[str | Delta | BaseException] | None = None,
    stop_reason: str | None = None,
) -> ScriptedReply:
    """One answer of a script.

    Args:
        text: the whole text.
        calls: made with :func:`call`, in order.
        usage: a :class:`~thence.chat.Usage` or some of its fields by name (``total_tokens`` defaults to the sum of
            prompt and completion); None means the provider did not say.
        deltas: what is streamed first; a ``str`` is a text delta, an exception breaks the stream there. Default: the
            text as one delta, if there is any.
        stop_reason: default ``tool_calls`` when there are calls, else ``stop``.
    """
    raw = tuple(_raw(item, position) for position, item in enumerate(calls))
    streamed = deltas if deltas is not None else [text] if text else []
    return ScriptedReply(
        Reply(text, raw, _usage(usage), stop_reason or ("tool_calls" if raw else "stop")),
        tuple(TextDelta(delta) if isinstance(delta, str) else delta for delta in streamed),
    )


class ScriptedModel:
    """Answers the n-th request with the n-th item of a script (§12). Both faces; safe to share between threads.

    Args:
        script: items, taken one per request: :func:`reply` (or a bare ``Reply``), an exception to raise, or a
            callable of the :class:`~thence.chat.Request`, sync or async, that returns an answer or raises. It may be
            endless (``itertools.repeat(function)``).
        name: the model's name, as recorded in ``run.configured`` and ``model.turn``.

    Attributes:
        requests: every request so far, in order. They are snapshots: later turns do not change them.

    Raises:
        ModelError: ``script_exhausted`` (not retryable) from a stream when no item is left.
    """

    def __init__(self, script: Iterable[Item] = (), name: str = "scripted") -> None:
        self.name = name
        self.requests: list[Request] = []
        self._script = iter(script)
        self._taken = 0
        self._lock = threading.Lock()

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """The next item, as deltas and one reply. An async callable runs on a thread and loop of its own."""
        answer = self._take(request)
        if not isinstance(answer, ScriptedReply | Reply):
            answer = _wait_for(answer)
        yield from self._play(answer)

    async def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        """The next item, as deltas and one reply."""
        answer = self._take(request)
        if not isinstance(answer, ScriptedReply | Reply):
            answer = await answer
        for item in self._play(answer):
            yield item

    def _take(self, request: Request) -> Answer | Awaitable[Answer]:
        with self._lock:
            self.requests.append(request)
            item = next(self._script, None)
            if item is not None:
                self._taken += 1
        if item is None:
            raise ModelError("script_exhausted", self._exhausted(request), retryable=False)
        if isinstance(item, BaseException):
            raise item
        return item if isinstance(item, ScriptedReply | Reply) else item(request)

    def _play(self, answer: Answer) -> Iterator[Delta | Reply]:
        if isinstance(answer, Reply):
            answer = ScriptedReply(answer, (TextDelta(answer.text),) if answer.text else ())
        for delta in answer.deltas:
            if isinstance(delta, BaseException):
                raise delta
            yield delta
        reply = answer.reply
        yield (
            reply
            if reply.model
            else Reply(reply.text, reply.calls, reply.usage, reply.stop_reason, self.name, reply.opaque)
        )

    def _exhausted(self, request: Request) -> str:
        if request.messages:
            last = request.messages[-1]
            asked = f"{last.role} message {last.text[:200]!r}"
        else:
            asked = "nothing but instructions"
        return f"Scripted model '{self.name}' had {self._taken} replies and was asked once more; last asked: {asked}"


def _raw(item: ScriptedCall | RawCall, position: int) -> RawCall:
    if isinstance(item, RawCall):
        return item
    return RawCall(f"c{position}" if item.id is None else item.id, item.name, item.arguments)


def _usage(usage: Usage | Mapping[str, int] | None) -> Usage | None:
    if usage is None or isinstance(usage, Usage):
        return usage
    total = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    return Usage(**{"total_tokens": total, **usage})


def _wait_for(answer: Awaitable[Answer]) -> Answer:
    """Run a coroutine to its end without touching a loop that may be running on the caller's thread."""
    if not isawaitable(answer):
        raise TypeError(f"a scripted function must return a reply, not a {type(answer).__name__}")

    async def body() -> Answer:
        return await answer

    with ThreadPoolExecutor(1, "thence-scripted") as pool:
        return pool.submit(asyncio.run, body()).result()
