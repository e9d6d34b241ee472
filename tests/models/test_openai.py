"""OpenAIModel on the wire: what is sent, and how odd servers are read (§12)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from thence.canonical import Json
from thence.chat import (
    AssistantMessage,
    ChatCall,
    RawCall,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCallDelta,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from thence.errors import ModelError

pytest.importorskip("openai")

from thence.models.openai import OpenAIModel

HELLO = Request("", "", (UserMessage("hello"),))
KEY = "sk-test-0123456789"
ADD = ToolSpec("add", "Add", {"type": "object", "properties": {}})


@pytest.fixture
def model(wire: Any) -> OpenAIModel:
    return OpenAIModel("m-1", wire.url, KEY)


def failure(ask: Any, model: OpenAIModel, request: Request = HELLO) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, request)
    return caught.value


def test_the_request_body(ask: Any, model: OpenAIModel, wire: Any, chunk: Any) -> None:
    wire.streams(chunk(text="ok", finish="stop"))
    messages = (
        UserMessage("add them"),
        AssistantMessage("", (ChatCall("t1-r1-c0", "c0", "add", '{"a":1}'), ChatCall("t1-r1-c1", "c0", "add", "{}"))),
        ToolMessage("t1-r1-c0", "c0", "add", "3", ok=True),
        ToolMessage("t1-r1-c1", "c0", "add", "Error: no numbers", ok=False),
        AssistantMessage("3"),
        AssistantMessage(""),
    )
    settings: dict[str, Json] = {"temperature": 0.5, "max_tokens": 9, "seed": 4, "tool_choice": "required", "top_k": 3}
    ask(model, Request("other", "be brief", messages, (ADD,), settings, {"type": "object"}))
    assert wire.headers[0]["authorization"] == f"Bearer {KEY}"
    add = {"name": "add", "arguments": '{"a":1}'}
    assert wire.bodies[0] == {
        "model": "other",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "add them"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t1-r1-c0", "type": "function", "function": add},
                    {"id": "t1-r1-c1", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1-r1-c0", "content": "3"},
            {"role": "tool", "tool_call_id": "t1-r1-c1", "content": "Error: no numbers"},
            {"role": "assistant", "content": "3"},
            {"role": "assistant", "content": ""},
        ],
        "tools": [
            {"type": "function", "function": {"name": "add", "description": "Add", "parameters": dict(ADD.parameters)}}
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}},
        **settings,
    }


def test_no_tools_no_tool_choice(ask: Any, model: OpenAIModel, wire: Any, chunk: Any) -> None:
    wire.streams(chunk(text="ok", finish="stop"))
    ask(model, Request("", "", HELLO.messages, (), {"tool_choice": "required", "parallel_tool_calls": False}))
    assert wire.bodies[0] == {
        "model": "m-1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hello"}],
    }


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream", "n"])
def test_settings_cannot_replace_the_request(ask: Any, model: OpenAIModel, wire: Any, name: str) -> None:
    error = failure(ask, model, Request("", "", HELLO.messages, (), {name: 1}))
    assert (error.kind, error.retryable, f"'{name}'" in str(error)) == ("configuration", False, True)
    assert not wire.bodies


def test_usage_with_cached_tokens(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any) -> None:
    details = {"cached_tokens": 30, "cache_write_tokens": 5}
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42, "prompt_tokens_details": details}
    wire.streams(chunk(text="ok"), chunk(finish="stop"), chunk(usage=usage))
    answer = last_reply(ask(model, HELLO))
    assert (answer.usage, answer.model) == (Usage(40, 2, 42, 30, 5), "m-1")


def test_sparse_usage(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any) -> None:
    wire.streams(chunk(text="ok", finish="stop", usage={"prompt_tokens": 4, "completion_tokens": 1}))
    assert last_reply(ask(model, HELLO)).usage == Usage(4, 1, 5)


ODD_USAGE: list[Any] = [
    {"prompt_tokens": 10, "completion_tokens": 2.5, "total_tokens": 12.5},
    {"prompt_tokens": "10", "completion_tokens": None, "total_tokens": {}},
    {"prompt_tokens": -5, "completion_tokens": 10**25, "total_tokens": 3},
    {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": "many"}},
    {"seconds": 4},
    [1],
    "many",
    7,
]


@pytest.mark.parametrize("usage", ODD_USAGE, ids=str)
def test_a_usage_nobody_can_count_with_costs_no_answer(
    ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any, usage: Any
) -> None:
    wire.streams(chunk(text="ok"), chunk(finish="stop"), chunk(usage=usage))
    answer = last_reply(ask(model, HELLO))
    assert (answer.text, answer.usage) == ("ok", None)


def test_no_usage_is_none(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any) -> None:
    wire.streams(chunk(text="ok", finish="stop"), done=False)
    assert last_reply(ask(model, HELLO)).usage is None


def test_interleaved_calls_are_kept_apart(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any) -> None:
    def piece(index: int, arguments: str, **more: Any) -> Any:
        name = more.pop("name", None)
        return {"index": index, "function": {"name": name, "arguments": arguments}, **more}

    wire.streams(
        chunk(tool_calls=[piece(0, "", id="same", name="add"), piece(1, '{"b"', id="same", name="sub")]),
        chunk(tool_calls=[piece(1, ":2}"), piece(0, '{"a":1}')]),
        chunk(finish="tool_calls"),
    )
    items = ask(model, HELLO)
    answer = last_reply(items)
    assert answer.calls == (RawCall("same", "add", '{"a":1}'), RawCall("same", "sub", '{"b":2}'))
    assert items[:-1] == [
        ToolCallDelta(0, "", "add", "same"),
        ToolCallDelta(1, '{"b"', "sub", "same"),
        ToolCallDelta(1, ":2}"),
        ToolCallDelta(0, '{"a":1}'),
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_shown_but_no_text(
    ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any, field: str
) -> None:
    wire.streams(chunk(**{field: "hm"}), chunk(text="ok", finish="stop"))
    items = ask(model, HELLO)
    assert items[:-1] == [ReasoningDelta("hm"), TextDelta("ok")]
    assert last_reply(items).text == "ok"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop",) * 2, ("length",) * 2, ("content_filter",) * 2, ("odd_one",) * 2, ("function_call", "tool_calls")],
)
def test_stop_reasons(
    ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any, finish: str, reason: str
) -> None:
    wire.streams(chunk(text="ok"), chunk(finish=finish))
    assert last_reply(ask(model, HELLO)).stop_reason == reason


def test_stop_after_calls_and_refusals(ask: Any, model: OpenAIModel, wire: Any, chunk: Any, last_reply: Any) -> None:
    wire.streams(chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "add"}}]), chunk(finish="stop"))
    assert last_reply(ask(model, HELLO)).stop_reason == "tool_calls"
    wire.streams(chunk(refusal="I will not."), chunk(finish="stop"))
    answer = last_reply(ask(model, HELLO))
    assert (answer.text, answer.stop_reason) == ("I will not.", "refusal")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ModelError, match=r"api_key.*OPENAI_API_KEY") as caught:
        OpenAIModel("m-1")
    assert (caught.value.kind, caught.value.retryable) == ("configuration", False)


@pytest.mark.parametrize("bad", [{"name": " "}, {"read_timeout_s": 0}, {"connect_timeout_s": -1}])
def test_bad_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        OpenAIModel(**{"name": "m", "api_key": KEY, **bad})


def test_one_model_serves_several_loops_and_threads(model: OpenAIModel, wire: Any, chunk: Any) -> None:
    for _ in range(12):
        wire.streams(chunk(text="ok", finish="stop"))
    texts: list[str] = []
    all_asked = threading.Barrier(7)

    async def two() -> None:
        for _ in range(2):
            texts.append([item async for item in model.astream(HELLO)][-1].text)  # type: ignore[union-attr]
        all_asked.wait(30)
        await model.aclose()

    def one() -> None:
        texts.append(list(model.stream(HELLO))[-1].text)  # type: ignore[union-attr]
        all_asked.wait(30)

    threads = [threading.Thread(target=asyncio.run, args=(two(),)) for _ in range(4)]
    threads += [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts.append(list(model.stream(HELLO))[-1].text)  # type: ignore[union-attr]
    model.close()
    assert texts == ["ok"] * 12


def test_leaving_early_releases_the_connection(model: OpenAIModel, wire: Any, chunk: Any) -> None:
    wire.streams(chunk(text="a"), chunk(text="b"), chunk(finish="stop"))
    wire.streams(chunk(text="ok", finish="stop"))
    stream = model.stream(HELLO)
    assert next(stream) == TextDelta("a")
    stream.close()  # type: ignore[attr-defined]
    assert next(iter(model.stream(HELLO))) == TextDelta("ok")
    model.close()
