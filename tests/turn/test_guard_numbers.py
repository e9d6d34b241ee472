"""Hanging guards by the hundred: counted, with bounds that only a broken engine misses (§6). `benchmarks/guards.py`
prints the figures themselves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from thence.effects import AskGuard, Flow
from thence.host.drive import AsyncMailbox, SyncMailbox, Take, adrive, drive
from thence.host.env import build_env
from thence.host.guard import Guarded, ask_guard, stuck_threads
from thence.host.plain_world import PlainWorld
from thence.host.workers import Workers

WORKERS = Workers("numbers")
STORE: Any = None


class Calls:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def check_before_tool(self, session_id, tool_name):
        return self.function()


def take(until: float | None) -> Flow[Any]:
    return (yield Take(None if until is None else max(0.0, until - time.monotonic())))


def flow(guard: object, limit_ms: int, post: Any) -> Flow[Any]:
    return ask_guard(Guarded(guard, limit_ms), AskGuard("check_before_tool", "bash"), "s", post, take, bool)


def decide(guard: object, limit_ms: int) -> tuple[str, str, float]:
    """(decision, resource, seconds)"""
    mailbox, world = SyncMailbox(), PlainWorld(build_env(None))
    began = time.monotonic()
    decision = drive(flow(guard, limit_ms, mailbox.post), STORE, world, mailbox, WORKERS)
    return decision.decision, decision.resource, time.monotonic() - began


async def adecide(guard: object, limit_ms: int) -> Any:
    mailbox = AsyncMailbox.here()
    decision = await adrive(flow(guard, limit_ms, mailbox.post), STORE, PlainWorld(build_env(None)), mailbox, WORKERS)
    return decision.resource


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()
    end = time.monotonic() + 20
    while stuck_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not stuck_threads()


def test_a_hundred_hanging_checks_in_a_row_of_one_guard(gate: threading.Event):
    guard = Calls(lambda: gate.wait(60))
    said = [decide(guard, 50) for _ in range(100)]
    assert {decision for decision, _, _ in said} == {"deny"}
    resources = [resource for _, resource, _ in said]
    assert resources == ["budget_guard_timeout"] * 8 + ["budget_guard_unavailable"] * 92
    assert max(took for _, _, took in said) < 5 and stuck_threads() == 8


def test_a_hundred_checks_that_each_hang_for_a_while(gate: threading.Event):
    said = [decide(Calls(lambda: time.sleep(0.1)), 20) for _ in range(100)]
    assert [resource for _, resource, _ in said] == ["budget_guard_timeout"] * 100
    assert max(took for _, _, took in said) < 5


def test_no_allow_that_comes_late_counts(gate: threading.Event):
    allowed = [decide(Calls(lambda: time.sleep(0.003)), 1)[0] for _ in range(1000)]
    assert allowed.count("allow") == 0


def test_another_guard_decides_beside_sixty_three_and_is_refused_at_once_beside_sixty_four(gate: threading.Event):
    for _ in range(9):
        hung = Calls(lambda: gate.wait(60))
        for _ in range(7):
            decide(hung, 2)
    assert stuck_threads() == 63
    fine = [decide(Calls(lambda: None), 30_000) for _ in range(50)]
    assert [decision for decision, _, _ in fine] == ["allow"] * 50 and max(took for *_, took in fine) < 5
    decide(Calls(lambda: gate.wait(60)), 2)
    full = [decide(Calls(lambda: None), 30_000) for _ in range(50)]
    assert {resource for _, resource, _ in full} == {"budget_guard_unavailable"} and max(t for *_, t in full) < 5


async def test_the_event_loop_goes_on_beside_hung_guards(gate: threading.Event):
    """While checks of 50 ms hang, the loop turns many times in each."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.ensure_future(tick())
    guard = Calls(lambda: gate.wait(60))
    for number in range(8):
        before = turns
        assert await adecide(guard, 50) == "budget_guard_timeout"
        assert turns - before > 10, number
    ticking.cancel()
