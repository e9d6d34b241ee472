"""Whose session it is (§8): the dead lose it at once, the living never by time, only by force. C01, C04.

Leases with a time became locks that the kernel holds: there is no expiry to wait for, and none to be late for.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, FixedClock, HostEnv, OwnershipLost, SequentialIdGenerator, SessionBusy, SessionOptions

from ..kit import check_log
from ..processes.kit import Child, verify
from .hand import by_hand
from .kit import Again, Eyes, Tools, calls, done, last_run, options, run_rows

SCRIPT = [calls("add:1", "add:2"), done("All is done.")]

HOLDER = """
gate = args[0]
kind = args[1]

@tool
def add(n: int) -> str:
    if kind == "tool": wait()
    return f"add {n}"

@tool(effect="read")
def look(n: int) -> str:
    if kind == "read": wait()
    return f"look {n}"

def wait():
    say("in")
    while not os.path.exists(gate): time.sleep(0.005)

class Model:
    name = "again"
    def stream(self, request):
        number = sum(m.role == "assistant" for m in request.messages)
        if (kind == "model" and number == 0) or (kind == "answer" and number == 1): wait()
        if kind == "delta" and number == 1:
            yield TextDelta("half ")
            wait()
            yield TextDelta("of it")
            time.sleep(0.3)
            yield TextDelta(" and more")
        asked = [call("add", {"n": 1}), call("look", {"n": 2}), call("look", {"n": 3})]
        said = reply("", asked) if number == 0 else reply("Done.")
        yield said.reply

class Guard:
    def check_before_tool(self, session_id, name):
        if kind == "guard": wait()

agent = Agent(db, model=Model(), tools=[add, look], durability="process")
session = agent.session("/w", options(session_id="s", budget_guard=Guard(), budget_guard_timeout_ms=60000))
try:
    said = session.send("Go.")
    say("completed")
except ThenceError as error:
    say(error.code)
