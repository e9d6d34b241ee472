"""Waits and tools that are over their time while nobody has the run (§5, §7, §10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import PermissionPolicy, SessionOptions, tool

from ..kit import Gate, check_session, results, stored
from ..resume.kit import calls, done
from .kit import C0, C1, NOT_IN_TIME, Desk, asks, ended_well, events_of, ids
from .test_meeting_more import W, stopped_with_an_open_wait


async def test_recover_does_all_of_an_interrupted_run_whose_wait_is_overdue(desk):
    """§7, §10: every interrupted run is resumed and every deadline judged, by one call, not by the next one."""
    here: Desk = desk(
        [calls("put:0", "look:1"), done()], permission_policy=asks("put", timeout_ms=60_000)
    )  # fmt: skip
    dead = await stopped_with_an_open_wait(here, "interrupt")
    here.later(60_001)
    session = await here.reopen()
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    [one] = await here.agent.recover(options=give)
    assert (one.run_id, one.error, one.result.status) == (dead, None, "completed")
    assert results(await check_session(session))[0] == (C0, False, NOT_IN_TIME)
    assert len(await events_of(session, one.result.run_id, "confirmation_timeout")) == 1
    assert C0 not in here.effects.times() and await session.waits() == []


@pytest.mark.parametrize("late_ms", [59_999, 60_000])
async def test_recover_leaves_an_interrupted_run_parked_whose_wait_is_not_overdue(desk, late_ms: int):
    """§10: until its deadline, and on the millisecond, it can be answered."""
    here: Desk = desk([calls("put:0", "look:1"), done()], permission_policy=asks("put", timeout_ms=60_000))
    await stopped_with_an_open_wait(here, "interrupt")
    here.later(late_ms)
    session = await here.reopen()
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    [one] = await here.agent.recover(options=give)
    assert (one.error, one.result.status, ids(one.result)) == (None, "parked", [W])
    await session.confirm(C0, True)
    [one] = await here.agent.recover(options=give)
    assert one.result.status == "completed" and here.effects.times()[C0] == 1


# ------------------------------------------------------------------ tools


class Slow:
    """A tool that goes on although its time is over, one that waits for a person, and in which order they ended."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.order: list[str] = []

    def tools(self) -> list[Any]:
        @tool(timeout_ms=60)
        def slow(n: int) -> str:
            self.gate.wait()
            self.order.append("slow")
            return "too late"

        @tool(workspace=True, timeout_ms=15_000)
        def ship(n: int) -> str:
            self.order.append(f"ship {n}")
            return "shipped"

        return [slow, ship]


def desk_of(desk: Any, slow: Slow, *more: Any, **options: Any) -> Desk:
    script = [calls("slow:0", "ship:1"), *more, done()]
    made: Desk = desk(script, tools=slow.tools(), permission_policy=asks("ship"), **options)
    return made


@pytest.mark.parametrize("who", ["the same session", "another session object", "another agent"])
async def test_a_call_waits_for_a_tool_that_was_late_before_the_run_parked(desk, who: str):
    """§5: the next non-read call waits for it and says so, whoever goes on with the run in this process."""
    slow = Slow()
    here = desk_of(desk, slow)
    session, result = await here.parked()
    if who == "another agent":
        session = await here.reopen()
    elif who == "another session object":
        session = await here.session("s")
    await session.confirm(C1, True)
    task = asyncio.ensure_future(session.resume_run(result.run_id))
    await asyncio.sleep(0.5)
    assert slow.order == [] and not task.done()
    slow.gate.open()
    assert (await task).status == "completed"
    assert slow.order == ["slow", "ship 1"]
    facts = await ended_well(session, result.run_id)
    metadata = {fact.key: stored(fact)["metadata"] for fact in facts if fact.kind == "tool.result"}
    assert metadata[C1]["late"] == {"waited_for": ["slow"], "still_running": False}


async def test_a_late_tool_of_another_session_or_turn_is_not_waited_for(desk):
    """§5: it would be waited for as long as the call has time, which may be for ever."""
    slow = Slow()
    here = desk_of(desk, slow, calls("ship:2"), done())
    session, _ = await here.parked()
    assert await session.cancel() is True
    for name in ("s", "other"):
        session = await here.open(name, permission_policy=PermissionPolicy())
        assert (await session.send("Again.")).status == "completed"
        facts = await check_session(session)
        assert not any("late" in stored(fact)["metadata"] for fact in facts if fact.kind == "tool.result")
        here.script = [calls("ship:3"), done()]
    assert slow.order == ["ship 2", "ship 3"]
    slow.gate.open()


async def test_what_is_verified_after_a_parking_waits_for_a_late_tool_too(desk):
    """§5: what it still writes would not be what is verified."""
    slow = Slow()

    def verifier(context: Any) -> bool:
        slow.order.append("verified")
        return True

    here = desk_of(desk, slow, verifier=verifier)
    here.script = [calls("ship:0"), calls("slow:0", "put:1"), done()]
    here.options["permission_policy"] = asks("put")
    session, result = await here.parked()
    await session.confirm("t1-r2-c1", False)
    task = asyncio.ensure_future(session.resume_run(result.run_id))
    await asyncio.sleep(0.5)
    assert slow.order == ["ship 0"] and not task.done()
    slow.gate.open()
    assert (await task).status == "completed"
    assert slow.order == ["ship 0", "slow", "verified"]
