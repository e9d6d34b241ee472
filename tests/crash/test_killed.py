"""Real processes, really killed (A04, B02, B17): what was acknowledged is there, and the session goes on."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, reply

from ..kit import check_log, check_messages, results

# pydantic, which a first call would load, comes before "ready": the kills are meant for the turns.
WORKER = """
import os, sys
import pydantic.json_schema, pydantic.plugin._loader
from thence import Agent, SessionOptions, ToolContext, tool
from thence.testing import ScriptedModel, call, reply
db, acks, effects = sys.argv[1:4]

def note(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (text + "\\n").encode())
    os.close(fd)

@tool(effect="read")
def look(n: int, context: ToolContext) -> str:
    note(effects, "look " + context.call_key)
    return f"saw {n}"

@tool
def act(n: int, context: ToolContext) -> str:
    note(effects, "act " + context.call_key)
    return f"acted {n}"

def answer(request):
    last = request.messages[-1]
    if last.role == "user":
        return reply("", calls=[call("look", {"n": 1}), call("look", {"n": 2}), call("act", {"n": 3})])
    return reply("answer to " + [m.text for m in request.messages if m.role == "user"][-1])

import itertools
agent = Agent(db, model=ScriptedModel(itertools.repeat(answer)), tools=[look, act])
opts = SessionOptions(session_id="s", on_interrupted="settle", retention_limits={"unbounded": True})
session = agent.session("/w", opts)
sys.stdout.write("ready\\n"); sys.stdout.flush()
for number in range(10000):
    prompt = f"{os.getpid()}-{number}"
    result = session.send(prompt)
    note(acks, f"{result.run_id} {prompt} {result.text}")
"""


def test_thirty_kills_lose_nothing_acknowledged(tmp_path: Path, child):
    """Whatever moment the kill comes at: every acknowledged result is there, the log is whole, and no call that ran is
    said not to have run."""
    db, acks, effects = tmp_path / "a.db", tmp_path / "acks", tmp_path / "effects"
    chance = random.Random(4)
    for number in range(30):
        process = child(WORKER, db, acks, effects)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(chance.random() * 0.12)
        if number % 10 == 9:
            # however slow the machine is: some of them get as far as an acknowledgement
            seen, until = _size(acks), time.monotonic() + 60
            while _size(acks) <= seen + 600 and time.monotonic() < until:
                time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        if number % 10 == 9:
            _check(db, acks, effects)
    _check(db, acks, effects)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check(db: Path, acks: Path, effects: Path) -> None:
    acknowledged = [line.split(" ", 2) for line in acks.read_text().splitlines() if line.count(" ") >= 2]
    with Agent(db, model=ScriptedModel([reply("on")])) as agent:
        session = agent.resume_session("s")
        facts = session.facts()
        check_log(facts)
        runs = {run.id: run for run in session.runs()}
        assert len(acknowledged) > 5
        for run_id, prompt, text in acknowledged:
            assert (runs[run_id].status, runs[run_id].prompt, runs[run_id].result_text) == ("completed", prompt, text)
            assert text == f"answer to {prompt}"
        said = [m.text for m in session.history() if m.role == "assistant" and m.text]
        assert {text for _, _, text in acknowledged} <= set(said)
        if facts[-1].kind == "turn.ended":
            check_messages(session.history())
        assert not any(run.state == run.status and not run.is_terminal for run in runs.values())  # all dead
        ran = [line.split()[1] for line in effects.read_text().splitlines()]
        for key, ok, text in results(facts):
            assert ran.count(key) <= 1
            if ok:
                assert ran.count(key) == 1, key
            elif text.endswith("interrupted, not run"):
                assert key not in ran, f"{key} ran"
            else:
                assert text.endswith("interrupted, outcome unknown")


A04 = """
import os, signal, sys
from thence import Agent, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

@tool(effect="read")
def look(n: int) -> str:
    return f"saw {n}"

script = [reply(calls=[call("look", {"n": n}) for n in range(20)]), reply("done")]
agent = Agent(sys.argv[1], model=ScriptedModel(script), tools=[look])
session = agent.session("/w", SessionOptions(session_id="s"))
shown = 0
for event in session.stream("go"):
    if event.type == "tool_end":
        shown += 1
        sys.stdout.write(event.payload["output"] + "\\n"); sys.stdout.flush()
        if shown == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("shown", [20, 7, 1])
def test_A04_a_result_that_was_shown_is_stored(tmp_path: Path, child, shown: int):
    """20 parallel calls, killed right after the n-th was shown: those n are stored, and none has a placeholder."""
    process = child(A04, tmp_path / "a.db", shown)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    seen = out.splitlines()
    assert len(seen) == shown
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("on")])) as agent:
        session = agent.resume_session("s")
        assert session.send("next", on_interrupted="settle").text == "on"
        check_log(session.facts())
        check_messages(session.history())
        found = results(session.facts())
    assert len(found) == 20
    texts = [text for _, ok, text in found if ok]
    assert set(seen) <= set(texts)
    if shown == 20:
        assert texts == [f"saw {n}" for n in range(20)]
    assert all(text == f"saw {n}" or text.endswith(("interrupted, outcome unknown", "interrupted, not run"))
               for n, (_, _, text) in enumerate(found))  # fmt: skip


