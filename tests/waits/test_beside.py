"""A waiting call among others of the same answer (§5, §10): what still runs, what waits, in which order results are."""

from __future__ import annotations

import itertools

import pytest

from ..kit import kinds, results
from ..resume.kit import calls, done
from .kit import (
    C0,
    C1,
    C2,
    NOT_IN_TIME,
    Desk,
    Plain,
    approve_all,
    asks,
    ended_well,
    events_of,
    ids,
)

PUSH = 'bash:{"command":"git push origin"}'
POLICY = asks("bash(command=git push*)")


async def test_later_reads_run_and_all_else_waits(desk):
    """§10: later `read` calls of the same answer still run before parking, also behind a call that must wait."""
    script = [calls("look:0", PUSH, "look:1", "put:2", "look:3", "charge:4"), done()]
    here: Desk = desk(script, permission_policy=POLICY)
    session, result = await here.parked()
    assert sorted(here.effects.keys()) == ["t1-r1-c0", "t1-r1-c2", "t1-r1-c4"]
    assert ids(result) == [f"{C1}-w1"]
    with Plain(here.db) as plain:
        landed = plain.rows("SELECT call_key FROM calls_in_flight WHERE state = 'landed' ORDER BY 1")
        assert landed == [("t1-r1-c0",), ("t1-r1-c2",), ("t1-r1-c4",)]
    assert "tool.result" not in kinds(await session.facts())
    await session.confirm(C1, True)
    again = await session.resume_run(result.run_id)
    assert again.tool_calls_count == 6
    # what had landed is not run again; the rest ran in call order
    assert here.effects.keys()[3:] == ["t1-r1-c1", "t1-r1-c3", "t1-r1-c5"]
    found = results(await ended_well(session, result.run_id))
    assert [key for key, _, _ in found] == [f"t1-r1-c{n}" for n in range(6)] and all(ok for _, ok, _ in found)


@pytest.mark.parametrize("approved", [True, False])
async def test_B19_a_free_call_beside_a_gated_one_keeps_its_result(desk, approved: bool):
    """B19, §10: the finished output is there after the answer, also when somebody else gave it after a restart."""
    here: Desk = desk([calls("look:7", PUSH), done()], permission_policy=POLICY)
    session, result = await here.parked()
    session = await here.reopen()
    await session.confirm(C1, approved)
    assert (await session.resume_run(result.run_id)).status == "completed"
    found = results(await ended_well(session, result.run_id))
    assert found[0] == (C0, True, "look 7") and found[1][:2] == (C1, approved)
    assert here.effects.times() == ({C0: 1, C1: 1} if approved else {C0: 1})


async def test_parked_with_one_tool_at_a_time(desk):
    """§2, §10: `max_parallel_tools=1` changes nothing of it."""
    here: Desk = desk(
        [calls("look:0", PUSH, "look:1", "put:2"), done()], permission_policy=POLICY, max_parallel_tools=1
    )
    session, result = await here.parked()
    assert here.effects.keys() == [C0, C2]
    await session.confirm(C1, True)
    await session.resume_run(result.run_id)
    assert here.effects.keys() == [C0, C2, C1, "t1-r1-c3"]
    assert [key for key, _, _ in results(await ended_well(session, result.run_id))] == [C0, C1, C2, "t1-r1-c3"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
async def test_answers_in_any_order_results_in_call_order(desk, order: tuple[int, ...]):
    """§5, §10: three reads that are asked about are open at once; answered in any order, each as it was meant."""
    here: Desk = desk([calls("peek:0", "peek:1", "peek:2"), done()], permission_policy=asks("peek"))
    session, result = await here.parked()
    assert ids(result) == [f"{key}-w1" for key in (C0, C1, C2)]
    assert [wait.id for wait in await session.waits()] == ids(result)
    for number in order:
        await session.confirm(f"t1-r1-c{number}", number != 1)
    await session.resume_run(result.run_id)
    assert results(await ended_well(session, result.run_id)) == [
        (C0, True, "peek 0"), (C1, False, "Error: rejected by a person"), (C2, True, "peek 2")
    ]  # fmt: skip
    assert here.effects.times() == {C0: 1, C2: 1}


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restarts"])
async def test_two_asks_that_are_no_reads(desk, restart: bool):
    """§10: whether the second is asked about at once or after the first was answered, both are asked about before they
    run, they run in call order, and the results are in call order."""
    here: Desk = desk([calls("put:0", "put:1", "look:2"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    assert ids(result)[0] == f"{C0}-w1" and here.effects.keys() == [C2]
    if restart:
        session = await here.reopen()
    again = await approve_all(session, result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 3)
    assert here.effects.keys() == [C2, C0, C1]
    assert [key for key, _, _ in results(await ended_well(session, result.run_id))] == [C0, C1, C2]
    assert len(await events_of(session, result.run_id, "confirmation_required")) == 2


async def test_some_answered_is_not_all_answered(desk):
    """§7 table: waits still open: the run stays parked, and nothing of it runs."""
    here: Desk = desk([calls("peek:0", "peek:1"), done()], permission_policy=asks("peek"))
    session, result = await here.parked()
    await session.confirm(C1, True)
    with pytest.raises(Exception, match=f"{C0}-w1") as busy:
        await session.resume_run(result.run_id)
    assert f"{C0}-w1" in ids(busy.value) and here.effects.ran == []
    assert [wait.state for wait in await session.waits()] == ["open", "answered"]


async def test_one_answered_and_the_other_out_of_time(desk):
    """§10: all waits answered or past their deadline: it goes on."""
    here: Desk = desk([calls("peek:0", "peek:1"), done()], permission_policy=asks("peek", timeout_ms=1_000))
    session, result = await here.parked()
    await session.confirm(C1, True)
    here.later(1_001)
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert results(await ended_well(session, result.run_id)) == [(C0, False, NOT_IN_TIME), (C1, True, "peek 1")]
