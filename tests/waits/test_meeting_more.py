"""Where features meet at a parked run (§1, §5, §7, §8, §9, §10): orders to stop, evictions, pieces of an output."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from thence import Defer, Hook, RunFailed, RunInterrupted, SessionOptions, ToolContext, tool

from ..hooks.hook_kit import BLOCKED, Told
from ..kit import PATIENCE_S, Both, Gate, check_session, results, until
from ..resume.kit import calls, done
from .kit import C0, C1, Desk, Plain, approve_all, asks, ended_well, ids, wait_error

W = f"{C0}-w1"


def around_commit(session: Both, statement: str, act: Callable[[], Any], when: str) -> None:
    """``act()`` once, right before or after the session's owner commits the first plan with this statement."""
    store = session.raw._core.agent.store
    commit, acommit = store.commit, store.acommit
    done_at: list[str] = []

    def is_due(plan: Any, at: str) -> bool:
        if done_at or at != when or all(op.statement != statement for op in plan.ops):
            return False
        done_at.append(at)
        return True

    def plain(plan: Any) -> Any:
        if is_due(plan, "before"):
            act()
        returned = commit(plan)
        if is_due(plan, "after"):
            act()
        return returned

    async def later(plan: Any) -> Any:
        if is_due(plan, "before"):
            await _awaited(act())
        returned = await acommit(plan)
        if is_due(plan, "after"):
            await _awaited(act())
        return returned

    store.commit, store.acommit = plain, later


def stopping_at(gate: Gate, answer: Any = "seen") -> Callable[[Any], Any]:
    """What a tool or a hook does that waits at the gate before it answers."""

    def does(told: Any) -> Any:
        gate.wait()
        return answer

    return does


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def waiting_for(db: Any, sql: str) -> None:
    """Block until the query gives something else than 0."""
    end = time.monotonic() + PATIENCE_S
    with Plain(db) as plain:
        while not plain.one(sql):
            assert time.monotonic() < end, sql
            time.sleep(0.005)


# ------------------------------------------------------------------ orders to stop


@pytest.mark.parametrize("order", ["cancel", "interrupt", "passivate"])
async def test_an_order_from_elsewhere_that_came_before_the_parking_is_obeyed(desk, order: str):
    """§8, §10: however late it comes, a run that can still be stopped is; no order is left for whoever goes on."""
    here: Desk = desk([calls("put:0"), done(), done("More.")], permission_policy=asks("put"))
    session = await here.open()
    other = await here.open()
    told: list[Any] = []

    def stop() -> Any:
        if order != "passivate":
            return getattr(other.raw, order)()
        # it waits until the run has let go, so it may not be waited for here
        if other.blocking:
            threading.Thread(target=lambda: told.append(other.raw.passivate()), daemon=True).start()
            return waiting_for(here.db, "SELECT count(*) FROM inbox")
        task = asyncio.ensure_future(other.raw.passivate())
        task.add_done_callback(lambda ended: told.append(ended.result()))
        return asyncio.to_thread(waiting_for, here.db, "SELECT count(*) FROM inbox")

    around_commit(session, "run_park", stop, "before")
    if order == "cancel":
        assert (await session.send("Go.")).status == "cancelled"
        assert await session.waits() == [] and (await session.send("More?")).status == "completed"
    else:
        with pytest.raises(RunInterrupted) as stopped:
            await session.send("Go.")
        assert [run.state for run in await session.runs()] == ["interrupted"]
        await session.confirm(C0, True)
        again = await session.resume_run(stopped.value.run_id)
        assert again.status == "completed" and here.effects.keys() == [C0]
    if order == "passivate":
        await until(lambda: told == [True])
    with Plain(here.db) as plain:
        assert plain.one("SELECT count(*) FROM inbox") == 0
    await check_session(session)