say(json.dumps([type(error).__name__ for error in ()]))
say(session.runs()[0].state)
hear()
agent.close()
say("closed")
"""


@pytest.fixture
def hold(spawn, quick: Path) -> Callable[[str], tuple[Child, Path]]:
    """A process that has the session and waits inside a tool, a model, a guard; and the gate that lets it go on."""

    def start(kind: str) -> tuple[Child, Path]:
        gate = quick / "gate"
        child = spawn(HOLDER.replace("say(json.dumps([type(error).__name__ for error in ()]))\n", ""), gate, kind)
        for _ in range(2 if kind == "read" else 1):
            child.expect("in")
        return child, gate

    return start


class Nobody:
    def check_before_tool(self, session_id: str, name: str) -> None:
        return None


def other_agent(db: Path, script: list[Any] | None = None, **given: Any) -> Agent:
    """An agent of this process."""
    return Agent(
        db, model=Again(SCRIPT if script is None else script), tools=Tools().all(), durability="process", **given
    )


def guarded(agent: Agent) -> Any:
    return agent.resume_session("s", SessionOptions(budget_guard=Nobody()))


def writes_of(db: Path) -> list[Any]:
    """All that a run writes, with the fence under which it was written."""
    with Eyes(db) as eyes:
        found = []
        for table in ("fact", "event", "run", "checkpoint", "inflight", "trace", "delta", "branch", "run_identity"):
            found.append((table, eyes.rows(f"SELECT * FROM {table} ORDER BY 1")))
        return found


@pytest.mark.parametrize("kind", ["tool", "read", "model", "answer", "delta", "guard"])
def test_c04_a_stopped_owner_is_displaced_by_force_and_writes_nothing_more(hold, db: Path, kind: str) -> None:
    """C04: whatever it was going to write when it is woken (a landing, an answer with started rows, the end of the run,
    deltas) is refused with OWNERSHIP_LOST, its release frees nothing, and the second owner keeps the session."""
    child, gate = hold(kind)
    child.kill(signal.SIGSTOP)
    with other_agent(db) as agent:
        session = guarded(agent)
        with pytest.raises(SessionBusy):
            session.takeover()
        session.takeover(force=True)
        with Eyes(db) as eyes:
            assert eyes.one("SELECT owner FROM session") is None
        before = writes_of(db)
        gate.touch()
        child.kill(signal.SIGCONT)
        assert child.line() == "OWNERSHIP_LOST"
        assert writes_of(db) == before, "a stale write was accepted"
        child.line()
        run_id = last_run(db) or ""
        script = [calls("add:1", "look:2", "look:3"), done("Taken over.")]
        agent._core.model = Again(script)
        result = guarded(agent).resume_run(run_id)
        assert (result.text, result.replayed) == ("Taken over.", False)
    child.tell()
    child.expect("closed")
    child.finish()
    verify(db)


def test_c04_the_second_owner_keeps_it_while_the_first_wakes(hold, db: Path) -> None:
    """The woken one's three tries (write, claim again, release) leave the second owner's claim as it is."""
    child, gate = hold("tool")
    child.kill(signal.SIGSTOP)
    tools = Tools()
    script = [calls("add:1", "look:2", "look:3"), done("Taken over.")]
    with Agent(db, model=Again(script), tools=tools.all(), durability="process") as agent:
        session = guarded(agent)
        session.takeover(force=True)

        def wake(key: str) -> None:
            if key != "t1-r1-c1":
                return
            with Eyes(db) as eyes:
                owner = eyes.rows("SELECT owner, fence FROM session")
            gate.touch()
            child.kill(signal.SIGCONT)
            assert child.line() == "OWNERSHIP_LOST"
            with Eyes(db) as eyes:
                assert eyes.rows("SELECT owner, fence FROM session") == owner
                assert owner[0][0] == agent._core.store.owner

        tools.on = wake
        assert session.resume_run(last_run(db) or "").text == "Taken over."
    assert gate.exists()
    verify(db)


def test_c01_a_stale_writer_does_not_reload_and_go_on(db: Path) -> None:
    """C01: A is in a tool; B takes the session by force and finishes the turn. A gets OWNERSHIP_LOST, and after B's
    first fact there is none of A's fence."""
    one, two = Tools(), Tools()
    second = Agent(db, model=Again(SCRIPT), tools=two.own(), durability="process")

    def intrude(key: str) -> None:
        if key == "t1-r1-c0":
            session = second.resume_session("s")
            with pytest.raises(SessionBusy):
                session.resume_run(last_run(db) or "")
            session.takeover(force=True)
            assert session.resume_run(last_run(db) or "").text == "All is done."

    one.on = intrude
    with second, Agent(db, model=Again(SCRIPT), tools=one.own(), durability="process") as first:
        session = first.session("/w", options())
        with pytest.raises(OwnershipLost) as caught:
            session.send("Go.")
        assert caught.value.code == "OWNERSHIP_LOST" and caught.value.run_id
        with Eyes(db) as eyes:
            joined = "SELECT f.fence FROM facts v JOIN fact f ON lower(hex(f.hash)) = v.hash ORDER BY v.seq"
            fences = [row[0] for row in eyes.rows(joined)]
        assert fences == sorted(fences) and len(set(fences)) == 2
        check_log(session.facts())
        # the loser is no worse off than anybody: it may go on once the session is free
        first._core.model = Again([*SCRIPT, done("More.")])
        assert first.resume_session("s").send("More.").text == "More."


STALE = {
    "fact": "INSERT INTO fact(id, run_pk, fence, ts_ms, kind, key, prev_hash, hash, payload) SELECT s.live_branch << 32"
    " | b.head_seq + 1, 1, {fence}, 0, 'note.x', 'x', b.head_hash, zeroblob(32), '{{}}' FROM session s JOIN branch b ON"
    " b.branch_pk = s.live_branch",
    "event": "INSERT INTO event(id, off, bytes, fence, ts_ms, type, payload) VALUES(1 << 32 | 99, 0, 2, {fence}, 0,"
    " 'x', '{{}}')",
    "inflight": "INSERT INTO inflight(id, run_pk, fence, call_key, tool, state, started_ms) VALUES(1 << 32 | 77, 1,"
    " {fence}, 'k', 't', 'started', 0)",
    "landing": "UPDATE inflight SET state = 'landed', result = '{{}}', fence = {fence}",
    "checkpoint": "INSERT INTO checkpoint(run_pk, session_pk, branch_pk, seq, round, fence, ts_ms, schema_version,"
    " counters, usage) VALUES(1, 1, 1, 1, 1, {fence}, 0, 1, '{{}}', '{{}}')",
    "run": "UPDATE run SET status = 'completed', fence = {fence}",
    "new run": "INSERT INTO run(run_pk, session_pk, run_no, fence, status, created_ms, updated_ms, prompt) VALUES(9, 1,"
    " 9, {fence}, 'executing', 0, 0, 'x')",
    "trace": "INSERT INTO trace(id, run_pk, fence, ts_ms, kind, name, payload) VALUES(1 << 32 | 99, 1, {fence}, 0, 'x',"
    " 'x', '{{}}')",
    "delta": "INSERT INTO delta(id, fence, step, type, payload) VALUES(1 << 32 | 99, {fence}, 'x', 'x', '{{}}')",
}


