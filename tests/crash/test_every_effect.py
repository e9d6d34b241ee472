"""A process that dies before its n-th effect, for every n (§4, §5, §7): what is there is a beginning of the undisturbed
log, and the next send goes on from it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, Fact, HostEnvConfig, ModelError, RunInterrupted, SessionOptions, ToolContext, tool
from thence.effects import IsSteered, Now, Read
from thence.host import running
from thence.host.sending import send_flow
from thence.testing import ScriptedModel, call, reply

from ..kit import check_log, check_messages, results

UNKNOWN, NOT_RUN = "outcome unknown", "not run"

QUESTIONS = (IsSteered, Now, Read)
"""Effects that change nothing: dying before one of them is dying before the next one that is none."""


class Died(BaseException):
    """The process is gone."""


class Ran:
    """Which calls really ran, by call key."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._lock = threading.Lock()
        self.busy = 0

    def tools(self) -> list[Any]:
        @tool(effect="read")
        def look(n: int, context: ToolContext) -> str:
            return self._run(context, f"saw {n}")

        @tool
        def act(n: int, context: ToolContext) -> str:
            return self._run(context, f"acted {n}")

        return [look, act]

    def _run(self, context: ToolContext, text: str) -> str:
        with self._lock:
            self.keys.append(context.call_key)
        return text


def looks(*numbers: int):
    return [call("look", {"n": n}) for n in numbers]


TURNS: dict[str, Callable[[], list[Any]]] = {
    "text": lambda: [reply("only text")],
    "reads": lambda: [reply("a", calls=looks(1, 2, 3)), reply("done")],
    "mixed": lambda: [
        reply("a", calls=[*looks(1, 2), call("act", {"n": 3}), call("act", {"n": 4}), *looks(5)]),
        reply("b", calls=[call("act", "{broken"), call("nope"), call("act", {"n": 6})]),
        reply("half", stop_reason="length"),
        reply("whole"),
    ],
    "retry": lambda: [ModelError("503", "503", retryable=True), reply(calls=[call("act", {"n": 1})]), reply("done")],
    "fatal": lambda: [reply(calls=[call("act", "{1"), call("act", "{2"), call("act", "{3"), call("act", {"n": 1})])],
    "failed": lambda: [reply(calls=looks(1)), ModelError("http_400", "400", retryable=False)],
}  # fmt: skip


class Guard:
    """Lets everything pass, so that its effects are among those that are interrupted."""

    def check_before_llm(self, session_id: str, tokens: int) -> None:
        return None

    def check_before_tool(self, session_id: str, name: str) -> None:
        return None


def options(**more: Any) -> SessionOptions:
    return SessionOptions(
        session_id="s", host_env=HostEnvConfig("t", 1_700_000_000_000), budget_guard=Guard(), retry_base_ms=0,
        max_parallel_tools=2, **more,
    )  # fmt: skip


def dying(
    real: Callable[..., Any],
    before: int,
    counted: list[int],
    kept: list[Any],
    uncounted: tuple[type[Any], ...] = (),
) -> Callable[..., Any]:
    """``send_flow`` that dies before its ``before``-th effect. The flow is kept: a dead process cleans nothing up."""

    def flow(*arguments: Any) -> Generator[Any, Any, Any]:
        inner = real(*arguments)
        kept.append(inner)
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = inner.throw(error) if error is not None else inner.send(answer)
            except StopIteration as stop:
                return stop.value
            if not isinstance(effect, uncounted):
                counted[0] += 1
                if counted[0] == before:
                    raise Died
            error = None
            try:
                answer = yield effect
            except Exception as raised:
                error = raised

    return flow


