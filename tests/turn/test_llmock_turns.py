"""Every scenario of llmock, a server that nobody here wrote, through a whole turn (§5, §6): the guard is asked exactly
as often as the provider is called, and llmock finds nothing wrong with how we called it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from thence import RunFailed, SessionOptions

pytest.importorskip("openai")
pytest.importorskip("llmock")

from thence.models.openai import OpenAIModel

from ..kit import World, check_session, kinds, results
from .guard_kit import Guard


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"{city}: sunny"


@dataclass(frozen=True)
class Scenario:
    """What the server does. ``calls``: how often it is asked; ``code``: how the run fails, None if it completes."""

    script: Callable[[Any], Any]
    calls: int
    code: str | None = None
    tool_ok: tuple[bool, ...] = ()


def weather(mock: Any) -> Any:
    return mock.call_tool("get_weather", {"city": "Paris"})


def fail(status: int, **more: Any) -> Callable[[Any], Any]:
    return lambda mock: mock.fail(status, **more)


SCENARIOS = {
    "reply": Scenario(lambda mock: mock.reply("Sunny."), 1),
    "no script at all": Scenario(lambda mock: mock.tool_mode("off"), 1),
    **{f"fail {status}": Scenario(fail(status), 1, "LLM_ERROR") for status in (400, 401, 403, 404, 413, 422)},
    **{f"fail {status} once": Scenario(fail(status), 2) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    "fail twice": Scenario(fail(503, times=2), 3),
    "fail more often than we try": Scenario(fail(500, times=3), 3, "LLM_ERROR"),
    "fail, quota": Scenario(fail(429, code="insufficient_quota"), 1, "LLM_ERROR"),
    "rate_limit": Scenario(lambda mock: mock.rate_limit(times=2, retry_after=0.2), 3),
    "outage": Scenario(lambda mock: mock.outage(), 3, "LLM_ERROR"),
    "context_overflow": Scenario(lambda mock: mock.context_overflow(), 1, "CONTEXT_OVERFLOW"),
    "delay": Scenario(lambda mock: mock.delay(0.2), 1),
    "slow_first_token": Scenario(lambda mock: mock.slow_first_token(0.2), 1),
    "pace": Scenario(lambda mock: mock.pace(5), 1),
    "disconnect": Scenario(lambda mock: mock.disconnect(after_chunks=2), 2),
    "disconnect at once": Scenario(lambda mock: mock.disconnect(after_chunks=0), 2),
    "disconnect thrice": Scenario(lambda mock: mock.disconnect(times=3), 3, "LLM_ERROR"),
    "truncate": Scenario(lambda mock: mock.truncate(after_chunks=2), 2),
    "corrupt": Scenario(lambda mock: mock.corrupt(after_chunks=2), 2),
    "stall": Scenario(lambda mock: mock.stall(seconds=5), 2),
    "all stream faults": Scenario(lambda mock: mock.disconnect().truncate(), 3),
    "call_tool": Scenario(weather, 2, None, (True,)),
    "call_tool, cut off": Scenario(lambda mock: weather(mock).truncate(), 2),  # both hit the first request
    "break_tool_call, arguments": Scenario(lambda mock: weather(mock).break_tool_call(), 2, None, (False,)),
    "break_tool_call, name": Scenario(
        lambda mock: weather(mock).break_tool_call("unknown_tool"), 2, None, (False,)
    ),
    "limits, context window": Scenario(lambda mock: mock.limits(context_window=1), 1, "CONTEXT_OVERFLOW"),
}  # fmt: skip


@pytest.fixture
def server(llmock: Any) -> Any:
    return llmock.tool_mode("off")


@pytest.fixture
async def turn(world: World, server: Any) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """``turn(guard, **options)``: a session on the server."""
    made: list[OpenAIModel] = []

    async def start(guard: Guard, **options: Any) -> Any:
        made.append(OpenAIModel("gpt-5", server.base_url(), "test-key-123", read_timeout_s=1.5))
        agent = await world.agent(model=made[-1], tools=[get_weather])
        return await agent.session(
            ".",
            SessionOptions(budget_guard=guard, budget_guard_timeout_ms=20_000, **{"retry_base_ms": 1, **options}),
        )

    yield start
    for model in made:
        model.close()
        await model.aclose()


def asked(guard: Guard, what: str) -> int:
    return [item[0] for item in guard.asked].count(what)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_guard_is_asked_as_often_as_the_provider(turn: Any, server: Any, name: str):
    scenario, guard = SCENARIOS[name], Guard()
    scenario.script(server)
    session = await turn(guard)
    if scenario.code is None:
        result = await session.send("What is the weather in Paris?")
        assert result.text and result.status == "completed"
    else:
        with pytest.raises(RunFailed) as failed:
            await session.send("What is the weather in Paris?")
        assert failed.value.code == scenario.code and failed.value.resumable
    assert len(server.requests) == asked(guard, "llm") == scenario.calls
    facts = await check_session(session)
    answers = kinds(facts).count("model.turn")
    assert asked(guard, "record") == answers == (await session.usage()).known
    assert (await session.usage()).unknown == scenario.calls - answers
    assert tuple(ok for _, ok, _ in results(facts)) == scenario.tool_ok
    verdict = server.verdict()
    assert not verdict.errors, verdict.render()


async def test_a_quota_by_the_minute_is_waited_for_as_told_and_not_beyond_what_we_wait(turn: Any, server: Any):
    guard = Guard()
    server.limits(rpm=1)
    session = await turn(guard, circuit_breaker_threshold=1)
    assert (await session.send("One.")).text
    with pytest.raises(RunFailed) as failed:
        await session.send("Two.")
    assert failed.value.retryable and len(server.requests) == asked(guard, "llm") == 2


async def test_a_mix_of_faults_over_many_turns(turn: Any, server: Any):
    """Whatever comes, in whatever order: as many checks as calls, and a log that any provider takes."""
    guard, chance = Guard(), random.Random(7)
    faults: list[Callable[[Any], Any]] = [
        weather, fail(503), fail(400), lambda mock: mock.disconnect(), lambda mock: mock.truncate(),
        lambda mock: mock.corrupt(), lambda mock: mock.context_overflow(),
        lambda mock: weather(mock).break_tool_call(), lambda mock: mock.rate_limit(retry_after=0.05),
    ]  # fmt: skip
    session = await turn(guard)
    ended = {"completed": 0, "failed": 0}
    for number in range(20):
        for _ in range(chance.randrange(1, 4)):
            chance.choice(faults)(server)
        try:
            await session.send(f"Question {number}.")
            ended["completed"] += 1
        except RunFailed:
            ended["failed"] += 1
    assert min(ended.values()) > 0
    assert len(server.requests) == asked(guard, "llm")
    usage = await session.usage()
    assert (usage.known, usage.known + usage.unknown) == (asked(guard, "record"), len(server.requests))
    await check_session(session)
