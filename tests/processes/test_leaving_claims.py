"""Whoever leaves in the middle of something short that claims a session leaves no claim behind (§1, §8)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from thence import AsyncAgent, PermissionPolicy, RunFailed, SessionBusy, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from .kit import Plain, verify, wait_for

SHORT = ("waive", "report_verification", "takeover", "cancel", "cancel_run")

CHILD = """
@tool(workspace=True)
def write(text: str) -> str: return "written"

@tool
def put(n: int) -> str: return "put"

OPERATIONS = {
    "waive": lambda session, digest: session.waive(digest, "why"),
    "report_verification": lambda session, digest: session.report_verification(digest, True),
    "takeover": lambda session, digest: session.takeover(),
    "cancel": lambda session, digest: session.cancel(),
    "cancel_run": lambda session, digest: session.cancel_run("r"),
}
makes = AsyncAgent if args[0] == "async" else Agent
holds_s = float(args[1])
def answer(request):
    if request.messages[-1].role == "tool": return reply("Done.")
    return reply("", [call("write", {"text": "x"}), call("put", {"n": 1})])
agent = makes(db, model=ScriptedModel([answer] * 9), tools=[write, put])

def slow(store):
    # the claim is in the file, and what it was made for is not
    commit, acommit = store.commit, store.acommit
    def claims(plan): return any(op.statement == "session_claim" for op in plan.ops)
    def plain(plan):
        returned = commit(plan)
        if claims(plan): say("claimed"); time.sleep(holds_s)
        return returned
    async def later(plan):
        returned = await acommit(plan)
        if claims(plan): say("claimed"); await asyncio.sleep(holds_s)
        return returned
    store.commit, store.acommit = plain, later
    return lambda: (setattr(store, "commit", commit), setattr(store, "acommit", acommit))

def held(name):
    # at the gate, or parked
    asks = PermissionPolicy(ask=("put",)) if name.startswith("cancel") else None
    return options(session_id=name, completion_gate=True, permission_policy=asks)
"""

SYNC = """
for name in OPERATIONS:
    session, digest = agent.session(".", held(name)), ""
    try: session.send("Go.", run_id="r" if name == "cancel_run" else None)
    except GateClosed as closed: digest = closed.digest
    fast = slow(agent._core.store)
    try:
        OPERATIONS[name](session, digest)
        say("nobody interrupted")
    except KeyboardInterrupt: say("KeyboardInterrupt")
    fast()
    hear()
agent.close()
"""

ASYNC = """
async def prepare(name):
    session, digest = await agent.session(".", held(name)), ""
    try: await session.send("Go.", run_id="r" if name == "cancel_run" else None)
    except GateClosed as closed: digest = closed.digest
    return session, digest

async def operate(name, session, digest):
    await OPERATIONS[name](session, digest)
    say("nobody interrupted")

for name in OPERATIONS:
    prepared = asyncio.run(prepare(name))
    fast = slow(agent._core.store)
    try: asyncio.run(operate(name, *prepared))
    except KeyboardInterrupt: say("KeyboardInterrupt")
    fast()
    hear()
