"""A log is opened at its newest compaction: the cost does not grow with what lies before what it kept (§4, F03)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import thence
from thence import Agent, SessionOptions, StoreError, reads
from thence.facts import NewFact
from thence.host.loading import catch_up
from thence.log import Log
from thence.plan import Query
from thence.store.sql import load
from thence.testing import ScriptedModel, reply

from ..kit import check_log, check_messages
from .kit import HEAD, Long, Looks, compactions, shown

SMALL = {"auto_compact": True, "max_context_tokens": 1500}


def grow(path: Path, turns: int, **options: Any) -> None:
    with Agent(path, model=Long(), tools=[Looks().tool()], durability="process") as agent:
        session = agent.session(path.parent, SessionOptions(session_id="s", **{**SMALL, **options}))
        for number in range(turns):
            session.send(f"work 2 {number}")


class Counted:
    """Performs a flow's reads and counts their rows, and what SQLite's machine did for them."""

    def __init__(self, agent: Agent) -> None:
        self.store: Any = agent._core.store
        self.rows = self.facts = 0

    def run(self, flow: Any) -> Any:
        try:
            effect = next(flow)
            while True:
                query: Query[Any] = effect.query

                def value(results: Any, query: Query[Any] = query) -> Any:
                    self.rows += sum(len(rows) for rows in results)
                    self.facts += sum(
                        len(r) for s, r in zip(query.selects, results, strict=True) if s.statement == "fact_page"
                    )
                    return query.decode(results)

                effect = flow.send(self.store.read(Query(query.selects, value)))
        except StopIteration as stop:
            return stop.value


def opened(path: Path) -> tuple[Log, Counted]:
    with Agent(path) as agent:
        session = agent.session(None, SessionOptions(session_id="s"))
        core = session._core
        counted = Counted(agent)
        found = agent._core.store.read(reads.session("s"))
        assert found is not None
        log = Log(found.live_branch, core.session_pk)
        counted.run(catch_up(log))
        return log, counted


def test_opening_costs_what_lies_behind_the_newest_compaction(tmp_path: Path):
    costs = list[tuple[int, int]]()
    for turns in (12, 120):
        path = tmp_path / f"{turns}.db"
        grow(path, turns)
        log, counted = opened(path)
        with Agent(path) as agent:
            session = agent.session(None, SessionOptions(session_id="s"))
            facts = session.facts()
        check_log(facts)
        last = max(i for i, fact in enumerate(facts) if fact.kind == "compaction.done")
        kept_from = compactions(facts)[-1]["kept_from"]
        assert counted.facts == len(facts) - kept_from + 1 + (compactions(facts)[-1]["kept_message"] is not None)
        assert counted.facts <= len(facts) - last + 40
        costs.append((len(facts), counted.rows))
        assert log.transcript.snapshot()[0].text.startswith(HEAD)
    (few, first), (many, second) = costs
    assert many > 8 * few and second < first + 30, "ten times the log, the same cost"


def test_whoever_reads_all_facts_reads_all_facts(tmp_path: Path):
    grow(tmp_path / "a.db", 12)
    log, _ = opened(tmp_path / "a.db")
    with Agent(tmp_path / "a.db") as agent:
        session = agent.session(None, SessionOptions(session_id="s"))
        assert len(session.facts()) == log.head.seq and session.facts()[0].seq == 1


def test_the_newest_compaction_is_found_by_its_index(tmp_path: Path):
    grow(tmp_path / "a.db", 12)
    with sqlite3.connect(tmp_path / "a.db") as db:
        query = load().statement("fact_newest_compaction").sql
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", {"branch_pk": 1})]
    assert not any(line.startswith("SCAN") and "fact" in line for line in plan), plan
    assert any("fact_compaction" in line for line in plan)


def test_reading_from_the_start_comes_to_the_same(tmp_path: Path):
    """Also behind a resume, in whose branch the compaction is an ancestor's."""
    path = tmp_path / "a.db"
    grow(path, 12)
    model = Long()

    def answer(request: Any) -> Any:
        session.interrupt("enough")
        return reply("never")

    model.answer = answer  # type: ignore[method-assign]
    with Agent(path, model=model, tools=[Looks().tool()], durability="process") as agent:
        session = agent.resume_session("s")
        with pytest.raises(thence.RunInterrupted):
            session.send("work 3 more")
        model.answer = Long().answer  # type: ignore[method-assign]
        assert session.resume_run(session.runs()[-1].id).text == "done work"
        facts = session.facts()
    log, _ = opened(path)
    assert log.branch_pk > 1
    whole = Log(log.branch_pk, log.session_pk)
    whole.add([NewFact(fact.key, fact.cause, fact.payload) for fact in facts])
    assert whole.state == log.state and whole.seq == log.seq == len(facts)
    assert list(whole.transcript.snapshot()) == list(log.transcript.snapshot())
    assert whole.transcript.bytes == log.transcript.bytes and whole.requests == log.requests


