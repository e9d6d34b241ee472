"""What is found interrupted: `send(on_interrupted=…)` (§1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thence import (
    Agent,
    ModelError,
    RunInterrupted,
    SessionConfiguration,
    SessionOptions,
)

from ..kit import check_log, check_messages, kinds, results
from .hand import by_hand, dies_at
from .kit import OUTCOME_UNKNOWN, Again, Eyes, Tools, calls, done, head, last_run, run_rows, with_agent

SCRIPT = [calls("add:1", "look:2"), done("All is done.")]
NEXT = done("And this.")
STARTED = dies_at("inflight_start")


STATES = "SELECT v.state, v.resumed_from FROM runs v JOIN run_identity i USING(run_id) ORDER BY i.run_pk"


def send(face: str, db: Path, **how: Any) -> tuple[Any, Tools, Again, list[Any]]:
    """One send to the interrupted session: its result or error, what was called, the facts afterwards."""
    tools, model = Tools(), Again([*SCRIPT, NEXT])
    option = how.pop("option", None)

    def body(agent: Any, wait: Any) -> tuple[Any, list[Any]]:
        opts = SessionOptions(on_interrupted=option) if option else None
        session = wait(agent.resume_session("s", opts))
        try:
            said = wait(session.send("What else?", **how))
            check_messages(wait(session.history()))
        except RunInterrupted as error:
            said = error
        return said, wait(session.facts())

    said, facts = with_agent(face, db, model, tools, body)
    return said, tools, model, facts


def test_raise_is_the_default_and_changes_nothing(face: str, db: Path) -> None:
    by_hand(db, SCRIPT, wrap=STARTED)
    before = run_rows(db)
    said, tools, model, _ = send(face, db)
    assert isinstance(said, RunInterrupted)
    assert (said.code, said.run_id, said.open_calls, said.resumable) == (
        "RUN_INTERRUPTED", last_run(db), ("t1-r1-c0", "t1-r1-c1"), True,
    )  # fmt: skip
    assert not tools.ran and not model.requests and run_rows(db) == before


@pytest.mark.parametrize("option", [False, True], ids=["argument", "session option"])
def test_resume_first_and_then_the_prompt(face: str, db: Path, quick: Path, option: bool) -> None:
    """The interrupted turn is ended as a run of its own; the prompt is the next turn."""
    by_hand(db, SCRIPT, wrap=STARTED)
    old = last_run(db) or ""
    how = {"option": "resume"} if option else {"on_interrupted": "resume"}
    said, tools, model, facts = send(face, db, **how)
    assert (said.text, said.status, said.replayed) == ("And this.", "completed", False)
    assert tools.keys() == ["t1-r1-c0", "t1-r1-c1"] and len(model.requests) == 2
    check_log(facts)
    said_by_user = [fact.to_dict()["payload"]["parts"][0]["text"] for fact in facts if fact.kind == "user.message"]
    assert said_by_user == ["Go.", "What else?"]
    assert kinds(facts).count("turn.ended") == 2
    with Eyes(db) as eyes:
        assert eyes.rows(STATES) == [
            ("superseded", None), ("completed", old), ("completed", None),
        ]  # fmt: skip
    by_hand(quick / "undisturbed.db", SCRIPT)
    by_hand(quick / "undisturbed.db", [*SCRIPT, NEXT], prompt="What else?")
    assert head(db) == head(quick / "undisturbed.db")


def test_resume_first_and_then_the_prompt_under_its_own_id(face: str, db: Path) -> None:
    """``run_id`` names the run of the prompt, not the recovery before it."""
    by_hand(db, SCRIPT, wrap=STARTED)
    old = last_run(db)
    said, _, _, facts = send(face, db, on_interrupted="resume", run_id="mine")
    assert (said.run_id, said.text, said.replayed) == ("mine", "And this.", False)
    assert [fact.key for fact in facts if fact.run_id == "mine"] == ["t2-user", "t2-r1", "t2-end"]
    with Eyes(db) as eyes:
        assert eyes.rows("SELECT resumed_from, prompt FROM runs WHERE run_id = 'mine'") == [(None, "What else?")]
        assert eyes.one("SELECT count(*) FROM runs WHERE resumed_from = ?", old) == 1
    again, tools, model, _ = send(face, db, run_id="mine")
    assert (again.text, again.replayed) == ("And this.", True) and not tools.ran and not model.requests


@pytest.mark.parametrize("option", [False, True], ids=["argument", "session option"])
def test_settle_gives_each_call_its_result(face: str, db: Path, option: bool) -> None:
    """A landed one counts; a started one is failed ``interrupted, outcome unknown``; one never started ``interrupted,
    not run``. Nothing runs."""
    script = [calls("add:1", "add:2", "add:3"), done()]
    by_hand(db, script, wrap=dies_at("inflight_start", count=2))
    how = {"option": "settle"} if option else {"on_interrupted": "settle"}
    said, tools, _, facts = send(face, db, **how)
    assert said.text == "All is done." and not tools.ran
    assert results(facts) == [
        ("t1-r1-c0", True, "add 1"),
        ("t1-r1-c1", False, OUTCOME_UNKNOWN),
        ("t1-r1-c2", False, "interrupted, not run"),
    ]
    with Eyes(db) as eyes:
        ends = eyes.rows("SELECT json_extract(payload, '$.status') FROM facts WHERE kind = 'turn.ended' ORDER BY seq")
        assert ends == [("failed",), ("completed",)]
        assert eyes.one("SELECT count(*) FROM inflight") == eyes.one("SELECT count(*) FROM checkpoint") == 0


def test_a_resume_that_fails_is_what_send_says(face: str, db: Path) -> None:
    """The prompt is not sent into a turn that did not end."""
    by_hand(db, SCRIPT, wrap=STARTED)
    model = Again([SCRIPT[0], ModelError("http_400", "no", retryable=False)])

    def body(agent: Any, wait: Any) -> None:
        session = wait(agent.resume_session("s"))
        with pytest.raises(Exception, match="no") as caught:
            wait(session.send("What else?", on_interrupted="resume"))
        assert getattr(caught.value, "code", "") == "LLM_ERROR"
        assert kinds(wait(session.facts())).count("user.message") == 1

    with_agent(face, db, model, Tools(), body)


def test_an_unknown_way_is_refused(db: Path) -> None:
    guess: Any = "guess"
    by_hand(db, SCRIPT, wrap=STARTED)
    before = run_rows(db)
    with Agent(db, model=Again(SCRIPT), tools=Tools().all(), durability="process") as agent:
        session = agent.resume_session("s")
        with pytest.raises((ValueError, TypeError)):
            session.send("Go on.", on_interrupted=guess)
        with pytest.raises(SessionConfiguration):
            agent.session("/w", SessionOptions(on_interrupted=guess))
    assert run_rows(db) == before


def test_interrupted_here_and_resumed_here(face: str, db: Path) -> None:
    """No process died: ``interrupt`` lets go, and the same session object goes on."""
    tools, model = Tools(), Again(SCRIPT)

    def body(agent: Any, wait: Any) -> None:
        session = wait(agent.session("/w", SessionOptions(session_id="s")))
        tools.on = lambda key: wait(session.interrupt("enough")) if key == "t1-r1-c0" else None
        with pytest.raises(RunInterrupted) as caught:
            wait(session.send("Go."))
        tools.on = lambda key: None
        (run,) = wait(session.runs())
        assert (run.status, run.state) == ("executing", "interrupted")
        result = wait(session.resume_run(caught.value.run_id))
        assert (result.text, result.replayed) == ("All is done.", False)
        check_log(wait(session.facts()))

    with_agent(face, db, model, tools, body)
    assert tools.times() == {"t1-r1-c0": 1, "t1-r1-c1": 1}