@pytest.mark.parametrize("kind", list(STALE))
def test_stale_writes_of_every_kind_are_refused_inside_sqlite(db: Path, kind: str) -> None:
    """Whoever writes, in whatever language: 100 stale fences of each kind, accepted 0; the claim's own passes."""
    import sqlite3

    by_hand(db, SCRIPT, at=9)
    with other_agent(db) as agent:
        for _ in range(3):
            agent.resume_session("s").takeover(force=True)
    with Eyes(db) as eyes:
        fence = eyes.one("SELECT fence FROM session")
        assert eyes.one("SELECT count(*) FROM inflight") == 1
        before = writes_of(db)
        for stale in [*range(fence - 50, fence), *range(fence + 1, fence + 51)]:
            with pytest.raises(sqlite3.IntegrityError, match="OWNERSHIP_LOST"):
                eyes.db.execute(STALE[kind].format(fence=stale))
        assert writes_of(db) == before
        eyes.db.execute("BEGIN")
        eyes.db.execute(STALE[kind].format(fence=fence))
        eyes.db.execute("ROLLBACK")


def test_the_dead_are_taken_over_at_once(db: Path) -> None:
    """No expiry: the kernel has dropped the lock. By send, resume_run, takeover() and recover()."""
    for way in ("resume", "takeover", "recover", "send"):
        by_hand(db, [*SCRIPT, *SCRIPT] * 4, at=8, prompt=f"Go {way}.")
        run_id = last_run(db) or ""
        with Eyes(db) as eyes:
            assert eyes.one("SELECT owner FROM session") is not None
        with other_agent(db, [*SCRIPT, *SCRIPT] * 4) as agent:
            if way == "recover":
                (only,) = agent.recover()
                assert only.error is None and only.run_id == run_id
                continue
            session = agent.resume_session("s")
            if way == "takeover":
                session.takeover()
            if way == "send":
                assert session.send("Again.", on_interrupted="settle").text == "All is done."
            else:
                assert session.resume_run(run_id).text == "All is done."
        assert not [entry.name for entry in db.parent.iterdir() if "-owner-" in entry.name]


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 365 * 86_400_000])
def test_clock_jumps_take_nothing_away(hold, db: Path, jump_ms: int) -> None:
    """A stopped owner and a prober whose clock is an hour (a year) off: busy, by whatever method; woken, it goes on."""
    child, gate = hold("tool")
    child.kill(signal.SIGSTOP)
    clock = FixedClock(1_700_000_000_000)
    env = HostEnv(SequentialIdGenerator("probe"), clock)
    with other_agent(db, host_env=env) as agent:
        session = guarded(agent)
        for _ in range(3):
            clock.advance(jump_ms // 3)
            for attempt in (
                lambda: session.takeover(),
                lambda: session.resume_run(last_run(db) or ""),
                lambda: session.resume_run("unknown"),
                lambda: session.send("Mine now."),
                lambda: session.send("Mine now.", on_interrupted="resume"),
                lambda: session.send("Mine now.", on_interrupted="settle"),
            ):
                with pytest.raises(SessionBusy) as caught:
                    attempt()
                with Eyes(db) as eyes:
                    assert caught.value.holder == eyes.one("SELECT owner FROM session")
            assert agent.recover(options=lambda _: SessionOptions(budget_guard=Nobody())) == []
            assert [run.state for run in session.runs()] == ["executing"]
    gate.touch()
    child.kill(signal.SIGCONT)
    child.expect("completed")
    child.expect("completed")
    child.tell()
    child.expect("closed")
    child.finish()
    assert len(run_rows(db)) == 1
