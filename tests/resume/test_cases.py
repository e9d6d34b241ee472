"""Cases from public reports about resume that need more than one life: B13, B16."""

from __future__ import annotations

from pathlib import Path

from thence import Agent, SessionOptions

from ..kit import check_log, kinds
from ..processes.kit import verify
from .hand import by_hand
from .kit import FACES, Again, Eyes, Tools, calls, done, last_run, resume


def test_b13_a_thousand_facts_with_twenty_kills(db: Path) -> None:
    """B13: after each kill the reachable facts are the stored facts, seq 1..n; there is no pointer to break."""
    script = [calls("look:1"), done()] * 400
    turns, facts = 0, []
    for kill in range(20):
        with Agent(db, model=Again(script), tools=Tools().all(), durability="process") as agent:
            session = agent.session("/w", SessionOptions(session_id="s", retention_limits={"max_runs_retained": 5}))
            for _ in range(9):
                session.send(f"Question {turns}.")
                turns += 1
        by_hand(db, script, prompt=f"Question {turns}.", at=2 + kill % 9)
        turns += 1
        with Eyes(db) as eyes:
            stored = eyes.one("SELECT count(*) FROM fact")
        run_id = last_run(db) or ""
        after = resume(FACES[kill % 2], db, run_id, script)
        facts = after.facts
        check_log(facts)
        assert len(facts) >= stored
        with Eyes(db) as eyes:
            assert eyes.one("SELECT count(*) FROM fact") == len(facts) == eyes.one("SELECT facts FROM sessions")
    assert len(facts) >= 1000
    assert kinds(facts).count("turn.ended") == turns
    verify(db)


def test_b16_resuming_does_not_make_a_run_temporary(face: str, db: Path) -> None:
    """B16: three runs, the newest resumed; opened again five times: 4 runs each time, and the facts stay."""
    script = [done("One."), done("Two."), calls("add:1"), done("Three.")]
    for number in range(2):
        by_hand(db, script, prompt=f"Question {number}.")
    by_hand(db, script, prompt="Question 2.", at=9)
    after = resume(face, db, last_run(db) or "", script)
    assert after.result is not None and after.result.text == "Three."
    seen = []
    for _ in range(5):
        with Agent(db, model=Again([]), durability="process") as agent:
            session = agent.resume_session("s")
            seen.append(([(run.id, run.state) for run in session.runs()], len(session.facts())))
    assert seen == [seen[0]] * 5
    runs, facts = seen[0]
    assert [state for _, state in runs] == ["completed", "completed", "superseded", "completed"]
    assert facts == len(after.facts)