X3 = """
import ctypes, os, sys
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply

def fine() -> str:
    return "fine"

def die() -> str:
    how = sys.argv[2]
    if how == "exit":
        os._exit(7)
    if how == "abort":
        os.abort()
    ctypes.string_at(0)
    return "?"

script = [reply(calls=[call("fine"), call("die"), call("fine")])]
agent = Agent(sys.argv[1], model=ScriptedModel(script), tools=[fine, die])
agent.session("/w", SessionOptions(session_id="s")).send("go")
"""


@pytest.mark.parametrize("how", ["exit", "abort", "segfault"])
def test_X3_a_tool_that_kills_the_process(tmp_path: Path, child, how: str):
    """The landed result counts, the started call has an unknown outcome, the third was not run: exactly these texts."""
    process = child(X3, tmp_path / "a.db", how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("on")])) as agent:
        session = agent.session("/w", SessionOptions(session_id="s", on_interrupted="settle"))
        [run] = session.runs()
        assert (run.state, run.is_terminal) == ("interrupted", False)
        assert session.send("next").text == "on"
        check_messages(session.history())
        assert results(session.facts()) == [
            ("t1-r1-c0", True, "fine"),
            ("t1-r1-c1", False, "interrupted, outcome unknown"),
            ("t1-r1-c2", False, "interrupted, not run"),
        ]


GROWN = """
import os, signal, sys
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, reply
with Agent(sys.argv[1], model=ScriptedModel([reply("small")])) as agent:
    agent.session("/w", SessionOptions(session_id="s")).send("go")
agent = Agent(sys.argv[1], model=ScriptedModel([reply("y" * 60000)] * 9))
session = agent.resume_session("s")
for number in range(9):
    session.send("more")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_middle_of_a_checkpoint(tmp_path: Path, child):
    """A checkpoint copies pages in order: killed after the first, the database says that it is longer than it is, and
    only the -wal knows the rest. That is no damage: whoever opens it next goes on."""
    db = tmp_path / "a.db"
    process = child(GROWN, db)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    first_page = _newest_first_page(db.with_name("a.db-wal").read_bytes())
    pages = int.from_bytes(first_page[28:32], "big")
    assert pages * len(first_page) > db.stat().st_size, "the -wal must hold a longer database"
    with db.open("r+b") as file:
        file.write(first_page)
    with Agent(db, model=ScriptedModel([reply("on")])) as agent:
        session = agent.resume_session("s")
        check_log(session.facts())
        assert [run.status for run in session.runs()] == ["completed"] * 10
        assert session.send("next").text == "on"
    check = sqlite3.connect(db)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def _newest_first_page(wal: bytes) -> bytes:
    """Page 1 as a checkpoint would copy it: its last frame before the last commit (the -wal format of SQLite)."""
    size = int.from_bytes(wal[8:12], "big")
    salts, found, newest = wal[16:24], b"", b""
    for at in range(32, len(wal) - size - 23, 24 + size):
        header = wal[at : at + 24]
        if header[8:16] != salts:
            break
        if header[:4] == (1).to_bytes(4, "big"):
            found = wal[at + 24 : at + 24 + size]
        if header[4:8] != bytes(4):
            newest = found
    return newest


def test_B17_the_answer_is_there_for_another_process_right_after_send(tmp_path: Path, child):
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("42")])) as agent:
        session = agent.session("/w", SessionOptions(session_id="s"))
        session.send("the question")
        reader = child(
            "import sys; from thence import Agent\n"
            "with Agent(sys.argv[1]) as agent: print(agent.resume_session('s').history()[-1].text)",
            tmp_path / "a.db",
        )
        out, err = reader.communicate(timeout=60)
        assert out.strip() == "42", err


EXIT = """
import sys, threading
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply
started = threading.Event()

def hang() -> str:
    started.set()
    threading.Event().wait(60)
    return "?"

agent = Agent(sys.argv[1], model=ScriptedModel([reply(calls=[call("hang")])]), tools=[hang])
session = agent.session("/w", SessionOptions(session_id="s"))
stream = session.stream("go")
started.wait(20)
"""


def test_a_program_that_just_ends_interrupts_and_exits(tmp_path: Path, child):
    """Interpreter exit interrupts (§1): in-flight results may land for half a second, then the session is released."""
    start = time.monotonic()
    process = child(EXIT, tmp_path / "a.db")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and time.monotonic() - start < 20
    assert "Traceback" not in err
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("on")])) as agent:
        session = agent.resume_session("s")
        assert [run.state for run in session.runs()] == ["interrupted"]
        assert session.send("next", on_interrupted="settle").text == "on"
        check_messages(session.history())


INTERRUPT = """
import os, signal, sys, threading, time
from thence import Agent, SessionOptions, ToolContext
from thence.testing import ScriptedModel, call, reply

def slow(context: ToolContext) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    while not context.cancelled:
        time.sleep(0.005)
    return "landed"

agent = Agent(sys.argv[1], model=ScriptedModel([reply(calls=[call("slow"), call("slow")])]), tools=[slow])
session = agent.session("/w", SessionOptions(session_id="s"))
try:
    session.send("go")
except KeyboardInterrupt:
    sys.stdout.write("interrupted"); sys.stdout.flush()
"""


def test_ctrl_c_interrupts_and_the_result_lands(tmp_path: Path, child):
    process = child(INTERRUPT, tmp_path / "a.db")
    out, err = process.communicate(timeout=60)
    assert out == "interrupted", err
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("on")])) as agent:
        session = agent.resume_session("s")
        assert session.send("next", on_interrupted="settle").text == "on"
        first, second = results(session.facts())
        assert first == ("t1-r1-c0", True, "landed") and second[2].endswith("interrupted, not run")
        check_messages(session.history())
