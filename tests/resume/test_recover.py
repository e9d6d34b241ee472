"""`agent.recover()` and what waits in the inbox of the dead (§7, §8): B09."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from thence import Agent, ModelError, Recovered, SessionConfiguration, SessionOptions, StoreError

from ..kit import check_messages, kinds, types
from ..processes.kit import Plain
from .hand import by_hand, dies_at
from .kit import Again, Eyes, Tools, calls, done, head, last_run, with_agent

SCRIPT = [calls("add:1", "look:2"), done("All is done.")]
NEXT = done("And this.")
STARTED = dies_at("inflight_start")


class Guard:
    def check_before_tool(self, session_id: str, name: str) -> None:
        return None


def ten_dead(db: Path) -> dict[str, str]:
    """Ten sessions whose runs died, of which one had a guard; and three that are none of recover's business."""
    dead = {}
    for number in range(10):
        given = {"budget_guard": Guard()} if number == 3 else {}
        by_hand(db, SCRIPT, session=f"s{number}", at=3 + number % 8, given=given)
        dead[f"s{number}"] = last_run(db, f"s{number}") or ""
    by_hand(db, SCRIPT, session="ended")
    by_hand(db, [ModelError("http_400", "no", retryable=False)], session="failed")
    with Agent(db, durability="process") as agent:
        agent.session("/w", SessionOptions(session_id="empty"))
    return dead


def recover(face: str, db: Path, **given: Any) -> tuple[list[Recovered], Tools, Again]:
    tools, model = Tools(), Again(SCRIPT)
    found = with_agent(face, db, model, tools, lambda agent, wait: wait(agent.recover(**given)))
    return found, tools, model


def test_ten_interrupted_runs_and_a_guard(face: str, db: Path, quick: Path) -> None:
    """Each once; the one whose session had a guard is an error that names the field until its options are given; a
    second pass finds only that one, a third nothing."""
    dead = ten_dead(db)
    found, _, _ = recover(face, db)
    assert {one.session_id: one.run_id for one in found} == dead
    failed = [one for one in found if one.error is not None]
    assert [one.session_id for one in failed] == ["s3"]
    assert isinstance(failed[0].error, SessionConfiguration) and failed[0].error.field == "budget_guard"
    assert all(one.result is not None and one.result.text == "All is done." for one in found if one.error is None)
    again, tools, _ = recover(face, db, options=lambda session_id: SessionOptions(budget_guard=Guard()))
    assert [(one.session_id, one.error) for one in again] == [("s3", None)]
    assert again[0].result is not None and again[0].result.text == "All is done."
    assert set(tools.times().values()) <= {1}
    third, tools, model = recover(face, db, options=lambda session_id: SessionOptions())
    assert third == [] and not tools.ran and not model.requests
    by_hand(quick / "undisturbed.db", SCRIPT)
    assert {head(db, session) for session in dead} == {head(quick / "undisturbed.db")}


def test_recover_with_options_at_once(face: str, db: Path) -> None:
    """Twice: the second time there is nothing left."""
    ten_dead(db)
    asked: list[str] = []

    def give(session_id: str) -> SessionOptions:
        asked.append(session_id)
        return SessionOptions(budget_guard=Guard()) if session_id == "s3" else SessionOptions()

    found, _, _ = recover(face, db, options=give)
    assert len(found) == 10 and not [one.error for one in found if one.error]
    assert sorted(asked) == [f"s{number}" for number in range(10)]
    assert recover(face, db, options=give)[0] == []
    with Eyes(db) as eyes:
        left = eyes.one(
            "SELECT count(*) FROM run WHERE status NOT IN ('completed', 'failed') AND run_pk NOT IN"
            " (SELECT resumed_from FROM run_identity WHERE resumed_from IS NOT NULL)"
        )
        assert left == 0


def test_recover_leaves_a_failed_run_to_its_host(face: str, db: Path) -> None:
    """It ended: resumable on demand, never by itself."""
    by_hand(db, [ModelError("http_400", "no", retryable=False)])
    found, _, model = recover(face, db)
    assert found == [] and not model.requests


class Busy:
    """A store that cannot claim some sessions, once each."""

    def __init__(self, store: Any, sessions: set[int]) -> None:
        self._store, self._refused = store, sessions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, plan: Any) -> Any:
        for op in plan.ops:
            if op.statement == "session_claim" and op.rows[0]["session_pk"] in self._refused:
                self._refused.discard(op.rows[0]["session_pk"])
                raise StoreError("database is locked: gave up waiting")
        return self._store.commit(plan)


def test_b09_an_error_while_recovering_strands_nobody(db: Path) -> None:
    """B09: 50 runs of the dead, three of which cannot be claimed the first time: a typed error for those, and after the
    second pass 50 of 50 are finished, none under a dead owner."""
    for number in range(50):
        by_hand(db, SCRIPT, session=f"s{number}", at=8)
    with Agent(db, model=Again(SCRIPT), tools=Tools().all(), durability="process") as agent:
        core: Any = agent._core
        core.store = Busy(core.store, {7, 23, 50})
        found = agent.recover()
        assert len(found) == 50
        failed = [one for one in found if one.error is not None]
        assert [one.session_id for one in failed] == ["s6", "s22", "s49"]
        assert all(isinstance(one.error, StoreError) and one.error.code == "STORE_ERROR" for one in failed)
        again = agent.recover()
        assert [(one.session_id, one.error) for one in again] == [(one.session_id, None) for one in failed]
        assert agent.recover() == []
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run WHERE status = 'completed'") == 50
        assert eyes.one("SELECT count(*) FROM session WHERE owner IS NOT NULL") == 0


def test_events_that_waited_for_a_dead_owner_are_taken_by_the_next(face: str, db: Path) -> None:
    """§8: without an owner the inbox waits for recover() or the next operation; what it holds is on its run's stream
    then, and nothing is left waiting."""
    by_hand(db, SCRIPT, wrap=STARTED)
    run_id = last_run(db) or ""
    plain = Plain(db)
    plain.say(run_id=run_id, type="host.note", payload='{"n": 1}')
    plain.close()
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM inbox") == 1

    def body(agent: Any, wait: Any) -> None:
        wait(agent.recover())
        session = wait(agent.resume_session("s"))
        assert types(wait(session.run_events(run_id))).count("host.note") == 1

    with_agent(face, db, Again(SCRIPT), Tools(), body)
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM inbox") == 0


def test_a_cancel_that_was_acknowledged_outlives_its_owner(spawn, db: Path) -> None:
    """§8, §1: cancel() said True while the owner lived; it is killed before it looked. Whoever goes on with the run
    finds the cancel, and does not run what was cancelled."""
    child = spawn("""
@tool
def add(n: int) -> str:
    say("in")
    time.sleep(60)
    return "never"
agent = Agent(db, model=ScriptedModel([reply("", [call("add", {"n": 1}), call("look", {"n": 2})])]), tools=[add])
agent.session("/w", options(session_id="s")).send("Go.")
""")
    child.expect("in")
    child.kill(signal.SIGSTOP)
    with Agent(db, model=Again(SCRIPT), durability="process") as agent:
        assert agent.resume_session("s").cancel() is True
    child.kill(signal.SIGKILL)
    child.finish(code=-signal.SIGKILL)
    tools = Tools()
    with Agent(db, model=Again([*SCRIPT, NEXT]), tools=tools.all(), durability="process") as agent:
        agent.recover()
        session = agent.resume_session("s")
        assert kinds(session.facts())[-1] == "turn.ended"
        assert session.runs()[-1].status == "cancelled"
        check_messages(session.history())
    assert not tools.ran
