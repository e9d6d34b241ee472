"""A scoped agent shares the file with its parent: who is busy, who ends with whom (§1, §8)."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from thence import HookContext, RunInterrupted, SessionBusy, SessionClosed, SessionOptions
from thence.host import passivating
from thence.testing import call, reply

from ..kit import Both, Gate, World, check_session, results, until
from .kit import ids, scoped


class Held:
    """Sessions ``a`` and ``b`` of one file, each of a tenant of its name; whoever sends waits in a tool."""

    def __init__(self, world: World) -> None:
        self.world, self.gates = world, {"a": Gate(), "b": Gate()}

    async def open(self) -> Held:
        def slow(name: str) -> str:
            self.gates[name].wait()
            return "landed"

        async def answer(request: Any) -> Any:
            said = request.messages[0].text
            return reply("done") if len(request.messages) > 1 else reply(calls=[call("slow", {"name": said})])

        self.agent = await self.world.agent([answer] * 8, tools=[slow])
        for name in ("a", "b"):
            await self.agent.session("/w", SessionOptions(session_id=name, tenant_id=name))
        self.tenant = scoped(self.agent, tenant_id="a")
        return self

    async def start(self, agent: Both, name: str) -> asyncio.Future[Any]:
        """A run that is in its tool; ``gates[name].open()`` lets it end."""
        session = await agent.resume_session(name)
        task: asyncio.Future[Any] = asyncio.ensure_future(session.send(name))
        await self.gates[name].came()
        return task

    def open_all(self) -> None:
        for gate in self.gates.values():
            gate.open()


@pytest.mark.parametrize("first", ["agent", "tenant"])
async def test_one_is_busy_for_the_other(world: World, first: str):
    held = await Held(world).open()
    one, other = (held.agent, held.tenant) if first == "agent" else (held.tenant, held.agent)
    task = await held.start(one, "a")
    with pytest.raises(SessionBusy):
        await (await other.resume_session("a")).send("me too")
    assert [info.busy for info in await held.agent.list_sessions()] == [True, False]
    assert [info.busy for info in await held.tenant.list_sessions()] == [True]
    held.open_all()
    assert (await task).text == "done"
    assert (await (await other.resume_session("a")).send("a")).text == "done"


async def test_it_reaches_its_parents_run_of_a_session_that_it_sees(world: World):
    held = await Held(world).open()
    task = await held.start(held.agent, "a")
    assert await (await held.tenant.resume_session("a")).cancel() is True
    held.open_all()
    assert (await task).status == "cancelled"


@pytest.mark.parametrize("how", ["close", "passivate"])
async def test_it_ends_with_what_was_started_through_it_and_nothing_else(world: World, how: str):
    held = await Held(world).open()
    mine, theirs = await held.start(held.tenant, "a"), await held.start(held.agent, "b")
    session = await held.tenant.resume_session("a")
    ending = asyncio.ensure_future(getattr(held.tenant, how)())
    await until(lambda: held.tenant.is_closed)
    held.gates["a"].open()
    ended = await ending
    with pytest.raises(RunInterrupted):
        await mine
    assert session.is_closed and not held.agent.is_closed and not theirs.done()
    if how == "passivate":
        assert (ended.released, ended.left, ended.file_complete) == (("a",), (), False)
    for attempt in (held.tenant.list_sessions(), held.tenant.resume_session("a"), session.history()):
        with pytest.raises(SessionClosed):
            await attempt
    with pytest.raises(SessionClosed):
        held.tenant.raw.scoped(principal="p")
    held.open_all()
    assert (await theirs).text == "done"
    assert await ids(held.agent) == ["a", "b"] and await ids(scoped(held.agent, tenant_id="a")) == ["a"]
    await held.tenant.close()  # once more


async def test_closing_a_scoped_agent_leaves_its_parents_run_of_the_same_session_alone(world: World):
    held = await Held(world).open()
    task = await held.start(held.agent, "a")
    await held.tenant.resume_session("a")
    await held.tenant.close()
    held.open_all()
    assert (await task).text == "done"


async def test_closing_a_scoped_agent_leaves_its_parents_async_tools_alone(world: World):
    gate = Gate()

    async def slow() -> str:
        await gate.await_()
        return "landed"

    session = await world.session([reply(calls=[call("slow")]), reply("done")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await scoped(world._agents[-1], tenant_id="a").close()
    gate.open()
    assert (await task).text == "done"
    assert results(await check_session(session)) == [("t1-r1-c0", True, "landed")]


async def test_passivating_one_never_says_that_its_parents_file_is_complete(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(passivating, "_is_one_file", lambda path: True)
    agent = await world.agent()
    assert (await scoped(agent, tenant_id="a").passivate()).file_complete is False
    assert (await agent.passivate()).file_complete is True


async def test_closing_one_in_between_ends_those_scoped_from_it(world: World):
    held = await Held(world).open()
    inner, sibling = scoped(held.tenant, principal=None), scoped(held.agent, tenant_id="a")
    task = await held.start(inner, "a")
    ending = asyncio.ensure_future(held.tenant.close())
    await until(lambda: inner.is_closed)
    held.open_all()
    await ending
    with pytest.raises(RunInterrupted):
        await task
    assert not sibling.is_closed and await ids(sibling) == ["a"]


@pytest.mark.parametrize("how", ["close", "passivate"])
async def test_it_ends_with_its_parent(world: World, how: str):
    held = await Held(world).open()
    inner = scoped(held.tenant, principal=None)
    session, task = await inner.resume_session("a"), await held.start(inner, "a")
    ending = asyncio.ensure_future(getattr(held.agent, how)())
    await until(lambda: held.agent.is_closed)
    assert held.tenant.is_closed and inner.is_closed and session.is_closed
    held.open_all()
    ended = await ending
    with pytest.raises(RunInterrupted):
        await task
    if how == "passivate":
        assert ended.file_complete and ended.released == ("a",)
    with pytest.raises(SessionClosed):
        await inner.list_sessions()
    await inner.close()


async def test_last_words_are_said_once_when_the_scoped_agent_closes(world: World):
    agent = await world.agent([reply("ok")] * 3)
    told: list[str] = []

    def told_end(context: HookContext) -> None:
        told.append(context.session_id)

    tenant = scoped(agent, tenant_id="a")
    for through, name in ((tenant, "mine"), (agent, "other")):
        session = await through.session("/w", SessionOptions(session_id=name))
        session.raw.register_hook("session_end", told_end)
        await session.send("go")
    await tenant.close()
    assert told == ["mine"]
    await agent.close()
    assert told == ["mine", "other"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("closes", ["tenant", "agent"])
async def test_guard_processes_end_with_the_agent_that_has_them(
    world: World, closes: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "turn"))
    monkeypatch.setenv("THENCE_TEST_SPENT", str(world.folder / "spent"))
    agent = await world.agent([reply("ok")] * 4)
    tenant = scoped(agent, tenant_id="a")
    pids = {}
    for through, name in ((tenant, "mine"), (agent, "other")):
        options = SessionOptions(
            session_id=name,
            budget_guard="budgets:Cap",
            budget_guard_isolation="process",
            budget_guard_timeout_ms=20_000,
        )
        session = await through.session("/w", options)
        run = await session.send("go")
        [hit] = [e for e in await session.run_events(run.run_id) if e.type == "budget_threshold_hit"]
        pids[name] = int(hit.payload["consumed"])
    await (tenant if closes == "tenant" else agent).close()
    await until(lambda: not alive(pids["mine"]))
    if closes == "agent":
        await until(lambda: not alive(pids["other"]))
    else:
        assert alive(pids["other"])


async def test_one_that_is_not_closed_leaves_nothing_behind(world: World):
    agent = await world.agent()
    left = weakref.ref(scoped(agent, tenant_id="a").raw._core)
    gc.collect()
    assert left() is None
