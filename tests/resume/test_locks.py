"""Locks and transactions while runs are resumed (§8): D01, D02, D04, D05, D08."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, SessionOptions

from ..processes.kit import verify
from .hand import by_hand, dies_at
from .kit import Again, Eyes, Tools, calls, done, last_run, options, run_rows

SCRIPT = [calls("add:1", "look:2"), done("All is done.")]


class Seen:
    """Every statement of every connection that is opened while this is installed, by connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: dict[int, list[str]] = {}
        self.timeouts: list[int] = []
        opened = sqlite3.connect
        self.connections: list[sqlite3.Connection] = []

        def connect(*args: Any, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = opened(*args, **named)
            lines = self.statements.setdefault(len(self.statements), [])
            connection.set_trace_callback(lines.append)
            self.connections.append(connection)
            return connection

        monkeypatch.setattr(sqlite3, "connect", connect)


WRITES = re.compile(r"\s*(?:--[^\n]*\n\s*)*(INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER)\b", re.I)


def exceptions(statements: list[str]) -> list[str]:
    """Writes that are outside of a transaction, or in one that did not begin IMMEDIATE."""
    begun: str | None = None
    wrong = []
    for text in statements:
        word = text.strip().upper()
        if word.startswith("BEGIN"):
            begun = word
        elif word.startswith(("COMMIT", "ROLLBACK", "END")) and not word.startswith("ROLLBACK TO"):
            begun = None
        elif WRITES.match(text) and not (begun or "").startswith("BEGIN IMMEDIATE"):
            wrong.append(text)
    return wrong


def use_everything(db: Path) -> None:
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"), session="s2")
    script = [*SCRIPT, done(), done(), done()]
    with Agent(db, model=Again(script), tools=Tools().all(), durability="process") as agent:
        session = agent.resume_session("s")
        session.takeover(force=True)
        session.resume_run(last_run(db) or "")
        session.spawn_run_with_id("mine", "Go.").wait()
        session.send("Go.", run_id="mine")
        for _ in session.stream("Stream."):
            pass
        session.emit({"type": "host.note", "payload": {}})
        session.set_retention({"max_events_per_run": 10})
        assert session.history() and session.facts() and session.runs() and session.trace_events()
        session.events()
        session.cancel()
        agent.recover()
        agent.list_sessions()

    async def asynchronously() -> None:
        async with AsyncAgent(db, model=Again(script), tools=Tools().all(), durability="process") as agent:
            session = await agent.session("/w", SessionOptions(session_id="s3", tenant_id="t"))
            await session.send("Go.")
            spawned = await session.spawn_run_with_id("yours", "Go.")
            await spawned.wait()
            await session.resume_run("yours")
            await session.takeover()

    asyncio.run(asynchronously())


def test_d05_every_writing_transaction_begins_immediate(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D05: all paths once, in both faces, traced: 0 exceptions."""
    seen = Seen(monkeypatch)
    use_everything(db)
    everything = [line for lines in seen.statements.values() for line in lines]
    assert sum(bool(WRITES.match(line)) for line in everything) > 100
    assert sum(line.strip().upper() == "BEGIN IMMEDIATE" for line in everything) > 40
    wrong = [line for lines in seen.statements.values() for line in exceptions(lines)]
    assert wrong == []


def test_d01_every_connection_waits(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D01: `busy_timeout` read back from each connection that is open in a run is above 0. (Eight processes × 200
    appends are in the process tests; below eight processes resume at once.)"""
    seen = Seen(monkeypatch)
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    timeouts: list[int] = []

    def read_back(key: str) -> None:
        for connection in seen.connections:
            try:
                timeouts.append(connection.execute("PRAGMA busy_timeout").fetchone()[0])
            except sqlite3.ProgrammingError:
                continue

    with Agent(db, model=Again(SCRIPT), tools=Tools(read_back).all(), durability="process") as agent:
        agent.resume_session("s").resume_run(last_run(db) or "")
    assert len(timeouts) >= 2 and min(timeouts) >= 1000


RESUMER = """
class Model:
    name = "again"
    def stream(self, request):
        number = sum(m.role == "assistant" for m in request.messages)
        said = reply("", [call("add", {"n": 1}), call("look", {"n": 2})]) if number % 2 == 0 else reply("All is done.")
        yield from said.deltas
        yield said.reply

@tool
def add(n: int) -> str: return f"add {n}"
@tool(effect="read")
def look(n: int) -> str: return f"look {n}"

say("ready")
while (line := hear()):
    path, go, names = json.loads(line)
    while not os.path.exists(go): time.sleep(0.0005)
    try:
        with Agent(path, model=Model(), tools=[add, look], durability="process") as agent:
            for name, run_id in names:
                session = agent.session("/w", options(session_id=name))
                if run_id is None: session.spawn_run_with_id(f"run-{name}", "Go.").wait()
                else: agent.resume_session(name).resume_run(run_id)
        say("ok")
    except BaseException as error:
        say(repr(error))
"""


def test_d01_eight_processes_resume_on_one_file(spawn, db: Path, quick: Path) -> None:
    """Each its own five runs, all at once: 40 ends, nobody hears that anything is locked."""
    for number in range(40):
        by_hand(db, SCRIPT, session=f"s{number}", at=8)
    children = [spawn(RESUMER) for _ in range(8)]
    for number, child in enumerate(children):
        child.expect("ready")
        mine = [(f"s{own}", last_run(db, f"s{own}")) for own in range(number, 40, 8)]
        child.tell(json.dumps([str(db), str(quick / "go"), mine]))
    (quick / "go").touch()
    assert [child.line() for child in children] == ["ok"] * 8
    for child in children:
        child.tell()
        child.finish()
    assert len(set(verify(db).values())) == 1
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run WHERE status = 'completed'") == 40


def test_d02_eight_processes_open_a_new_file_and_spawn(spawn, quick: Path) -> None:
    """D02: a file that does not exist, three rounds: all succeed. (Twenty rounds with `send`: the process tests.)"""
    children = [spawn(RESUMER) for _ in range(8)]
    for child in children:
        child.expect("ready")
    for turn in range(3):
        folder = quick / f"d{turn}"
        folder.mkdir()
        for number, child in enumerate(children):
            child.tell(json.dumps([str(folder / "new.db"), str(quick / f"go{turn}"), [(f"s{number}", None)]]))
        (quick / f"go{turn}").touch()
        assert [child.line() for child in children] == ["ok"] * 8
        assert sorted(run_rows(folder / "new.db")) == [f"run-s{number}" for number in range(8)]
    for child in children:
        child.tell()
        child.finish()


def test_d04_facts_and_events_of_one_process_share_one_writer(db: Path) -> None:
    """D04: one thread resumes and runs turns, another emits 2000 events: all are there, none was refused."""
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    errors: list[BaseException] = []
    script = [calls("add:1", "look:2"), done("All is done.")] * 200
    opts = {"unbounded": True}
    with Agent(db, model=Again(script), tools=Tools().all(), durability="process") as agent:
        noisy = agent.session("/w", SessionOptions(session_id="noisy", retention_limits=opts))

        def emit() -> None:
            try:
                for number in range(2000):
                    noisy.emit({"type": "host.note", "payload": {"n": number}})
            except BaseException as error:
                errors.append(error)

        emitting = threading.Thread(target=emit)
        emitting.start()
        session = agent.resume_session("s")
        assert session.resume_run(last_run(db) or "").text == "All is done."
        for _ in range(100):
            session.send("More.")
        emitting.join()
        assert errors == []
        assert [event.payload["n"] for event in noisy.events()] == list(range(2000))
        assert len(session.facts()) == 7 + 100 * 6


def test_d08_two_hundred_threads_resume_one_run(db: Path) -> None:
    """D08: on one agent: one run goes on, everybody else is told busy or gets the recorded outcome; never "used in
    another thread", never "locked"."""
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    run_id = last_run(db) or ""
    tools, said = Tools(), []
    with Agent(db, model=Again(SCRIPT), tools=tools.all(), durability="process") as agent:
        sessions = [agent.session("/w", options()) for _ in range(200)]
        barrier = threading.Barrier(200)

        def ask(number: int) -> None:
            barrier.wait(60)
            try:
                said.append(str(sessions[number].resume_run(run_id).replayed))
            except Exception as error:
                said.append(getattr(error, "code", repr(error)))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(said) == 200 and said.count("False") == 1
    assert set(said) <= {"False", "True", "SESSION_BUSY"}
    assert tools.times() == {"t1-r1-c0": 1, "t1-r1-c1": 1}
    assert len(run_rows(db)) == 2
