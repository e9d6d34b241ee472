"""Parked runs over restarts and deaths (§7, §10): the same run, the same log, nothing twice."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from thence import PermissionPolicy, SessionOptions

from ..kit import World, check_log, kinds
from ..resume.eyes import head
from ..resume.hand import by_hand
from ..resume.kit import Again, Tools, calls, done, last_run, with_agent
from .kit import (
    C0,
    C1,
    C2,
    Desk,
    Plain,
    asks,
    ended_well,
    ids,
)

PUSH = 'bash:{"command":"git push origin"}'
POLICY = asks("bash(command=git push*)")


async def test_restarts_before_and_after_the_answer_change_nothing(desk, world: World, quick):
    """§4, §10: asked by one agent, answered by a second, gone on with by a third: the log of the undisturbed run."""
    here: Desk = desk([calls("look:0", PUSH, "put:2"), done()], permission_policy=POLICY)
    session, result = await here.parked()
    session = await here.reopen()
    assert ids(result) == [wait.id for wait in await session.waits()]
    assert here.model.requests == []
    await session.confirm(C1, True, by="ann")
    session = await here.reopen()
    assert [wait.state for wait in await session.waits()] == ["answered"]
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 3)
    assert here.effects.keys() == [C0, C1, C2] and len(here.model.requests) == 1
    await ended_well(session, result.run_id)
    await here.shut()

    (quick / "other").mkdir()
    other = World(world.face, quick / "other")
    there = Desk(other, here.script, permission_policy=POLICY)
    session, result = await there.parked()
    await session.confirm(C1, True, by="ann")
    await session.resume_run(result.run_id)
    await other.close()
    assert head(here.db) == head(there.db)


@pytest.mark.parametrize("approver", ["ann", "bob"])
async def test_the_idempotency_key_is_that_of_the_call(desk, quick, world: World, approver: str):
    """§7: SHA-256 of session, chain hash at the `model.turn` and position: whether it was asked about, and who said
    yes, is no part of it; that holds for the calls after it as well."""
    keys = []
    for name, policy in (("asked", POLICY), ("not asked", PermissionPolicy())):
        (quick / name).mkdir()
        other = World(world.face, quick / name)
        here = Desk(other, [calls(PUSH, "put:1"), done()], permission_policy=policy)
        session = await here.open()
        result = await session.send("Go.")
        if result.status == "parked":
            await session.confirm(C0, True, by=approver)
            result = await session.resume_run(result.run_id)
        assert result.status == "completed"
        keys.append(here.effects.idempotency)
        await other.close()
    assert keys[0].keys() == {C0, C1} and keys[0] == keys[1]


ASKS = """
@tool(effect="read")
def look(n: int) -> str: return f"look {n}"

@tool(effect=args[1])
def put(n: int, context: ToolContext) -> str:
    with open(args[0], "a") as file: file.write(context.call_key + chr(10))
    if args[2] == "dies": os.kill(os.getpid(), signal.SIGKILL)
    return f"put {n}"

def answer(request):
    if any(m.role == "tool" for m in request.messages): return reply("Done.")
    return reply("", [call("look", {"n": 0}), call("put", {"n": 1})])

import itertools
agent = Agent(db, model=ScriptedModel(itertools.repeat(answer)), tools=[look, put])
session = agent.session("/w", options(session_id="s", permission_policy=PermissionPolicy(ask=("put",))))
"""
PARKS = ASKS + 'result = session.send("Go."); say(result.run_id, result.status)\n'
GOES_ON = ASKS + "result = session.resume_run(args[3]); say(result.run_id, result.status, result.text)\n"
DIES_PARKED = PARKS + "os.kill(os.getpid(), signal.SIGKILL)\n"


def test_three_processes(spawn, quick):
    """§10, Shows 4: parked by a process that is gone (killed while parked), approved by a second one, gone on with by a
    third: the tool ran once, the run is the same."""
    db, effects = quick / "a.db", quick / "effects"
    first = spawn(DIES_PARKED, db, effects, "idempotent", "lives")
    run_id, status = first.line().split()
    first.finish(code=-signal.SIGKILL)
    assert status == "parked" and not effects.exists()
    second = spawn(
        ASKS + f'session.confirm("{C1}", True, by="second"); say("said")\n', db, effects, "idempotent", "lives"
    )
    second.expect("said")
    second.finish()
    assert not effects.exists(), "answering runs nothing"
    third = spawn(GOES_ON, db, effects, "idempotent", "lives", run_id)
    third.expect(f"{run_id} completed Done.")
    third.finish()
    assert effects.read_text().splitlines() == [C1]
    with Plain(db) as plain:
        assert plain.rows("SELECT run_id, state, tool_calls_count FROM runs") == [(run_id, "completed", 2)]
        assert plain.one("SELECT count(*) FROM branch") == 1


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_death_in_the_approved_call(spawn, quick, effect: str):
    """§7, §10: the approval is in the log, so nobody is asked for it again. A started `once` call asks what happened;
    any other runs again."""
    db, effects = quick / "a.db", quick / "effects"
    first = spawn(PARKS, db, effects, effect, "lives")
    run_id, status = first.line().split()
    first.finish()
    assert status == "parked"
    second = spawn(
        ASKS + f'session.confirm("{C1}", True)\n' + GOES_ON[len(ASKS) :], db, effects, effect, "dies", run_id
    )
    second.finish(code=-signal.SIGKILL)
    assert effects.read_text().splitlines() == [C1]
    ends = """
