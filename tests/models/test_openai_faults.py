"""OpenAIModel against llmock, a server that nobody here wrote: every fault ends as the right ModelError (§5, §12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thence.chat import Request, TextDelta, ToolCallDelta, ToolSpec, UserMessage
from thence.errors import ModelError

pytest.importorskip("openai")
pytest.importorskip("llmock")

from thence.models.openai import OpenAIModel

PARIS = Request("gpt-5", "", (UserMessage("What is the weather in Paris?"),))
WEATHER = ToolSpec(
    "get_weather",
    "Weather of a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture
def model(llmock: Any) -> OpenAIModel:
    return OpenAIModel("gpt-5", llmock.base_url(), "test-key-123", read_timeout_s=0.5)


def failure(ask: Any, model: OpenAIModel, request: Request = PARIS) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, request)
    assert caught.value.__cause__ is None
    return caught.value


def test_a_plain_answer(ask: Any, model: OpenAIModel, llmock: Any, last_reply: Any) -> None:
    llmock.reply("It is sunny in Paris today.")
    items = ask(model, PARIS)
    answer = last_reply(items)
    assert answer.text == "It is sunny in Paris today."
    assert "".join(item.text for item in items[:-1] if isinstance(item, TextDelta)) == answer.text
    assert (answer.stop_reason, answer.calls) == ("stop", ())
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        *[(status, False) for status in (400, 401, 404, 422)],
        *[(status, True) for status in (408, 409, 425, 429, 500, 503, 529)],
    ],
)
def test_http_errors(ask: Any, model: OpenAIModel, llmock: Any, status: int, retryable: bool) -> None:
    llmock.fail(status)
    error = failure(ask, model)
    assert (error.kind, error.retryable) == (f"http_{status}", retryable)
    assert str(error).startswith(f"HTTP {status}: ")
    assert len(llmock.requests) == 1  # attempts are the turn's business


def test_retry_after(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.rate_limit(retry_after=7)
    error = failure(ask, model)
    assert (error.kind, error.retryable, error.retry_after_s) == ("http_429", True, 7.0)


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_no_quota_is_not_worth_a_retry(ask: Any, model: OpenAIModel, llmock: Any, code: str) -> None:
    llmock.fail(429, code=code)
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("http_429", False)


def test_context_overflow(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.context_overflow()
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("context_overflow", False)


def test_stall(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.stall(seconds=20)
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("timeout", True)


def test_disconnect(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.disconnect(after_chunks=2)
    error = failure(ask, model)
    assert error.kind in {"connection", "stream_broken"}
    assert error.retryable


def test_truncation_is_noticed(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.truncate(after_chunks=2)
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("truncated_stream", True)


def test_malformed_chunk(ask: Any, model: OpenAIModel, llmock: Any) -> None:
    llmock.corrupt(after_chunks=2)
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("stream_broken", True)


def test_nobody_listens(ask: Any) -> None:
    error = failure(ask, OpenAIModel("gpt-5", "http://127.0.0.1:9/v1", "test-key-123"))
    assert (error.kind, error.retryable) == ("connection", True)


def test_tool_call(ask: Any, model: OpenAIModel, llmock: Any, last_reply: Any) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"})
    items = ask(model, Request("", "", PARIS.messages, (WEATHER,)))
    answer = last_reply(items)
    (made,) = answer.calls
    assert (made.name, json.loads(made.arguments), bool(made.id)) == ("get_weather", {"city": "Paris"}, True)
    assert answer.stop_reason == "tool_calls"
    pieces = [item for item in items if isinstance(item, ToolCallDelta)]
    assert {piece.index for piece in pieces} == {0}
    assert (pieces[0].name, "".join(piece.delta for piece in pieces)) == ("get_weather", made.arguments)


def test_broken_arguments_are_handed_on(ask: Any, model: OpenAIModel, llmock: Any, last_reply: Any) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"}).break_tool_call()
    (made,) = last_reply(ask(model, Request("", "", PARIS.messages, (WEATHER,)))).calls
    assert made.name == "get_weather"
    with pytest.raises(json.JSONDecodeError):
        json.loads(made.arguments)
