"""What a scoped agent is told of runs and waits of sessions that it does not see: nothing (§1, §7, §10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import (
    Agent,
    PermissionPolicy,
    RunIdentityConflict,
    RunInterrupted,
    SessionError,
    SessionNotFound,
    SessionOptions,
    WaitError,
    sessions,
)
from thence.testing import call, reply

from ..kit import Both, Gate, World
from ..resume.kit import Again
from .kit import file, rows, scoped, words


def put(n: int) -> str:
    return f"put {n}"


PARKS = [reply(calls=[call("put", {"n": 1})]), reply("done")]
ASK = PermissionPolicy(ask=["put"])
GIVEN = SessionOptions(permission_policy=ASK)


async def parked(world: World) -> tuple[Both, Both]:
    """An agent of the file and one of tenant a; a session of a and one of b, each with a parked run."""
    agent = await world.agent(model=Again(PARKS), tools=[put])
    for name in ("a", "b"):
        options = SessionOptions(session_id=f"of-{name}", tenant_id=name, permission_policy=ASK)
        assert (await (await agent.session("/w", options)).send("go", run_id=f"run-{name}")).status == "parked"
    return agent, scoped(agent, tenant_id="a")


async def test_waits_are_those_of_its_own_sessions(world: World):
    agent, tenant = await parked(world)
    assert [wait.session_id for wait in await agent.waits()] == ["of-a", "of-b"]
    assert [wait.session_id for wait in await tenant.waits()] == ["of-a"]
    assert await scoped(agent, tenant_id=None).waits() == []


async def test_recover_goes_on_with_its_own_answered_runs_only(world: World):
    agent, tenant = await parked(world)
    for name in ("of-a", "of-b"):
        session = await agent.resume_session(name, GIVEN)
        await session.answer("t1-r1-c0-w1", True)
    asked: list[str] = []

    def options(session_id: str) -> SessionOptions:
        asked.append(session_id)
        return GIVEN

    found = await tenant.recover(options)
    assert [(one.session_id, one.error) for one in found] == [("of-a", None)] and asked == ["of-a"]
    assert await tenant.recover(options) == []
    assert [one.session_id for one in await agent.recover(options)] == ["of-b"]


async def test_recover_goes_on_with_its_own_interrupted_runs_only(world: World):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "landed"

    agent = await world.agent(model=Again([reply(calls=[call("slow")]), reply("done")]), tools=[slow])
    tasks: list[asyncio.Future[Any]] = []
    for name in ("a", "b"):
        session = await agent.session("/w", SessionOptions(session_id=f"of-{name}", tenant_id=name))
        tasks.append(asyncio.ensure_future(session.send("go")))
        await gate.came(len(tasks))
        await session.interrupt()
    gate.open()
    for task in tasks:
        with pytest.raises(RunInterrupted):
            await task
    tenant = scoped(agent, tenant_id="b")
    assert [one.session_id for one in await tenant.recover()] == ["of-b"]
    assert [one.session_id for one in await agent.recover()] == ["of-a"]


async def test_an_answer_reaches_its_own_session_only(world: World):
    agent, tenant = await parked(world)
    mine = await tenant.resume_session("of-a", GIVEN)
    [theirs] = [wait for wait in await agent.waits() if wait.session_id == "of-b"]
    assert theirs.id == (await mine.waits())[0].id  # ids of waits are of their session
    await mine.confirm(theirs.subject, True)
    assert [(w.session_id, w.state) for w in await agent.waits()] == [("of-a", "answered"), ("of-b", "open")]
    with pytest.raises(WaitError):
        await mine.answer("t9-r1-c0-w1", True)
    assert await mine.waits(run_id="run-b") == []
    assert await mine.cancel_run("run-b") is False
    assert (await (await agent.resume_session("of-b", GIVEN)).current_run()).status == "parked"


# ------------------------------------------------------------------ run ids


async def two(world: World) -> tuple[Both, Both]:
    """Tenant a's session ``mine`` without a run, and tenant b's session ``of-b`` with the run ``taken``, whose facts
    begin where those of ``mine`` have ended."""
    agent = await world.agent(model=Again([reply("a secret answer"), reply("another")]))
    theirs = await agent.session("/secret", SessionOptions(session_id="of-b", tenant_id="b"))
    await theirs.send("go")
    await theirs.send("go", run_id="taken")
    tenant = scoped(agent, tenant_id="a")
    return agent, await tenant.session("/w", SessionOptions(session_id="mine"))


@pytest.mark.parametrize("prompt", ["go", "something else"])
async def test_a_run_id_that_another_holds_is_a_conflict_that_says_no_more(world: World, prompt: str):
    _, mine = await two(world)
    before = rows(world)
    for attempt in (mine.spawn_run_with_id("taken", prompt), mine.send(prompt, run_id="taken")):
        with pytest.raises(RunIdentityConflict) as error:
            await attempt
        assert "secret" not in words(error.value) and "of-b" not in words(error.value)
    assert rows(world) == before


async def test_anothers_run_is_as_unknown_as_one_that_is_nowhere(world: World):
    _, mine = await two(world)

    async def told(run_id: str) -> list[Any]:
        said: list[Any] = [
            await mine.run_snapshot(run_id),
            await mine.run_events(run_id),
            await mine.run_event_page(run_id),
            await mine.cancel_run(run_id),
            await mine.waits(run_id=run_id),
        ]
        for attempt in (
            mine.resume_run(run_id),
            mine.resume_run(run_id, run_id=f"new-{run_id}"),
            mine.spawn_recovery_with_run_id(run_id, f"spawned-{run_id}"),
            mine.tail_list(run_id),
        ):
            with pytest.raises(SessionError) as error:
                await attempt
            said.append(words(error.value).replace(run_id, "X"))
        return said

    assert await told("taken") == await told("other")


async def test_resuming_anothers_run_goes_on_as_with_an_unknown_id(world: World):
    """An id that the file does not know means the session's last turn (§7); so does one that is not there for it."""
    _, mine = await two(world)
    await mine.send("go", run_id="own")
    told = {}
    for run_id in ("taken", "unknown"):
        resumed = await mine.resume_run(run_id)
        spawned = await mine.spawn_recovery_with_run_id(run_id, f"rec-{run_id}")
        told[run_id] = (resumed.text, resumed.replayed, resumed.run_id, spawned.replayed, spawned.run.result_text)
    assert told["taken"] == told["unknown"] and told["taken"][:3] == ("a secret answer", True, "own")