class Crash:
    """Runs a turn up to its n-th effect, in one face, and takes the process's locks away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, face: str) -> None:
        self.patch, self.path, self.face = monkeypatch, path, face
        self.kept: list[Any] = []
        self.effects = 0

    def send(self, script: list[Any], tools: list[Any], prompt: str, before: int, **how: Any) -> bool:
        """Whether the process died."""
        counted = [0]
        with self.patch.context() as patch:
            patch.setattr(running, "send_flow", dying(send_flow, before, counted, self.kept, QUESTIONS))
            died = (
                self._sync(script, tools, prompt, how)
                if self.face == "sync"
                else asyncio.run(self._async(script, tools, prompt, how))
            )
        self.effects = counted[0]
        return died

    def _sync(self, script: list[Any], tools: list[Any], prompt: str, how: dict[str, Any]) -> bool:
        agent = Agent(self.path, model=ScriptedModel(script), tools=tools)
        try:
            agent.session("/w", options()).send(prompt, **how)
        except Died:
            return True
        except Exception:
            return False
        finally:
            agent.close()  # the kernel drops the lock of a dead process; here this does
        return False

    async def _async(self, script: list[Any], tools: list[Any], prompt: str, how: dict[str, Any]) -> bool:
        agent = AsyncAgent(self.path, model=ScriptedModel(script), tools=tools)
        try:
            await (await agent.session("/w", options())).send(prompt, **how)
        except Died:
            return True
        except Exception:
            return False
        finally:
            await agent.close()
        return False


def undisturbed(folder: Path, name: str, prompt: str = "go") -> tuple[list[Fact], int]:
    """The whole log of a turn, and how many effects it has."""
    patch = pytest.MonkeyPatch()
    crash = Crash(patch, folder / f"whole {name}.db", "sync")
    crash.send(TURNS[name](), Ran().tools(), prompt, 0)
    with Agent(crash.path) as agent:
        return agent.resume_session("s", options()).facts(), crash.effects


def read(path: Path) -> list[Fact]:
    with Agent(path) as agent:
        return agent.resume_session("s", options()).facts()


def is_beginning(facts: list[Fact], whole: list[Fact]) -> bool:
    return [fact.hash for fact in facts] == [fact.hash for fact in whole[: len(facts)]]


def check_what_was_settled(facts: list[Fact], ran: Ran, before: int) -> None:
    """A call that ran never says 'not run'; one that says 'outcome unknown' had been started; a value is a value."""
    for key, ok, text in results(facts):
        if not key.startswith("t1-"):
            continue
        if NOT_RUN in text and "interrupted" in text:
            assert key not in ran.keys, f"{key} ran and is said not to have run (died before effect {before})"
        elif not ok and UNKNOWN not in text:
            assert key not in ran.keys  # refused
        elif ok:
            assert ran.keys.count(key) == 1


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("name", TURNS)
def test_died_before_the_nth_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, face: str):
    whole, effects = undisturbed(tmp_path, name)
    step = 1 if face == "sync" else 3  # the flow is the same: the other driver is sampled
    opened_turns = 0
    for before in range(1, effects + 1, step):
        crash = Crash(monkeypatch, tmp_path / f"{before}.db", face)
        ran = Ran()
        if not crash.send(TURNS[name](), ran.tools(), "go", before):
            assert before > crash.effects  # parallel landings may need an effect more or less
            continue
        after = Ran()
        with Agent(crash.path, model=ScriptedModel([reply("on")] * 2), tools=after.tools()) as agent:
            session = agent.resume_session("s", options())
            facts = session.facts()
            check_log(facts)
            assert is_beginning(facts, whole), f"died before effect {before}"
            open_turn = bool(facts) and facts[-1].kind != "turn.ended"
            opened_turns += open_turn
            if open_turn and not (session.runs() and session.runs()[-1].status == "failed"):
                with pytest.raises(RunInterrupted):
                    session.send("next")
                assert session.facts() == facts
            assert session.send("next", on_interrupted="settle").text == "on"
            settled = session.facts()
            check_log(settled)
            check_messages(session.history())
            assert [fact.hash for fact in settled[: len(facts)]] == [fact.hash for fact in facts]
            assert sum(fact.kind == "turn.ended" for fact in settled) == sum(
                fact.kind == "user.message" and '"host"' in fact.text for fact in settled
            )
            assert session.send("more").status == "completed"
            [info] = agent.list_sessions()
            assert not info.busy
        time.sleep(0.002)  # a tool's thread of the dead process gets its moment
        check_what_was_settled(settled, ran, before)
        assert after.keys == []  # settling runs nothing
    assert opened_turns


def test_died_while_settling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The one who settles may die too, before each of its effects."""
    whole, effects = undisturbed(tmp_path, "mixed")
    first = next(
        n for n in range(effects, 0, -1) if _dies_in_calls(monkeypatch, tmp_path / f"base {n}.db", n)
    )  # fmt: skip
    base = (tmp_path / f"base {first}.db").read_bytes()
    count = 0
    while True:
        count += 1
        path = tmp_path / f"settle {count}.db"
        path.write_bytes(base)
        before = read(path)
        crash = Crash(monkeypatch, path, "sync")
        died = crash.send([reply("on")], Ran().tools(), "next", count, on_interrupted="settle")
        facts = read(path)
        check_log(facts)
        assert is_beginning(before, facts) and is_beginning(before, whole)
        with Agent(path, model=ScriptedModel([reply("again")]), tools=Ran().tools()) as agent:
            session = agent.resume_session("s", options())
            assert session.send("last", on_interrupted="settle").text == "again"
            check_log(session.facts())
            check_messages(session.history())
            texts = [text for key, _, text in results(session.facts()) if key.startswith("t1-")]
            assert len(texts) == len({key for key, _, _ in results(session.facts()) if key.startswith("t1-")})
        if not died:
            break
    assert count > 5


def _dies_in_calls(monkeypatch: pytest.MonkeyPatch, path: Path, before: int) -> bool:
    crash = Crash(monkeypatch, path, "sync")
    return crash.send(TURNS["mixed"](), Ran().tools(), "go", before) and read(path)[-1].kind == "model.turn"
