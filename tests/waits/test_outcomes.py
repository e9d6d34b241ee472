"""A started `once` call found on resume (§7, §10): a person says what happened; it is never run on a guess."""

from __future__ import annotations

from typing import Any

import pytest

from thence import WaitError

from ..kit import World, check_log, check_session, results
from ..resume.hand import by_hand, dies_at
from ..resume.kit import Again, Tools, calls, done, last_run
from .kit import C0, C1, C2, ids, wait_error

W = f"{C0}-w1"

CHARGE = [calls("charge:5", "add:2", "look:3"), done()]
RAN = dies_at("inflight_land", when="before")


async def unknown(world: World, before: Tools, after: Tools) -> tuple[Any, Any, str]:
    """A session whose `once` call was started by a process that died in it, and which was then resumed."""
    by_hand(world.db, CHARGE, wrap=RAN, tools=before)
    assert before.keys() == [C0]
    dead = last_run(world.db) or ""
    agent = await world.agent(model=Again(CHARGE), tools=after.all(), durability="process")
    session = await agent.resume_session("s")
    result = await session.resume_run(dead)
    return session, result, dead


async def test_a_started_once_call_asks_what_happened(world: World):
    """§7: it opens a wait instead of running; later calls wait for it, later reads run."""
    after = Tools()
    session, result, dead = await unknown(world, Tools(), after)
    assert (result.status, ids(result)) == ("parked", [W]) and result.run_id != dead
    [wait] = result.waits
    assert (wait.kind, wait.subject, wait.tool, dict(wait.arguments)) == ("unknown_outcome", C0, "charge", {"n": 5})
    assert wait.run_id == result.run_id and wait.deadline_ms is None
    assert after.keys() == [C2]
    assert [run.state for run in await session.runs()] == ["superseded", "parked"]
    check_log(await session.facts())


@pytest.mark.parametrize(
    ("value", "ok", "text"),
    [
        ({"outcome": "run"}, True, "charge 5"),
        ({"outcome": "done", "result": "paid 5"}, True, "paid 5"),
        ({"outcome": "done", "result": {"id": 1}}, True, '{"id":1}'),
        ({"outcome": "failed", "error": "card declined"}, False, "card declined"),
    ],
    ids=lambda value: value["outcome"] if isinstance(value, dict) else None,
)  # fmt: skip
async def test_what_a_person_may_say_about_it(world: World, value: Any, ok: bool, text: str):
    """§10: run it now, it was done with this result, or it failed; also after a restart."""
    before, after = Tools(), Tools()
    session, result, _ = await unknown(world, before, after)
    await session.answer(W, value, by="ann")
    for agent in world._agents:
        await agent.close()
    last = Tools()
    agent = await world.agent(model=Again(CHARGE), tools=last.all(), durability="process")
    session = await agent.resume_session("s")
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 3)
    assert last.keys() == ([C0] if value["outcome"] == "run" else []) + [C1]
    if value["outcome"] == "run":
        assert last.ran[0].idempotency_key == before.ran[0].idempotency_key
    found = results(await check_session(session))
    assert [key for key, _, _ in found] == [C0, C1, C2] and found[0][1] is ok and text in found[0][2]
    assert not ok or found[0][2] == text
    assert await session.waits() == []


async def test_what_is_no_answer_about_an_outcome(world: World):
    """§10, public API: ValueError or TypeError naming `value`; an approval is no answer to this."""
    session, _, _ = await unknown(world, Tools(), Tools())
    wrong: list[Any] = [
        True, False, None, "run", {}, [], {"approved": True}, {"outcome": "maybe"}, {"outcome": "done", "resutl": 1},
        {"outcome": "failed"}, {"outcome": "failed", "error": 5}, {"outcome": None}, {"outcome": "done", "result": {1}},
    ]  # fmt: skip
    taken: list[Any] = []
    for value in wrong:
        try:
            await session.answer(W, value)
        except (ValueError, TypeError) as error:
            if "value" not in str(error):
                taken.append(error)
        except WaitError as error:
            taken.append(error)
        else:
            taken.append(value)
    assert not taken
    with wait_error("WAIT_NOT_FOUND"):
        await session.confirm(C0, True)
    assert [wait.state for wait in await session.waits()] == ["open"]


async def test_run_it_now_and_dying_again_asks_again(world: World):
    """§7: a second death in the call is a second unknown outcome; the first answer is not used twice."""
    session, result, _ = await unknown(world, Tools(), Tools())
    await session.answer(W, {"outcome": "run"})
    for agent in world._agents:
        await agent.close()
    tools = Tools()
    by_hand(world.db, CHARGE, resume=result.run_id, wrap=RAN, tools=tools)
    assert tools.keys() == [C0]
    last = Tools()
    agent = await world.agent(model=Again(CHARGE), tools=last.all(), durability="process")
    session = await agent.resume_session("s")
    again = await session.resume_run(result.run_id)
    assert (again.status, ids(again), last.keys()) == ("parked", [f"{C0}-w2"], [])
    await session.answer(f"{C0}-w2", {"outcome": "done", "result": "paid"})
    assert (await session.resume_run(again.run_id)).status == "completed"
    assert results(await check_session(session))[0] == (C0, True, "paid") and last.keys() == [C1]


async def test_a_dead_resume_that_had_asked_is_not_asked_twice(world: World):
    """§7: parked is parked, whoever opens the file next; resuming by the first run's id finds its newest descendant."""
    session, result, dead = await unknown(world, Tools(), Tools())
    for run_id in (dead, result.run_id):
        with pytest.raises(Exception, match=W):
            await session.resume_run(run_id)
    await session.answer(W, {"outcome": "done", "result": "paid"})
    again = await session.resume_run(dead)
    assert (again.status, again.run_id) == ("completed", result.run_id)
