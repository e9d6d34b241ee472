"""A process that dies before each effect of a turn with a gate, of its resume, and of a waiver (§4, §5, §7)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import thence
from thence import Agent, AsyncAgent, Fact, GateClosed, HostEnvConfig, RunInterrupted, SessionOptions
from thence.host import running, waiving
from thence.host.resuming import resume_flow
from thence.host.sending import send_flow
from thence.testing import ScriptedModel

from ..crash.test_every_effect import Died, dying, is_beginning
from ..kit import check_log, check_messages, stored
from ..nursery import Process
from ..nursery import start as start_python
from .kit import TOOLS, read_pid, wait_until_gone, writes, written

MS = 1_700_000_000_000


def options(command: str = "true", **more: Any) -> SessionOptions:
    return SessionOptions(
        session_id="s", host_env=HostEnvConfig("t", MS), verify_commands=[command], instructions="i", **more
    )


class Dying:
    """Does one thing in a process that dies before its n-th effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, face: str) -> None:
        self.patch, self.path, self.face = monkeypatch, path, face
        self.kept: list[Any] = []
        self.effects = 0

    def __call__(self, method: str, *args: Any, before: int = 0, command: str = "true") -> bool:
        """Whether the process died. Errors of ours end it as well as results do."""
        counted = [0]
        with self.patch.context() as patch:
            for module, name, real in (
                (running, "send_flow", send_flow),
                (running, "resume_flow", resume_flow),
                (waiving, "tell_gate", waiving.tell_gate),
            ):
                patch.setattr(module, name, dying(real, before, counted, self.kept))
            try:
                if self.face == "sync":
                    self._sync(method, args, command)
                else:
                    asyncio.run(self._async(method, args, command))
            except Died:
                return True
            except GateClosed:
                return False
            finally:
                self.effects = counted[0]
        return False

    def _model(self) -> ScriptedModel:
        done = [fact for fact in facts_of(self.path) if fact.kind == "model.turn"] if self.path.exists() else []
        return ScriptedModel(writes("x")[len(done) :])

    def _sync(self, method: str, args: Any, command: str) -> None:
        agent = Agent(self.path, model=self._model(), tools=TOOLS)
        try:
            getattr(agent.session(self.path.parent, options(command)), method)(*args)
        finally:
            agent._core.live.clear()  # a dead process has no live operations
            agent.close()  # and the kernel drops its lock; here this does

    async def _async(self, method: str, args: Any, command: str) -> None:
        agent = AsyncAgent(self.path, model=self._model(), tools=TOOLS)
        try:
            await getattr(await agent.session(self.path.parent, options(command)), method)(*args)
        finally:
            agent._core.live.clear()
            await agent.close()


def facts_of(path: Path) -> list[Fact]:
    with Agent(path) as agent:
        return agent.session(None, options()).facts()


def finish(path: Path, command: str = "true") -> list[Fact]:
    """Go on with whatever is there, without dying, until the turn has ended or the gate is closed."""
    done = [fact for fact in facts_of(path) if fact.kind == "model.turn"]
    with Agent(path, model=ScriptedModel(writes("x")[len(done) :]), tools=TOOLS) as agent:
        session = agent.session(path.parent, options(command))
        runs = session.runs()
        try:
            result = session.resume_run(runs[-1].id) if runs else session.send("go")
        except GateClosed as error:
            assert error.digest == written("x")
        else:
            assert (result.text, result.status, result.tool_calls_count) == ("done", "completed", 1)
        check_messages(session.history())
        facts = session.facts()
    check_log(facts)
    return facts


def verified(facts: list[Fact]) -> list[bool]:
    return [stored(fact)["passed"] for fact in facts if fact.kind == "verification.reported"]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_resume_leaves_the_undisturbed_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, face: str):
    whole = Dying(monkeypatch, tmp_path / "whole.db", "sync")
    assert not whole("send", "go")
    facts = facts_of(whole.path)
    assert verified(facts) == [True] and facts[-1].kind == "turn.ended"
    step = 1 if face == "sync" else 3  # the flow is the same: the other driver is sampled
    for before in range(1, whole.effects + 1, step):
        process = Dying(monkeypatch, tmp_path / f"{before}.db", face)
        assert process("send", "go", before=before)
        assert is_beginning(facts_of(process.path), facts), f"died before effect {before}"
        assert finish(process.path)[-1].hash == facts[-1].hash, f"died before effect {before}"


