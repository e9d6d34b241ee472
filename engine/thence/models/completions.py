"""The Chat Completions dialect as plain values: our request to its body, its chunks to our deltas and reply (§12).

Nothing here does I/O or needs an SDK at run time, so the sync and the async face share every line of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..canonical import Json
from ..chat import (
    AssistantMessage,
    Delta,
    Message,
    RawCall,
    ReasoningDelta,
    Reply,
    Request,
    TextDelta,
    ToolCallDelta,
    ToolMessage,
    Usage,
    usable_usage,
)
from ..errors import ModelError
from .strict import is_strict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

RESERVED_SETTINGS = frozenset({"model", "messages", "tools", "stream", "n"})
"""Body fields that the request itself decides; model settings may set any other."""

_STOP_REASONS = {"function_call": "tool_calls"}


def request_body(request: Request, default_model: str) -> dict[str, Any]:
    """The JSON body of a streamed completion, except ``stream`` itself.

    Model settings are passed through as they are, and win over what is derived here (``response_format`` from the
    output schema, ``stream_options``).

    Raises:
        ModelError: ``configuration``, not retryable: a setting names a field of :data:`RESERVED_SETTINGS`.
    """
    clash = sorted(RESERVED_SETTINGS & request.settings.keys())
    if clash:
        raise ModelError("configuration", f"model setting '{clash[0]}': the request itself decides it", retryable=False)
    body: dict[str, Any] = {
        "model": request.model or default_model,
        "messages": list(_messages(request)),
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in request.tools
        ]
    if request.output_schema is not None:
        wanted: dict[str, Json] = {"name": "output", "schema": request.output_schema}
        if is_strict(request.output_schema):
            wanted["strict"] = True
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    body.update(request.settings)
    if not request.tools:
        # Providers refuse a tool choice when no tools are offered, as after the round cap.
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    return body


def _messages(request: Request) -> Iterator[dict[str, Any]]:
    if request.instructions:
        yield {"role": "system", "content": request.instructions}
    for message in request.messages:
        yield _message(message)


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": message.call_key, "content": message.text}
    if not isinstance(message, AssistantMessage) or not message.calls:
        return {"role": message.role, "content": message.text}
    return {
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": [
            {"id": call.key, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ],
    }


@dataclass(slots=True)
class _Call:
    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Accumulator:
    """Collects the chunks of one streamed answer: ``feed`` each, then ``finish``."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._refused = False
        self._model = ""

    def feed(self, chunk: ChatCompletionChunk) -> Iterator[Delta]:
        """Take one chunk in and yield what it adds."""
        self._model = chunk.model or self._model
        if chunk.usage:
            self._usage = usage_of(chunk.usage)
        for choice in chunk.choices or ():
            if choice.index not in (0, None):
                continue
            # Servers have been seen to send a last choice without a delta.
            if choice.delta:  # pyright: ignore[reportUnnecessaryComparison]
                yield from self._feed_delta(choice.delta)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def finish(self) -> Reply:
        """The whole answer.

        Raises:
            ModelError: ``truncated_stream``, retryable: the stream ended without a finish reason.
        """
        if self._finish_reason is None:
            raise ModelError("truncated_stream", "the answer ended without a finish reason", retryable=True)
        calls = tuple(RawCall(call.id, call.name, call.arguments) for call in self._calls.values())
        reason = _STOP_REASONS.get(self._finish_reason, self._finish_reason)
        if reason == "stop" and calls:
            reason = "tool_calls"  # some servers say "stop" after calls
        elif reason == "stop" and self._refused:
            reason = "refusal"
        return Reply("".join(self._text), calls, self._usage, reason, self._model)

    def _feed_delta(self, delta: ChoiceDelta) -> Iterator[Delta]:
        # Not in OpenAI's own schema: the two names under which compatible servers stream visible reasoning.
        reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        if isinstance(reasoning, str):
            yield ReasoningDelta(reasoning)
        if delta.refusal:
            self._refused = True
        for text in (delta.content, delta.refusal):
            if text:
                self._text.append(text)
                yield TextDelta(text)
        for piece in delta.tool_calls or ():
            yield self._feed_call(piece)

    def _feed_call(self, piece: ChoiceDeltaToolCall) -> Delta:
        call = self._calls.get(piece.index)
        if call is None:
            call = self._calls[piece.index] = _Call(len(self._calls))
        call.id = piece.id or call.id
        name = (piece.function and piece.function.name) or ""
        arguments = (piece.function and piece.function.arguments) or ""
        call.name += name
        call.arguments += arguments
        return ToolCallDelta(call.position, arguments, name, piece.id or "")


def usage_of(usage: CompletionUsage) -> Usage | None:
    """Our five counts; None for what is none. This dialect already counts cached tokens among ``prompt_tokens``."""
    said = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    if said == [None, None, None]:
        return None
    prompt, completion, total = (count or 0 for count in said)
    details = getattr(usage, "prompt_tokens_details", None)
    cached, written = (getattr(details, name, None) or 0 for name in ("cached_tokens", "cache_write_tokens"))
    usable = usable_usage(Usage(prompt, completion, total, cached, written))
    return usable if usable is None or total else replace(usable, total_tokens=prompt + completion)