say(result.status, *[f"{wait.id}={wait.kind}" for wait in result.waits])
if result.status == "parked":
    session.answer(result.waits[0].id, {"outcome": "done", "result": "put 1"})
    result = session.resume_run(result.run_id)
say(result.status, len(session.runs()), result.tool_calls_count)
events = [e.type for e in session.run_events(result.run_id)]
say([f.kind for f in session.facts()].count("tool.result"), events.count("confirmation_required"))
"""
    third = spawn(ASKS + "result = session.resume_run(args[3])\n" + ends, db, effects, effect, "lives", run_id)
    if effect == "once":
        # the call had a confirmation before: this is its second wait
        third.expect(f"parked {C1}-w2=unknown_outcome")
    else:
        third.expect("completed")
    third.expect("completed 2 2")
    third.expect("2 0")
    third.finish()
    assert effects.read_text().splitlines() == [C1] * (1 if effect == "once" else 2)


def _go_on(db: Any, script: list[Any], tools: Tools, policy: PermissionPolicy) -> None:
    """Whatever the dead one left: approve what is asked, and go on until the turn has ended."""

    def body(agent: Any, wait: Any) -> None:
        session = wait(agent.resume_session("s", SessionOptions(permission_policy=policy)))
        for _ in range(5):
            facts = wait(session.facts())
            if kinds(facts)[-1] == "turn.ended":
                break
            for one in wait(session.waits()):
                if one.state == "open":
                    wait(session.answer(one.id, True))
            wait(session.resume_run(wait(session.runs())[-1].id))
        check_log(wait(session.facts()))
        assert wait(session.waits()) == []

    with_agent("sync", db, Again(script), tools, body)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_every_effect_of_parking_and_of_going_on(quick, when: str):
    """§4, §7, §10: die before or after each effect, first on the way to the wait, then on the way on from it. Whoever
    comes next ends with the log of the undisturbed run: one wait, one answer, one result."""
    script = [calls("look:0", "add:1", "look:2"), done()]
    policy = asks("add")
    given = {"permission_policy": policy}
    undisturbed = quick / "undisturbed.db"
    by_hand(undisturbed, script, given=given)
    _go_on(undisturbed, script, Tools(), policy)
    expected = head(undisturbed)
    for phase in ("parking", "going on"):
        for at in range(1, 200):
            db = quick / f"{phase[0]}{at}.db"
            tools = Tools()
            if phase == "parking":
                hand, _ = by_hand(db, script, given=given, at=at, when=when, tools=tools)
            else:
                by_hand(db, script, given=given, tools=tools)
                run_id = last_run(db) or ""
                _approve(db, policy)
                hand, _ = by_hand(db, script, given=given, resume=run_id, at=at, when=when, tools=tools)
            if len(hand.names) < at:
                break
            if last_run(db) is None:
                continue
            _go_on(db, script, tools, policy)
            assert head(db) == expected, (phase, at)
            assert all(count <= 2 for count in tools.times().values())
        assert at > 3, f"{phase}: nothing was counted"


def _approve(db: Any, policy: PermissionPolicy) -> None:
    def body(agent: Any, wait: Any) -> None:
        session = wait(agent.resume_session("s", SessionOptions(permission_policy=policy)))
        wait(session.confirm(C1, True))

    with_agent("sync", db, Again([]), Tools(), body)