@pytest.mark.slow
def test_a_gate_that_stays_closed_is_closed_whoever_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No end without a passed report or a waiver, wherever the process died; and then a waiver, and an end."""
    whole = Dying(monkeypatch, tmp_path / "whole.db", "sync")
    assert not whole("send", "go", command="false")
    facts = facts_of(whole.path)
    for before in range(1, whole.effects + 1):
        process = Dying(monkeypatch, tmp_path / f"{before}.db", "sync")
        assert process("send", "go", before=before, command="false")
        assert is_beginning(facts_of(process.path), facts)
        found = finish(process.path, "false")
        assert set(verified(found)) == {False} and found[-1].kind == "verification.reported"
        with Agent(process.path, tools=TOOLS) as agent:
            session = agent.session(None, options("false"))
            session.waive(written("x"), "why")
            assert session.resume_run(session.runs()[-1].id).status == "completed"


@pytest.mark.slow
def test_died_while_resuming_behind_a_closed_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = Dying(monkeypatch, tmp_path / "base.db", "sync")
    assert not base("send", "go", command="false")
    heads: set[str] = set()
    before = 0
    while True:
        before += 1
        process = Dying(monkeypatch, tmp_path / f"{before}.db", "sync")
        process.path.write_bytes(base.path.read_bytes())
        with Agent(process.path) as agent:
            run_id = agent.session(None, options()).runs()[-1].id
        died = process("resume_run", run_id, before=before)
        found = finish(process.path)
        assert verified(found) == [False, True]
        heads.add(found[-1].hash)
        if not died:
            break
    assert before > 8 and len(heads) == 1


def test_died_while_waiving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The waiver is there or it is not; the session is free either way."""
    base = Dying(monkeypatch, tmp_path / "base.db", "sync")
    assert not base("send", "go", command="false")
    seen: set[int] = set()
    before = 0
    while True:
        before += 1
        process = Dying(monkeypatch, tmp_path / f"{before}.db", "sync")
        process.path.write_bytes(base.path.read_bytes())
        died = process("waive", written("x"), "why", before=before, command="false")
        waived = sum(fact.kind == "gate.waived" for fact in facts_of(process.path))
        seen.add(waived)
        found = finish(process.path, "false")
        assert (found[-1].kind == "turn.ended") is bool(waived)
        if not died:
            break
    assert seen == {0, 1} and before > 4


def test_killed_during_a_verification_verifies_again(tmp_path: Path, child: Callable[..., Process]):
    (tmp_path / "work").mkdir()
    code = (
        "import sys\n"
        "from thence import *\n"
        "from thence.testing import *\n"
        "from tests.gate.kit import TOOLS, writes\n"
        "agent = Agent(sys.argv[1] + '/a.db', model=ScriptedModel(writes('x')), tools=TOOLS)\n"
        "options = SessionOptions(session_id='s', verify_commands=['echo $$ > pid; sleep 300'])\n"
        "agent.session(sys.argv[1] + '/work', options).send('go')\n"
    )
    process = child(code, tmp_path)
    pid = read_pid(tmp_path / "work" / "pid")
    process.kill()
    process.communicate()
    os.killpg(pid, signal.SIGKILL)  # nobody else does after a kill -9
    wait_until_gone(pid)
    with Agent(tmp_path / "a.db", tools=TOOLS) as agent:
        session = agent.session(None, SessionOptions(session_id="s", verify_commands=["grep -q x file"]))
        [run] = session.runs()
        assert (run.status, run.state, verified(session.facts())) == ("verifying", "interrupted", [])
        with pytest.raises(RunInterrupted):
            session.send("next")
        assert session.resume_run(run.id).status == "completed"
        assert verified(session.facts()) == [True]


@pytest.fixture
def child() -> Callable[..., Process]:
    """Starts a Python program that can import thence and these tests; arguments follow the code."""
    root = Path(__file__).resolve().parents[2]

    def start(code: str, *arguments: object) -> Process:
        path = f"{Path(thence.__file__).resolve().parents[1]}{os.pathsep}{root}"
        return start_python(["-c", code, *map(str, arguments)], env={**os.environ, "PYTHONPATH": path})

    return start