async def test_a_run_of_another_session_of_its_own_is_named(world: World):
    agent, mine = await two(world)
    await mine.send("go", run_id="own")
    second = await scoped(agent, tenant_id="a").session("/w", SessionOptions(session_id="second"))
    with pytest.raises(SessionError, match="belongs to session 'mine'"):
        await second.resume_run("own")


# ------------------------------------------------------------------ sessions that move away


async def test_a_session_that_was_relabelled_is_not_there_any_more(world: World):
    agent = await file(world, [reply("ok")] * 9)
    tenant = scoped(agent, tenant_id="a")
    session = await tenant.resume_session("s0")
    await session.send("go", run_id="r")
    await agent.resume_session("s0", SessionOptions(tenant_id="b"))
    before = rows(world)
    attempts = {
        "history": (), "facts": (), "runs": (), "run_snapshot": ("r",), "run_events": ("r",), "events": (),
        "trace_events": (), "usage": (), "waits": (), "current_run": (), "emit": ({"type": "note", "payload": {}},),
        "answer": ("w", True), "steer": ("hello",), "interrupt": (), "passivate": (), "cancel": (),
        "cancel_run": ("r",), "takeover": (), "set_retention": ({},), "waive": ("d", "reason"),
        "report_verification": ("d", True),
        "send": ("again",), "resume_run": ("r",), "spawn_run_with_id": ("r2", "again"), "compact": (),
        "tail_list": ("r",),
    }  # fmt: skip
    for name, arguments in attempts.items():
        with pytest.raises(SessionNotFound, match="Session not found: s0"):
            await getattr(session, name)(*arguments)
    assert rows(world) == before
    for old in (tenant, scoped(tenant, principal="p")):
        with pytest.raises(SessionNotFound):
            await old.resume_session("s0")
    moved = await scoped(agent, tenant_id="b").resume_session("s0")
    assert (await moved.send("again")).text == "ok"


async def test_a_relabelling_in_the_same_moment_is_not_undone(world: World, monkeypatch: pytest.MonkeyPatch):
    """Between the look and the write of one that re-opens the session with a new workspace."""
    agent = await file(world)
    tenant = scoped(agent, tenant_id="a")
    real = sessions.relabel_session
    moved: list[bool] = []

    def late(session_pk: int, *more: Any) -> Any:
        if not moved:
            moved.append(True)
            with Agent(world.db) as other:
                other.resume_session("s0", SessionOptions(tenant_id="b"))
        return real(session_pk, *more)

    monkeypatch.setattr(sessions, "relabel_session", late)
    session = await tenant.resume_session("s0", workspace="/elsewhere")
    assert (await agent.list_sessions())[0].tenant_id == "b"
    with pytest.raises(SessionNotFound):
        await session.history()
