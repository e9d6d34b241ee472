"""What a guard may hold of the process, and that none of its code runs anywhere but on its own thread (§6)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from thence import BudgetExhausted, RunFailed, SessionOptions
from thence.chat import Reply, Usage
from thence.host.guard import stuck_threads
from thence.testing import call, reply

from ..kit import Gate, World, until
from .guard_kit import Guard, act


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end, whatever happens; then no call is late any more."""
    made = Gate()
    yield made
    made.open()
    end = time.monotonic() + 20
    while stuck_threads() and time.monotonic() < end:
        time.sleep(0.01)


async def sessions_of(world: World, count: int, guards: list[Any], timeout_ms: int) -> list[Any]:
    agent = await world.agent([reply("ok")] * count)
    made = []
    for number in range(count):
        options = SessionOptions(budget_guard=guards[number % len(guards)], budget_guard_timeout_ms=timeout_ms)
        made.append(await agent.session(".", options))
    return made


async def denied(session: Any) -> str:
    with pytest.raises(BudgetExhausted) as error:
        await session.send("go")
    return error.value.resource


async def test_a_burst_of_sessions_with_one_hung_guard_leaves_eight_threads(world: World, gate: Gate):
    sessions = await sessions_of(world, 24, [Guard(llm=gate.wait)], 300)
    said = await asyncio.gather(*(denied(session) for session in sessions))
    assert gate.waiting == stuck_threads() == 8
    assert said.count("budget_guard_timeout") == 8 and said.count("budget_guard_unavailable") == 16


async def test_a_guard_that_is_slow_and_not_hung_serves_more_sessions_than_it_has_threads(world: World):
    guard = Guard(llm=lambda: time.sleep(0.05))
    sessions = await sessions_of(world, 20, [guard], 20_000)
    results = await asyncio.gather(*(session.send("go") for session in sessions))
    assert [result.status for result in results] == ["completed"] * 20


async def test_sixty_four_late_calls_are_the_most_of_a_process(world: World, gate: Gate):
    guards = [Guard(llm=gate.wait) for _ in range(9)]
    for guard in guards[:8]:
        for session in await sessions_of(world, 8, [guard], 10):
            assert await denied(session) == "budget_guard_timeout"
    assert stuck_threads() == 64
    (one,) = await sessions_of(world, 1, [Guard()], 20_000)
    began = time.monotonic()
    assert await denied(one) == "budget_guard_unavailable"
    assert time.monotonic() - began < 10  # at once, not after its 20 s
    gate.open()
    await until(lambda: stuck_threads() == 0)
    assert (await one.send("again")).status == "completed"


async def test_sixty_three_leave_a_place_for_all_others(world: World, gate: Gate):
    for guard in [Guard(llm=gate.wait) for _ in range(9)]:
        for session in await sessions_of(world, 7, [guard], 10):
            assert await denied(session) == "budget_guard_timeout"
    assert stuck_threads() == 63
    others = await sessions_of(world, 4, [Guard(), Guard()], 20_000)
    results = await asyncio.gather(*(session.send("go") for session in others))
    assert [result.status for result in results] == ["completed"] * 4


async def test_without_a_thread_it_is_a_deny(world: World, monkeypatch: pytest.MonkeyPatch):
    session = await world.session([reply("never")], budget_guard=Guard())

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    core = session.raw._core
    submit = core.agent.workers.submit

    def refuse(function: Any) -> None:
        if "body" in getattr(function, "__qualname__", "") or "SyncRunning" in getattr(function, "__qualname__", ""):
            submit(function)
        else:
            start(threading.current_thread())

    monkeypatch.setattr(core.agent.workers, "submit", refuse)
    assert await denied(session) == "budget_guard_unavailable"


class Shy:
    """Its method is found by code of its own."""

    def __init__(self, find: Any) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("check"):
            return self._find()
        raise AttributeError(name)


class Property:
    def __init__(self, find: Any) -> None:
        self.find = find

    @property
    def check_before_llm(self) -> Any:
        return self.find()


class Key(str):
    """Equal to ``decision`` after a long think."""

    think: Any = None

    def __eq__(self, other: object) -> bool:
        self.think()
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Wordless(Exception):
    think: Any = None

    def __str__(self) -> str:
        self.think()
        return "at last"


def leave() -> None:
    raise SystemExit(3)


def ways(act_: Any) -> dict[str, Any]:
    """Guards that do ``act_`` somewhere else than in their method."""
    key = Key("decision")
    key.think = act_
    wordless = Wordless()
    wordless.think = act_

    def fail() -> None:
        raise wordless

    return {
        "getattr": Shy(act_), "property": Property(act_), "key": Guard(llm=lambda: {key: "allow"}),
        "words": Guard(llm=fail),
    }  # fmt: skip


@pytest.mark.parametrize("way", list(ways(None)))
async def test_a_guard_that_hangs_outside_its_method_is_late_as_any(world: World, gate: Gate, way: str):
    session = await world.session([reply("never")], budget_guard=ways(gate.wait)[way], budget_guard_timeout_ms=200)
    ticks = 0
    task = asyncio.ensure_future(denied(session))
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert await task == "budget_guard_timeout"
    assert ticks >= 5, "the loop stood still"
    assert world.model.requests == []


@pytest.mark.parametrize("way", list(ways(None)))
async def test_a_guard_that_leaves_outside_its_method_is_a_deny(world: World, way: str):
    session = await world.session([reply("never")], budget_guard=ways(leave)[way])
    assert await denied(session) == "budget_guard_callback"
    assert world.model.requests == []


async def test_a_cancel_from_elsewhere_ends_the_wait_for_a_hung_guard(world: World, gate: Gate):
    session = await world.session([reply("never")], budget_guard=Guard(llm=gate.wait), budget_guard_timeout_ms=60_000)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    other = await (await world.agent([])).resume_session(session.session_id, SessionOptions(budget_guard=Guard()))
    began = time.monotonic()
    assert await other.cancel() is True
    assert (await task).status == "cancelled"
    assert time.monotonic() - began < 20  # not the 60 s of the guard


async def test_the_time_limit_of_a_run_ends_the_wait_for_a_hung_guard(world: World, gate: Gate):
    session = await world.session(
        [reply("never")], budget_guard=Guard(llm=gate.wait), budget_guard_timeout_ms=60_000, max_execution_time_ms=300
    )
    began = time.monotonic()
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert failed.value.code == "EXECUTION_TIMEOUT" and time.monotonic() - began < 20


async def test_an_answer_that_cannot_be_recorded_is_no_success_to_tell_of(world: World):
    guard = Guard()
    odd = Reply(text="odd", usage=Usage(total_tokens=7), stop_reason=5)  # type: ignore[arg-type]
    session = await world.session([odd, reply("ok", usage={"prompt_tokens": 1})], [act], budget_guard=guard)
    with pytest.raises(RunFailed):
        await session.send("go")
    assert [item[0] for item in guard.asked] == ["llm"]


async def test_a_guard_without_a_method_costs_no_thread(world: World, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    class Tools:
        check_before_llm = None

        def check_before_tool(self, session_id: str, name: str) -> None:
            asked.append(threading.current_thread().name)

    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=Tools())
    assert (await session.send("go")).text == "ok"
    assert len(asked) == 1
