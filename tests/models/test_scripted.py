"""ScriptedModel (§12): the model that other tests stand on."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thence.chat import AsyncModel, RawCall, ReasoningDelta, Reply, Request, SyncModel, TextDelta, Usage, UserMessage
from thence.errors import ModelError
from thence.models.scripted import ScriptedModel, call, reply

HELLO = Request("m", "be brief", (UserMessage("hello"),))


def test_has_both_faces() -> None:
    model = ScriptedModel()
    assert isinstance(model, SyncModel)
    assert isinstance(model, AsyncModel)


def test_answers_in_order(ask: Any) -> None:
    model = ScriptedModel([reply("one"), reply(calls=[call("add", {"b": 2, "a": 1})]), Reply("three")], name="m")
    assert ask(model, HELLO) == [TextDelta("one"), Reply("one", model="m")]
    assert ask(model, HELLO) == [
        Reply("", (RawCall("c0", "add", '{"a":1,"b":2}'),), stop_reason="tool_calls", model="m")
    ]
    assert ask(model, HELLO) == [TextDelta("three"), Reply("three", model="m")]
    assert model.requests == [HELLO, HELLO, HELLO]


def test_call_ids_repeat_from_reply_to_reply_unless_given() -> None:
    made = [reply(calls=[call("a"), call("b", id="mine"), RawCall("", "c", "{")]).reply for _ in range(2)]
    assert made[0] == made[1]
    assert [(one.id, one.name, one.arguments) for one in made[0].calls] == [
        ("c0", "a", "{}"),
        ("mine", "b", "{}"),
        ("", "c", "{"),
    ]


def test_broken_arguments_stay_as_they_are() -> None:
    assert reply(calls=[call("read", '{"path": "a')]).reply.calls[0].arguments == '{"path": "a'


def test_usage_and_stop_reason() -> None:
    assert reply("x", usage={"prompt_tokens": 5, "completion_tokens": 2}).reply.usage == Usage(5, 2, 7)
    assert reply("x", usage=Usage(1, 1, 9)).reply.usage == Usage(1, 1, 9)
    assert reply("x").reply.usage is None
    assert [reply("x", stop_reason="length").reply.stop_reason, reply("x").reply.stop_reason] == ["length", "stop"]


def test_deltas_replace_the_text_and_may_break(ask: Any) -> None:
    model = ScriptedModel(
        [reply("ab", deltas=["a", ReasoningDelta("hm"), "b"]), reply("ab", deltas=["a", OSError("cut")])]
    )
    assert ask(model, HELLO)[:-1] == [TextDelta("a"), ReasoningDelta("hm"), TextDelta("b")]
    with pytest.raises(OSError, match="cut"):
        ask(model, HELLO)


def test_raises_what_the_script_says(ask: Any) -> None:
    with pytest.raises(ModelError, match="later"):
        ask(ScriptedModel([ModelError("http_503", "later", retryable=True)]), HELLO)


def test_functions_of_the_request_sync_and_async(ask: Any) -> None:
    async def shout(request: Request) -> Any:
        return reply(request.messages[-1].text.upper())

    async def fail(request: Request) -> Any:
        raise ValueError(request.model)

    model = ScriptedModel([shout, lambda request: Reply(request.instructions), fail])
    assert ask(model, HELLO)[-1].text == "HELLO"
    assert ask(model, HELLO)[-1].text == "be brief"
    with pytest.raises(ValueError, match="m"):
        ask(model, HELLO)


def test_an_async_function_works_inside_a_running_loop() -> None:
    async def shout(request: Request) -> Any:
        return reply(request.messages[-1].text.upper())

    async def main() -> str:
        *_, last = ScriptedModel([shout]).stream(HELLO)
        assert isinstance(last, Reply)
        return last.text

    assert asyncio.run(main()) == "HELLO"


def test_an_exhausted_script_says_what_happened(ask: Any) -> None:
    model = ScriptedModel([reply("one")])
    ask(model, HELLO)
    with pytest.raises(ModelError, match=r"had 1 replies.*user message 'hello'") as caught:
        ask(model, HELLO)
    assert (caught.value.kind, caught.value.retryable) == ("script_exhausted", False)
    assert len(model.requests) == 2


def test_threads_share_one_script() -> None:
    def slowly() -> Iterator[Any]:
        for number in range(200):
            time.sleep(0.0001)  # lets another thread in here, unless the model keeps it out
            yield reply(str(number))

    model = ScriptedModel(slowly())
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: list(model.stream(HELLO))[-1].text, range(200)))  # type: ignore[union-attr]
    assert sorted(texts, key=int) == [str(number) for number in range(200)]


def test_a_script_may_be_endless(ask: Any) -> None:
    model = ScriptedModel(itertools.repeat(lambda request: reply(f"{len(request.messages)}")))
    assert [ask(model, HELLO)[-1].text for _ in range(3)] == ["1", "1", "1"]