@pytest.mark.parametrize("who", ["here", "elsewhere"])
async def test_cancel_while_a_parked_run_is_being_woken(desk, who: str):
    """§1, §10: whoever cancels a run that somebody is about to go on with is not told that the session is busy."""
    here: Desk = desk([calls("put:0"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    await session.confirm(C0, True)
    gate, told = Gate(), Told()
    hooks = [Hook("session_start", lambda context: gate.wait()), Hook("run_end", told)]
    session = await here.reopen(hooks=hooks)
    other = session if who == "here" else await here.open(hooks=hooks)
    task = asyncio.ensure_future(session.resume_run(result.run_id))
    await gate.came()
    assert await other.cancel() is True
    gate.open()
    assert (await task).status == "cancelled"
    assert [context.status for context in told.contexts] == ["cancelled"]
    assert here.effects.ran == [] and await session.waits() == []
    await check_session(session)


@pytest.mark.parametrize("order", ["cancel", "interrupt"])
async def test_a_stop_while_a_hook_is_asked_opens_no_wait(desk, order: str):
    """§5: what the hook did not say yet must not count as a yes; it is asked again when the run goes on."""
    gate = Gate()
    block = {"decision": "block", "reason": "never"}
    hook = Told(stopping_at(gate, block))
    here: Desk = desk([calls("put:0"), done()], permission_policy=asks("put"), hooks=[Hook("pre_tool_use", hook)])
    session = await here.open()
    task = asyncio.ensure_future(session.send("Go."))
    await gate.came()
    assert await getattr(session, order)() is True
    try:
        if order == "cancel":
            assert (await task).status == "cancelled"
        else:
            with pytest.raises(RunInterrupted):
                await task
        assert "wait.opened" not in [fact.kind for fact in await session.facts()]
        assert await session.waits() == []
    finally:
        gate.open()
    if order == "interrupt":
        [run] = await session.runs()
        assert (await session.resume_run(run.id)).status == "completed"
        assert results(await check_session(session)) == [(C0, False, f"{BLOCKED}never")]


async def test_a_once_call_that_an_interrupt_kept_from_starting_has_not_started(desk):
    """§7: between the row that says started and the start: nothing ran, so it runs on resume, and nobody is asked."""
    here: Desk = desk([calls("charge:0"), done()])
    session = await here.open()
    around_commit(session, "inflight_start", lambda: session.raw.interrupt("just now"), "after")
    with pytest.raises(RunInterrupted) as stopped:
        await session.send("Go.")
    assert here.effects.ran == []
    with Plain(here.db) as plain:
        assert plain.rows("SELECT * FROM inflight") == []
    session = await here.reopen()
    again = await session.resume_run(stopped.value.run_id)
    assert (again.status, here.effects.keys()) == ("completed", [C0])
    assert results(await check_session(session)) == [(C0, True, "charge 0")]


# ------------------------------------------------------------------ eviction


async def stopped_with_an_open_wait(here: Desk, how: str) -> str:
    """The id of a run that ended, resumably, while a call was waiting for its confirmation."""
    gate = Gate()
    here.effects.on["look"] = stopping_at(gate)
    session = await here.open(max_execution_time_ms=3_600_000)
    task = asyncio.ensure_future(session.send("Go."))
    await gate.came()
    if how == "interrupt":
        await session.interrupt()
    else:
        operation: Any = session.raw._core.agent.live["s"]
        operation.world.station._run_deadline = 0.0
        operation.look_again()
        await until(lambda: operation.world.station.stopped is not None)
    gate.open()
    with pytest.raises(RunInterrupted if how == "interrupt" else RunFailed) as stopped:
        await task
    here.effects.on.clear()
    run_id = stopped.value.run_id
    assert isinstance(run_id, str)
    return run_id


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
@pytest.mark.parametrize("cap", [0, 1])
async def test_open_waits_outlive_the_eviction_of_their_run(desk, cap: int, how: str):
    """§9, §10: the run that asked is superseded and gone; what it asked is open, can be answered, and is acted on."""
    here: Desk = desk(
        [calls("put:0", "look:1"), done(), done("More.")], permission_policy=asks("put"),
        retention_limits={"max_runs_retained": cap},
    )  # fmt: skip
    dead = await stopped_with_an_open_wait(here, how)
    session = await here.reopen()
    result = await session.resume_run(dead)
    assert (result.status, ids(result)) == ("parked", [W]) and result.run_id != dead
    assert [run.id for run in await session.runs()] == [result.run_id]
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    assert await here.agent.recover(options=give) == [], "a run that waits was gone on with"
    assert [wait.id for wait in await session.waits()] == [W]
    again = await approve_all(session, result.run_id)
    assert (again.status, again.run_id) == ("completed", result.run_id)
    assert [key for key, ok, _ in results(await check_session(session)) if ok] == [C0, C1]
    assert here.effects.times()[C0] == 1 and await session.waits() == []
    assert (await session.send("More?")).status == "completed"


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
async def test_waits_of_an_evicted_run_are_closed_by_cancel(desk, how: str):
    """§9, §10: as those of any parked run."""
    here: Desk = desk(
        [calls("put:0", "look:1"), done()], permission_policy=asks("put"), retention_limits={"max_runs_retained": 0}
    )
    dead = await stopped_with_an_open_wait(here, how)
    session = await here.reopen()
    result = await session.resume_run(dead)
    assert ids(result) == [W]
    assert await session.cancel() is True and await session.waits() == []
    with wait_error("WAIT_CLOSED", "WAIT_NOT_FOUND"):
        await session.answer(W, True)
    assert results(await check_session(session))[0][:2] == (C0, False)


# ------------------------------------------------------------------ pieces of outputs


async def test_pieces_of_a_call_that_was_handed_over_do_not_stop_the_woken_run(desk):
    """§8, §10: they are void once it is parked; the run numbers new ones anew."""
    count = "SELECT count(*) FROM delta"

    @tool
    def order(n: int, context: ToolContext) -> str:
        context.progress("working")
        waiting_for(here.db, count)
        context.progress("more")
        raise Defer(f"order {n}")

    @tool
    def work(n: int, context: ToolContext) -> str:
        context.progress("half")
        context.progress("whole")
        waiting_for(here.db, count)
        return "worked"

    here: Desk = desk([calls("order:0", "look:1"), calls("work:1"), done()], tools=[order, work])
    here.effects.on["look"] = lambda key: time.sleep(0.2)  # longer than pieces are held back
    session, result = await here.parked()
    with Plain(here.db) as plain:
        assert plain.one(count) == 0
    await session.answer(W, "arrived")
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert [text for _, _, text in results(await ended_well(session, result.run_id))] == ["arrived", "", "worked"]
    with Plain(here.db) as plain:
        assert plain.one(count) == 0


async def test_pieces_of_an_output_that_is_complete_do_not_come_after_it(desk):
    """§8: what was not in the file when the call ended need not go there, and nothing would take it away again."""
    seen: list[int] = []

    @tool
    def work(n: int, context: ToolContext) -> str:
        context.progress("half")
        return "worked"

    def count(key: str) -> str:
        time.sleep(0.2)  # longer than pieces are held back
        with Plain(here.db) as plain:
            seen.append(plain.one("SELECT count(*) FROM delta"))
        return "counted"

    here: Desk = desk([calls("work:0"), calls("put:1"), done()], tools=[work])
    here.effects.on["put"] = count
    session = await here.open()
    assert (await session.send("Go.")).status == "completed" and seen == [0]
