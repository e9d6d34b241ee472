"""A process that dies before each effect of a turn that compacts, of its resume, and of ``compact()`` (§4, §5, §7).

Dying before an effect is dying after the one before it. The log that a resumed run leaves is the undisturbed one.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import thence
from thence import Agent, AsyncAgent, Fact, HostEnvConfig, SessionOptions
from thence.chat import Delta, Reply, Request
from thence.effects import AskModel
from thence.host import running
from thence.host.compacting import compact_flow
from thence.host.resuming import resume_flow
from thence.host.sending import send_flow

from ..crash.test_every_effect import Died, dying, is_beginning
from ..kit import PATIENCE_S, check_log, check_messages
from .kit import OVERFLOW, Counting, Long, Looks, compactions, is_summary_request, size

FLOWS = {"send_flow": send_flow, "resume_flow": resume_flow, "compact_flow": compact_flow}


class Narrow(Long):
    """Overflows by what it is sent, and not by how often it was asked."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        if not is_summary_request(request) and size(request) > self.window:
            raise OVERFLOW
        yield from super().stream(request)


class Case:
    """How a session is set up; ``prompts`` are sent before the one that dies."""

    def __init__(self, auto: bool, window: int, length: int, prompt: str, *prompts: str) -> None:
        self.auto, self.window, self.length, self.prompt, self.prompts = auto, window, length, prompt, prompts

    def model(self) -> Long:
        return Long() if self.auto else Narrow(self.window)

    def options(self) -> SessionOptions:
        limits: dict[str, Any] = {"auto_compact": True, "max_context_tokens": self.window // 4} if self.auto else {}
        return SessionOptions(
            session_id="s", host_env=HostEnvConfig("t", 1_700_000_000_000), budget_guard=Counting(), retry_base_ms=0,
            **limits,
        )  # fmt: skip

    def tools(self) -> list[Any]:
        return [Looks(self.length).tool()]

    def base(self, path: Path) -> Path:
        with Agent(path, model=self.model(), tools=self.tools(), durability="process") as agent:
            session = agent.session(path.parent, self.options())
            for prompt in self.prompts:
                session.send(prompt)
        return path


CASES = {
    "in a turn": Case(True, 10_000, 2000, "work 5"),
    "with the first request": Case(True, 10_000, 2000, f"work 2 {'b' * 3000}", "work 3"),
    "after an overflow": Case(False, 12_000, 2500, "work 6"),
}
NEAR = 9
"""How many effects on either side of a summary's request are tried each day; the others are tried in the slow lane."""


def points(around: int, effects: int, every: bool) -> list[int]:
    if every:
        return list(range(1, effects + 1))
    return [n for n in range(1, effects + 1) if abs(n - around) <= NEAR or n % 13 == 0]


def watched(real: Any, asked: list[int]) -> Any:
    """A flow that says with which of its effects a summary is asked for."""

    def flow(*arguments: Any) -> Any:
        inner, number = real(*arguments), 0
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = inner.throw(error) if error is not None else inner.send(answer)
            except StopIteration as stop:
                return stop.value
            number, error = number + 1, None
            if isinstance(effect, AskModel) and effect.quiet:
                asked.append(number)
            try:
                answer = yield effect
            except Exception as raised:
                error = raised

    return flow


class Process:
    """Does one thing in a process that dies before its n-th effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, case: Case, face: str = "sync") -> None:
        self.patch, self.path, self.case, self.face = monkeypatch, path, case, face
        self.kept: list[Any] = []
        self.effects = 0
        self.summaries: list[int] = []

    def __call__(self, method: str, *args: Any, before: int = 0) -> bool:
        """Whether the process died."""
        counted = [0]
        with self.patch.context() as patch:
            for name, real in FLOWS.items():
                patch.setattr(running, name, dying(watched(real, self.summaries), before, counted, self.kept))
            try:
                if self.face == "sync":
                    self._sync(method, args)
                else:
                    asyncio.run(self._async(method, args))
            except Died:
                return True
            finally:
                self.effects = counted[0]
        return False

    def _sync(self, method: str, args: Any) -> None:
        agent = Agent(self.path, model=self.case.model(), tools=self.case.tools(), durability="process")
        try:
            getattr(agent.session(self.path.parent, self.case.options()), method)(*args)
        finally:
            agent._core.live.clear()  # a dead process has no live operations
            agent.close()  # and the kernel drops its lock; here this does

    async def _async(self, method: str, args: Any) -> None:
        agent = AsyncAgent(self.path, model=self.case.model(), tools=self.case.tools(), durability="process")
        try:
            await getattr(await agent.session(self.path.parent, self.case.options()), method)(*args)
        finally:
            agent._core.live.clear()
            await agent.close()


def facts_of(path: Path, case: Case) -> list[Fact]:
    with Agent(path) as agent:
        return agent.session(None, case.options()).facts()


def finish(path: Path, case: Case) -> list[Fact]:
    """Go on with whatever is there, without dying."""
    with Agent(path, model=case.model(), tools=case.tools(), durability="process") as agent:
        session = agent.session(path.parent, case.options())
        runs = session.runs()
        if len(runs) > len(case.prompts):
            session.resume_run(runs[-1].id)
        else:
            session.send(case.prompt)
        check_messages(session.history())
        facts = session.facts()
    check_log(facts)
    return facts


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["near", "every"])
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("name", CASES)
def test_a_resume_leaves_the_undisturbed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, face: str, every: bool
):
    case = CASES[name]
    base = case.base(tmp_path / "base.db").read_bytes()

    def process(label: object, how: str = face) -> Process:
        path = tmp_path / f"{label}.db"
        path.write_bytes(base)
        return Process(monkeypatch, path, case, how)

    whole = process("whole", "sync")
    assert not whole("send", case.prompt)
    facts = facts_of(whole.path, case)
    assert len(compactions(facts)) == 1 and facts[-1].kind == "turn.ended"
    [around] = whole.summaries
    step = 1 if face == "sync" else 4  # the flow is the same: the other driver is sampled
    for before in points(around, whole.effects, every)[::step]:
        dead = process(before)
        assert dead("send", case.prompt, before=before)
        assert is_beginning(facts_of(dead.path, case), facts), f"died before effect {before}"
        assert finish(dead.path, case)[-1].hash == facts[-1].hash, f"died before effect {before}"


def test_dying_again_while_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Around the compaction: the one who resumes dies too, before each of its effects."""
    case = CASES["in a turn"]
    case.base(tmp_path / "empty.db")
    whole = Process(monkeypatch, tmp_path / "whole.db", case)
    assert not whole("send", case.prompt)
    facts = facts_of(whole.path, case)
    at = next(i for i, fact in enumerate(facts) if fact.kind == "compaction.done")
    first = Process(monkeypatch, tmp_path / "first.db", case)
    assert first("send", case.prompt, before=whole.summaries[0])
    assert len(facts_of(first.path, case)) == at, "all but the compaction is in the file"
    base = first.path.read_bytes()
    before = 0
    while True:
        before += 1
        dead = Process(monkeypatch, tmp_path / f"again {before}.db", case)
        dead.path.write_bytes(base)
        with Agent(dead.path) as agent:
            run_id = agent.session(None, case.options()).runs()[-1].id
        died = dead("resume_run", run_id, before=before)
        assert is_beginning(facts_of(dead.path, case), facts)
        assert finish(dead.path, case)[-1].hash == facts[-1].hash, f"died before effect {before}"
        if before > 40 or not died:
            break
    assert before > 15


def test_dying_in_a_compaction_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is there or it is not; the session is free either way, and the same again comes to the same."""
    case = Case(True, 40_000, 600, "next", "work 6")
    base = case.base(tmp_path / "base.db").read_bytes()
    whole = Process(monkeypatch, tmp_path / "whole.db", case)
    whole.path.write_bytes(base)
    assert not whole("compact")
    facts = facts_of(whole.path, case)
    assert [value["trigger"] for value in compactions(facts)] == ["request"]
    seen = set[int]()
    for before in range(1, whole.effects + 1):
        dead = Process(monkeypatch, tmp_path / f"{before}.db", case)
        dead.path.write_bytes(base)
        assert dead("compact", before=before)
        found = facts_of(dead.path, case)
        seen.add(len(found))
        assert is_beginning(found, facts)
        assert not Process(monkeypatch, dead.path, case)("compact")
        assert facts_of(dead.path, case)[-1].hash == facts[-1].hash
    assert seen == {len(facts) - 1} and whole.effects > 5, "one commit writes it and gives the session free"


def test_killed_during_a_summary(tmp_path: Path):
    """A real process, a real signal: the next one summarises again."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from thence import Agent, SessionOptions\n"
        "from tests.compaction.kit import Long, Looks\n"
        "def summary(request):\n"
        "    Path(sys.argv[1] + '.asked').touch()\n"
        "    time.sleep(300)\n"
        "agent = Agent(sys.argv[1], model=Long(summary), tools=[Looks().tool()])\n"
        "options = SessionOptions(session_id='s', auto_compact=True, max_context_tokens=1500)\n"
        "agent.session('.', options).send('work 8')\n"
    )
    path = tmp_path / "a.db"
    root = Path(__file__).resolve().parents[2]
    search = f"{Path(thence.__file__).resolve().parents[1]}:{root}"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], env={"PYTHONPATH": search}, cwd=tmp_path)
    end = time.monotonic() + PATIENCE_S
    while not Path(f"{path}.asked").exists():
        assert time.monotonic() < end and child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    model = Long()
    with Agent(path, model=model, tools=[Looks().tool()]) as agent:
        session = agent.resume_session("s")
        assert compactions(session.facts()) == []
        result = session.resume_run(session.runs()[-1].id)
        assert result.text == "done work" and len(model.summaries) == 1
        assert len(compactions(session.facts())) == 1
        check_log(session.facts())
        check_messages(session.history())