asyncio.run(agent.close())
"""

DONE = {
    "waive": "SELECT count(*) FROM facts WHERE session_id = ? AND kind = 'gate.waived'",
    "report_verification": "SELECT count(*) FROM facts WHERE session_id = ? AND kind = 'verification.reported'",
    "takeover": "SELECT fence = 2 FROM session WHERE session_id = ?",
    "cancel": "SELECT count(*) FROM runs WHERE session_id = ? AND status = 'cancelled'",
    "cancel_run": "SELECT count(*) FROM runs WHERE session_id = ? AND status = 'cancelled'",
}


@pytest.mark.parametrize("face", ["sync", "async"])
def test_ctrl_c_in_a_short_claim_is_raised_once_the_session_is_free(
    spawn: Any, db: Path, plain: Callable[[], Plain], face: str
) -> None:
    child = spawn(CHILD + (SYNC if face == "sync" else ASYNC), face, 0.3)
    for name in SHORT:
        child.expect("claimed")
        child.kill(signal.SIGINT)
        child.expect("KeyboardInterrupt")
        eyes = plain()
        # the process lives: a claim in the file would count
        assert eyes.one("SELECT owner FROM session WHERE session_id = ?", name) is None, name
        assert eyes.one(DONE[name], name) == 1, name
        child.tell()
    child.finish(0)
    assert "Traceback" not in child.errors
    verify(db)


def test_a_second_ctrl_c_does_not_wait_and_the_session_is_let_go_all_the_same(
    spawn: Any, plain: Callable[[], Plain]
) -> None:
    child = spawn(CHILD + SYNC, "sync", 2.0)
    child.expect("claimed")
    for _ in range(2):
        # a signal that was not seen yet would swallow the next
        time.sleep(0.3)
        child.kill(signal.SIGINT)
    child.expect("KeyboardInterrupt")
    eyes = plain()
    assert eyes.one("SELECT owner FROM session") is not None
    wait_for(lambda: eyes.one("SELECT owner IS NULL FROM session"))
    assert eyes.one(DONE["waive"], "waive") == 1


# ------------------------------------------------------------------ tasks


@tool(workspace=True)
def write(text: str) -> str:
    return "written"


@tool
def put(n: int) -> str:
    return "put"


class Claims:
    """An agent with one session at the gate or parked, whose next claim waits until it is told to go on."""

    def __init__(self, db: Path, name: str) -> None:
        script = [reply("", [call("write", {"text": "x"}), call("put", {"n": 1})]), reply("Done.")]
        self.agent = AsyncAgent(db, model=ScriptedModel(script), tools=[write, put])
        self.name, self.claimed, self.go_on = name, asyncio.Event(), asyncio.Event()
        self._session: Any = None
        self._digest = ""

    async def prepare(self) -> Claims:
        asks = PermissionPolicy(ask=("put",)) if self.name.startswith("cancel") else None
        options = SessionOptions(session_id="s", completion_gate=True, permission_policy=asks)
        self._session = await self.agent.session("/w", options)
        try:
            await self._session.send("Go.", run_id="r")
        except RunFailed as closed:
            self._digest = getattr(closed, "digest", "")
        store: Any = self.agent._core.store
        commit = store.acommit

        async def held(plan: Any) -> Any:
            returned = await commit(plan)
            if any(op.statement == "session_claim" for op in plan.ops):
                self.claimed.set()
                await self.go_on.wait()
            return returned

        store.acommit = held
        return self

    def operate(self) -> Coroutine[Any, Any, Any]:
        session = self._session
        operations: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "waive": lambda: session.waive(self._digest, "why"),
            "report_verification": lambda: session.report_verification(self._digest, True),
            "takeover": session.takeover,
            "cancel": session.cancel,
            "cancel_run": lambda: session.cancel_run("r"),
        }
        return operations[self.name]()


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("how", ["once", "twice", "time-out", "all tasks"])
async def test_a_task_that_is_cancelled_in_a_short_claim_ends_when_the_session_is_free(
    db: Path, plain: Callable[[], Plain], name: str, how: str
) -> None:
    """The cancellation is not swallowed either, and whoever cancels every task of the loop takes nothing away."""
    claims = await Claims(db, name).prepare()

    async def operate() -> None:
        if how == "time-out":
            async with asyncio.timeout(0.05):
                await claims.operate()
        else:
            await claims.operate()

    task = asyncio.create_task(operate())
    await claims.claimed.wait()
    if how == "time-out":
        await asyncio.sleep(0.1)
    for _ in range(2 if how == "twice" else 1):
        for one in asyncio.all_tasks() - {asyncio.current_task()} if how == "all tasks" else {task}:
            if how != "time-out":
                one.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
    claims.go_on.set()
    with pytest.raises(TimeoutError if how == "time-out" else asyncio.CancelledError):
        await task
    eyes = plain()
    assert eyes.one("SELECT owner FROM session") is None
    assert eyes.one(DONE[name], "s") == 1
    await claims.agent.close()
    verify(db)


@pytest.mark.parametrize("name", SHORT)
async def test_a_task_that_is_cancelled_before_there_is_a_claim_changes_nothing(
    db: Path, plain: Callable[[], Plain], name: str
) -> None:
    """It waits for an operation that is on its way out: there is nothing yet to see through."""
    claims = await Claims(db, name).prepare()
    core: Any = claims.agent._core

    class Leaving:
        stopping = True

    core.live["s"] = Leaving()
    facts = plain().rows("SELECT * FROM facts")
    task = asyncio.create_task(claims.operate())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not claims.claimed.is_set() and plain().rows("SELECT * FROM facts") == facts
    del core.live["s"]
    await claims.agent.close()


async def test_taking_over_is_busy_while_this_process_does_something_short(db: Path) -> None:
    """§8: inside the owning process a claim counts while its registry holds the operation, forced or not."""
    claims = await Claims(db, "waive").prepare()
    task = asyncio.create_task(claims.operate())
    await claims.claimed.wait()
    with pytest.raises(SessionBusy):
        await claims._session.takeover(force=True)
    claims.go_on.set()
    await task
    await claims.agent.close()