@pytest.mark.parametrize("damage", ["payload", "hash", "json", "where"])
def test_a_damaged_compaction_is_damage(tmp_path: Path, damage: str):
    path = tmp_path / "a.db"
    grow(path, 12)
    change = {
        "payload": "payload = replace(payload, 'so far', 'so nah')",
        "hash": "hash = zeroblob(32)",
        "json": "payload = '{'",
        "where": "payload = json_set(payload, '$.kept_from', 99999999)",
    }[damage]
    with sqlite3.connect(path) as db:
        trigger = db.execute("SELECT sql FROM sqlite_master WHERE name = 'fact_no_update'").fetchone()[0]
        db.execute("DROP TRIGGER fact_no_update")
        db.execute(f"UPDATE fact SET {change} WHERE id = (SELECT max(id) FROM fact WHERE kind = 'compaction.done')")
        db.execute(trigger)
    with Agent(path, model=Long(), tools=[Looks().tool()]) as agent:
        session = agent.resume_session("s")
        with pytest.raises(StoreError, match="was changed"):
            session.send("go on")
        with pytest.raises(StoreError, match="was changed"):
            session.history()


def test_another_process_goes_on_with_what_was_compacted(tmp_path: Path):
    path = tmp_path / "a.db"
    grow(path, 12)
    with Agent(path) as agent:
        history = agent.session(None, SessionOptions(session_id="s")).history()
    code = (
        "import sys\n"
        "from thence import Agent, SessionOptions\n"
        "from tests.compaction.kit import Long, Looks, shown\n"
        "model = Long()\n"
        "with Agent(sys.argv[1], model=model, tools=[Looks().tool()]) as agent:\n"
        "    session = agent.resume_session('s', SessionOptions(auto_compact=False))\n"
        "    assert session.send('work 1 there').text == 'done work'\n"
        "    print(len(model.requests[0].messages), model.requests[0].messages[0].text[:10])\n"
    )
    done = run(code, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"{len(history) + 1} [Summary o"
    with Agent(path) as agent:
        session = agent.session(None, SessionOptions(session_id="s"))
        check_log(session.facts())
        check_messages(session.history())
        assert session.history()[: len(history)] == history
        assert shown(session.history())[-1] == ("assistant", "done work")


def test_a_log_in_memory_sees_what_another_process_compacted(tmp_path: Path):
    path = tmp_path / "a.db"
    model = Long()
    with Agent(path, model=model, tools=[Looks().tool()], durability="process") as agent:
        session = agent.session(tmp_path, SessionOptions(session_id="s"))
        session.send("work 6")
        with Agent(path, model=Long(), tools=[Looks().tool()], durability="process") as other:
            assert other.resume_session("s").compact().summary
        session.send("next")
        assert model.requests[-1].messages[0].text.startswith(HEAD)
        assert len(model.requests[-1].messages) == 6
        assert list(model.requests[-1].messages)[:-1] == session.history()[:-2]


def test_what_is_kept_may_be_large(tmp_path: Path):
    """The kept message, the instructions and the last answer are in the blob table."""
    path, model = tmp_path / "a.db", Long()
    with Agent(path, model=model, tools=[Looks(60_000).tool()], durability="process") as agent:
        options = SessionOptions(
            session_id="s", instructions="i" * 70_000, auto_compact=True, max_context_tokens=100_000
        )
        session = agent.session(tmp_path, options)
        session.send(f"work 5 {'w' * 100_000}")
        [value] = compactions(session.facts())
        assert value["kept_message"] == 2 and "instructions_sha256" in value["state"]["config"]
        history, state = session.history(), session._core.log
    log, _ = opened(path)
    assert state is not None and log.state == state.state
    assert list(log.transcript.snapshot()) == history and len(history[1].text) > 100_000


def test_f03_five_hundred_compactions_are_opened_in_little_memory(tmp_path: Path):
    """F03: the log's compactions are many and large; a resume reads the newest alone."""
    path = tmp_path / "a.db"
    long = "y" * 60_000
    model = ScriptedModel(_compacting(long))
    with Agent(path, model=model, durability="process") as agent:
        options = SessionOptions(session_id="s", instructions="i" * 60_000, max_context_tokens=10**6)
        session = agent.session(tmp_path, options)
        session.send("go")  # one turn alone has nothing to compact: its question and its answer stay
        for _ in range(500):
            session.send("go")
            assert session.compact().summary
    assert path.stat().st_size > 30_000_000
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))\n"
        "from thence import Agent\n"
        "from thence.testing import ScriptedModel, reply\n"
        "with Agent(sys.argv[1], model=ScriptedModel([reply('there')])) as agent:\n"
        "    assert agent.resume_session('s').send('again').text == 'there'\n"
        # not ru_maxrss: a child begins with that of whoever started it
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    done = run(code, path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300 * 1024, "peak memory in KiB"
    _, counted = opened(path)
    assert counted.facts <= 8


def _compacting(long: str) -> Any:
    yield reply(long)
    for number in range(500):
        yield reply(f"{number} " + "x" * 130_000)
        yield reply(long)


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    search = f"{Path(thence.__file__).resolve().parents[1]}{os.pathsep}{root}"
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True, check=False, timeout=60
    )
