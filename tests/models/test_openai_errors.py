"""What servers say when they fail, in all its dialects, as one ModelError (§5, §12)."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import pytest

from thence.chat import Request, UserMessage
from thence.errors import ModelError

pytest.importorskip("openai")

from thence.models.openai import OpenAIModel

HELLO = Request("", "", (UserMessage("hello"),))
KEY = "sk-test-0123456789"


@pytest.fixture
def model(wire: Any) -> OpenAIModel:
    return OpenAIModel("m-1", wire.url, KEY)


def failure(ask: Any, model: OpenAIModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, HELLO)
    return caught.value


@pytest.mark.parametrize(
    "broken", ["[1]", '"text"', '{"choices": 5}', '{"choices": [{"index": 0, "delta": 7}]}', "nope"]
)
def test_chunks_of_a_wrong_shape(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, broken: str) -> None:
    wire.streams(chunk(text="ok"), broken, chunk(finish="stop"))
    error = failure(ask, model)
    assert (error.kind, error.retryable) == ("stream_broken", True)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        ({"message": "overloaded", "code": 503}, "stream_error", True),
        ({"message": "overloaded", "code": None}, "stream_error", True),
        ({"message": "bad", "code": 400, "type": "invalid_request_error"}, "stream_error", False),
        ({"message": "spent", "code": "insufficient_quota"}, "stream_error", False),
        ({"message": "long", "code": 400, "type": "exceed_context_size_error"}, "context_overflow", False),
    ],
)
def test_error_inside_a_stream(
    ask: Any, model: OpenAIModel, wire: Any, chunk: Any, error: Any, kind: str, retryable: bool
) -> None:
    wire.streams(chunk(text="ok"), {"error": error})
    raised = failure(ask, model)
    assert (raised.kind, raised.retryable, error["message"] in str(raised)) == (kind, retryable, True)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "too long", "code": 400, "type": "exceed_context_size_error"},
        {"message": "This model's maximum context length is 8192 tokens", "code": 400, "type": "BadRequestError"},
    ],
)
def test_context_overflow_in_three_dialects(ask: Any, model: OpenAIModel, wire: Any, error: Any) -> None:
    wire.fails(400, error)
    raised = failure(ask, model)
    assert (raised.kind, raised.retryable) == ("context_overflow", False)


def test_retry_after_in_all_forms(ask: Any, model: OpenAIModel, wire: Any) -> None:
    soon, past = (email.utils.formatdate(time.time() + shift, usegmt=True) for shift in (3600, -3600))
    waits: list[float | None] = []
    for headers in (
        {"retry_after_ms": "1500", "retry_after": "9"},
        {"retry_after": "2.5"},
        {"retry_after": soon},
        {"retry_after": past},
        {"retry_after": "-4"},
        {"retry_after": "soon"},
        {"retry_after": "nan"},
        {},
    ):
        wire.fails(429, {"message": "slow down"}, **headers)
        waits.append(failure(ask, model).retry_after_s)
    assert waits[2] is not None
    assert 3000 < waits[2] < 3700
    assert [*waits[:2], *waits[3:]] == [1.5, 2.5, 0.0, 0.0, None, None, None]


def test_should_retry_header_only_forbids(ask: Any, model: OpenAIModel, wire: Any) -> None:
    wire.fails(503, {"message": "no"}, x_should_retry="false")
    assert not failure(ask, model).retryable
    wire.fails(400, {"message": "no"}, x_should_retry="true")
    assert not failure(ask, model).retryable


def test_the_key_is_never_shown(ask: Any, model: OpenAIModel, wire: Any) -> None:
    wire.fails(401, {"message": f"Incorrect API key provided: {KEY}"})
    error = failure(ask, model)
    assert KEY not in repr(error) + str(error) + repr(model) + str(vars(error))
    assert "[api key]" in str(error)
    wire.answers.append((502, {"content-type": "text/html"}, b"<html>" + KEY.encode() + b"x" * 5000))
    error = failure(ask, model)
    assert KEY not in str(error)
    assert len(str(error)) < 600
