"""Providers that fail (§5, L1): what is tried again, how often, and what the caller is told."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from thence import ModelError, Request, RunFailed, SessionOptions, ThenceError
from thence.chat import TextDelta
from thence.testing import call, reply

from ..kit import Gate, World, check_session, kinds, stored, types

BREAKER = "LLM circuit breaker triggered: failed after {n} attempt(s): {e}"


def busy(text: str = "HTTP 503", **more) -> ModelError:
    return ModelError("http_503", text, retryable=True, **more)


def bad(text: str = "HTTP 400") -> ModelError:
    return ModelError("http_400", text, retryable=False)


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
async def test_a_retryable_error_is_tried_up_to_the_threshold_in_total(world: World, threshold: int):
    session = await world.session(
        [busy(f"HTTP 503 #{n}") for n in range(9)], circuit_breaker_threshold=threshold, retry_base_ms=1
    )
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    error = failed.value
    assert str(error) == BREAKER.format(n=threshold, e=f"HTTP 503 #{threshold - 1}")
    assert len(world.model.requests) == threshold
    assert (error.code, error.resumable, error.retryable) == ("LLM_ERROR", True, True)
    [run] = await session.runs()
    assert error.run_id == run.id
    assert (run.status, run.resumable, run.error_code, run.error_message) == ("failed", True, "LLM_ERROR", str(error))
    # What fails outside the transcript leaves the turn open (§5).
    assert kinds(await check_session(session)) == ["run.configured", "user.message"]


async def test_the_default_threshold_is_three_in_total(world: World):
    session = await world.session([busy()] * 9, retry_base_ms=0)
    with pytest.raises(RunFailed, match=r"failed after 3 attempt\(s\)"):
        await session.send("go")


async def test_a_second_attempt_may_succeed(world: World):
    session = await world.session([busy(), busy(), reply("third")], retry_base_ms=1)
    assert (await session.send("go")).text == "third"
    # A restarted attempt is a new turn_start with the same number.
    [run] = await session.runs()
    starts = [e.payload["turn"] for e in await session.run_events(run.id) if e.type == "turn_start"]
    assert starts == [1, 1, 1]
    # Each attempt asked the same.
    assert len({str(request) for request in world.model.requests}) == 1


@pytest.mark.parametrize("threshold", [1, 2, 3, 9])
async def test_I04_a_stream_makes_at_most_two_attempts(world: World, threshold: int):
    session = await world.session([busy()] * 9, circuit_breaker_threshold=threshold, retry_base_ms=1)
    stream = await session.stream("go")
    with pytest.raises(RunFailed) as failed:
        _ = [event async for event in stream]
    attempts = min(2, threshold)
    assert len(world.model.requests) == attempts
    assert str(failed.value) == BREAKER.format(n=attempts, e="HTTP 503")


async def test_errors_that_are_not_retryable_fail_at_once(world: World):
    session = await world.session([bad("HTTP 400: no such model"), reply("ok")])
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert len(world.model.requests) == 1
    assert "HTTP 400: no such model" in str(failed.value) and "circuit breaker" not in str(failed.value)
    assert (failed.value.code, failed.value.retryable, failed.value.resumable) == ("LLM_ERROR", False, True)
    assert (await session.send("again")).text == "ok"


RAISED = [
    ValueError("v"), RuntimeError("r"), OSError(5, "io"), MemoryError(), KeyboardInterrupt(), SystemExit(1),
    GeneratorExit(), RecursionError("deep"), asyncio.CancelledError(), BaseException("bare"),
]  # fmt: skip


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
async def test_whatever_a_model_raises_fails_the_run_as_our_own_error(world: World, error: BaseException):
    session = await world.session([error, reply("ok")])
    with pytest.raises(ThenceError) as failed:
        await session.send("go")
    assert failed.value.code == "LLM_ERROR" and type(error).__name__ in str(failed.value)
    assert len(world.model.requests) == 1
    assert (await session.send("again")).text == "ok"
    await check_session(session)


async def test_a_stream_that_breaks_in_the_middle_leaves_nothing_of_it(world: World):
    broken = reply("whole", deltas=["who", busy("cut")])
    session = await world.session([broken, reply("whole")], retry_base_ms=1)
    stream = await session.stream("go")
    events = [event async for event in stream]
    assert (await stream.result()).text == "whole"
    said = types(events)
    assert said.count("turn_start") == 2 and said.count("turn_end") == 1
    # Deltas since the first turn_start are void; those since the second one add up to the answer.
    second = max(i for i, kind in enumerate(said) if kind == "turn_start")
    assert "".join(e.text for e in events[second:] if e.type == "text_delta") == "whole"
    assert kinds(await check_session(session)).count("model.turn") == 1


async def test_a_stream_without_a_reply_is_retryable(world: World):
    class Silent:
        name = "silent"
        asked = 0

        def stream(self, request):
            self.asked += 1
            yield TextDelta("half")

    model = Silent()
    agent = await world.agent([], model=model)
    session = await agent.session(".", SessionOptions(retry_base_ms=1))
    with pytest.raises(RunFailed, match="circuit breaker"):
        await session.send("go")
    assert model.asked == 3


async def test_an_exhausted_script_says_so(world: World):
    session = await world.session([])
    with pytest.raises(RunFailed, match="Scripted model"):
        await session.send("go")


async def test_retry_after_is_honoured(world: World):
    session = await world.session([busy(retry_after_s=0.4), reply("ok")], retry_base_ms=1)
    start = time.monotonic()
    await session.send("go")
    assert time.monotonic() - start >= 0.4


async def test_I06_a_429_for_ever_is_bounded(world: World):
    session = await world.session(
        [ModelError("http_429", "429", retryable=True, retry_after_s=0)] * 99, retry_base_ms=1
    )
    with pytest.raises(RunFailed):
        await session.send("go")
    assert len(world.model.requests) == 3
    assert [run.status for run in await session.runs()] == ["failed"]


async def test_llm_api_timeout_is_a_retryable_failure(world: World):
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("late")

    session = await world.session([hang, hang, reply("in time")], llm_api_timeout_ms=80, retry_base_ms=1)
    result = await session.send("go")
    gate.open()
    assert result.text == "in time" and len(world.model.requests) == 3
    assert kinds(await check_session(session)).count("model.turn") == 1


async def test_max_execution_time_ends_the_run_failed_and_resumable(world: World):
    """A time limit is a failure outside the transcript (§5): no turn.ended, and the next send goes on."""
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("late")

    session = await world.session([hang, reply("ok")], max_execution_time_ms=150)
    task = asyncio.ensure_future(session.send("go"))
    done, _ = await asyncio.wait({task}, timeout=5)
    gate.open()
    assert done, "the run went on past max_execution_time_ms"
    with pytest.raises(RunFailed) as failed:
        await task
    assert failed.value.resumable
    assert kinds(await check_session(session)) == ["run.configured", "user.message"]
    assert (await session.send("again")).text == "ok"


async def test_max_execution_time_holds_over_many_short_rounds(world: World):
    numbers = itertools.count()

    async def pause(n: int) -> int:
        await asyncio.sleep(0.02)
        return n

    def answer(request: Request):
        told = [m.text for m in request.messages if m.role == "user"]
        return reply("ok") if "again" in told else reply(calls=[call("pause", {"n": next(numbers)})])

    session = await world.session(itertools.repeat(answer), [pause], max_execution_time_ms=300, max_tool_rounds=90)
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert failed.value.resumable and next(numbers) < 90
    assert (await session.send("again")).text == "ok"
    await check_session(session)


async def test_without_a_model_a_session_is_readable_and_says_so_on_send(world: World):
    agent = await world.agent([], model=None)
    session = await agent.session(".")
    assert await session.facts() == []
    with pytest.raises(ThenceError):
        await session.send("go")


async def test_a_failed_run_is_no_obstacle(world: World):
    """§1: send settles the open turn of a run that failed, and goes on."""

    def look() -> str:
        return "seen"

    session = await world.session([reply(calls=[call("look")]), bad(), reply("ok")], [look])
    with pytest.raises(RunFailed):
        await session.send("one")
    assert (await session.send("two")).text == "ok"
    facts = await check_session(session)
    assert kinds(facts) == [
        "run.configured", "user.message", "model.turn", "tool.result", "turn.ended",
        "user.message", "model.turn", "turn.ended",
    ]  # fmt: skip
    closed = stored(facts[4])
    assert closed["status"] == "failed" and closed["code"] == "LLM_ERROR"
    assert [run.status for run in await session.runs()] == ["failed", "completed"]
