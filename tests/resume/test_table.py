"""`resume_run`, line by line of the contract's table (§7), in both faces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, Fact, RunFailed, SessionBusy, SessionError, SessionOptions
from thence.testing import reply

from ..kit import check_log, check_messages, kinds, results
from .hand import by_hand
from .kit import After, Again, Eyes, Tools, calls, done, dump, head, last_run, options, resume, run_rows, texts

SCRIPT = [calls("look:1", "add:2"), calls("add:3"), done("All is done.")]
WITHOUT_CHECKPOINT, WITH_CHECKPOINT = 8, 19


def died(db: Path, at: int, script: list[Any] = SCRIPT, **how: Any) -> str:
    """A process that died after its effect number ``at``; returns its run's id."""
    by_hand(db, script, at=at, **how)
    run_id = last_run(db)
    assert run_id is not None
    return run_id


def undisturbed(folder: Path, script: list[Any] = SCRIPT, **how: Any) -> str:
    """The head hash of the run that nobody disturbs."""
    by_hand(folder / "undisturbed.db", script, **how)
    return head(folder / "undisturbed.db")


def checkpoints(db: Path) -> int:
    with Eyes(db) as eyes:
        return int(eyes.one("SELECT count(*) FROM checkpoint"))


def went_on(after: After, db: Path, old: str, quick: Path) -> None:
    """A new run on a new branch went on to the undisturbed end."""
    assert after.error is None and after.result is not None
    assert (after.result.status, after.result.text, after.result.replayed) == ("completed", "All is done.", False)
    assert after.result.run_id != old
    assert head(db) == undisturbed(quick)
    check_log(after.facts)
    check_messages(after.history)
    with Eyes(db) as eyes:
        chain = (
            "SELECT v.run_id, v.state, v.resumed_from, v.superseded_by FROM runs v JOIN run_identity i USING(run_id)"
        )
        runs = eyes.rows(f"{chain} ORDER BY i.run_pk")
        new = after.result.run_id
        assert runs == [(old, "superseded", None, new), (new, "completed", old, None)]


# ---------------------------------------------------------------- yes, any
def test_with_a_checkpoint(face: str, db: Path, quick: Path) -> None:
    """Claimed, a new branch, folded, gone on with; a NEW run, and the old run's row is byte for byte what it was."""
    old = died(db, WITH_CHECKPOINT)
    assert checkpoints(db) == 1
    rows = run_rows(db)
    after = resume(face, db, old, SCRIPT)
    went_on(after, db, old, quick)
    assert run_rows(db)[old] == rows[old]
    assert checkpoints(db) == 0


# ---------------------------------------------------------------- no, this run's turn is open
def test_an_open_turn_without_a_checkpoint(face: str, db: Path, quick: Path) -> None:
    old = died(db, WITHOUT_CHECKPOINT)
    assert checkpoints(db) == 0
    rows = run_rows(db)
    after = resume(face, db, old, SCRIPT)
    went_on(after, db, old, quick)
    assert run_rows(db)[old] == rows[old]


def test_a_checkpoint_decides_nothing(face: str, db: Path, quick: Path) -> None:
    """Facts decide: with the cursor lost, or wrong, the same happens."""
    for change in (
        "DELETE FROM checkpoint",
        "UPDATE checkpoint SET seq = 1, round = 44, counters = '{}', usage = '{}'",
        "UPDATE checkpoint SET state = NULL, proof = NULL",
        "UPDATE checkpoint SET state = replace(state, '\"rounds\":', '\"rounds\":4')",
        "UPDATE checkpoint SET state = CAST(x'ff' AS TEXT), proof = x''",
        "UPDATE checkpoint SET proof = zeroblob(32)",
    ):
        copy = quick / f"{len(change)}.db"
        old = died(copy, WITH_CHECKPOINT)
        with Eyes(copy) as eyes:
            eyes.db.execute(change)
        after = resume(face, copy, old, SCRIPT)
        assert after.error is None and head(copy) == undisturbed(quick)
        (quick / "undisturbed.db").unlink()


def test_an_unknown_id_and_an_open_log(face: str, db: Path, quick: Path) -> None:
    """An id that the file does not know means the session's last turn."""
    old = died(db, WITH_CHECKPOINT)
    after = resume(face, db, "never-heard-of", SCRIPT)
    went_on(after, db, old, quick)


# ---------------------------------------------------------------- no, turn.ended
def finished(db: Path, script: list[Any] = SCRIPT) -> str:
    _, outcome = by_hand(db, script)
    return str(outcome.run_id)


def test_a_settled_turn_is_replayed(face: str, db: Path) -> None:
    """The recorded outcome; nothing is called, nothing is written, no run is recorded."""
    old = finished(db)
    before = dump(db)
    after = resume(face, db, old, [])
    assert after.result is not None and after.nothing_called
    said = after.result
    assert (said.run_id, said.status, said.text, said.replayed) == (old, "completed", "All is done.", True)
    assert said.tool_calls_count == 3
    assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens) == (120, 7, 127)
    assert without_fences(dump(db)) == without_fences(before)


def without_fences(lines: list[str]) -> list[str]:
    """A dump without the session's row: claiming and letting go moves its fence."""
    return [line for line in lines if not line.startswith(('INSERT INTO "session"', "INSERT INTO session "))]


def test_an_unknown_id_and_a_settled_log(face: str, db: Path) -> None:
    finished(db)
    rows = run_rows(db)
    after = resume(face, db, "never-heard-of", [])
    assert after.result is not None and after.nothing_called
    assert (after.result.status, after.result.text, after.result.replayed) == ("completed", "All is done.", True)
    assert run_rows(db) == rows


def test_a_failed_turn_raises_its_recorded_error_again(face: str, db: Path) -> None:
    script = [calls("add:{1"), calls("add:{2"), calls("add:{3")]
    _, outcome = by_hand(db, script)
    assert outcome.status == "failed"
    rows = run_rows(db)
    after = resume(face, db, outcome.run_id, [])
    error = after.error
    assert isinstance(error, RunFailed) and after.nothing_called
    assert str(error) == str(outcome.error)
    assert str(error) == "LLM produced malformed tool arguments 3 time(s) in a row (max_parse_retries=2); giving up"
    assert (error.code, error.run_id, error.resumable) == ("LLM_ERROR", outcome.run_id, False)
    assert run_rows(db) == rows


def test_a_cancelled_turn_gives_its_recorded_outcome(face: str, db: Path) -> None:
    _, outcome = by_hand(db, SCRIPT, stop_in="t1-r1-c1")
    after = resume(face, db, outcome.run_id, [])
    assert after.result is not None and after.nothing_called
    assert (after.result.status, after.result.replayed) == ("cancelled", True)


def test_an_earlier_turn_is_replayed_while_a_later_one_is_open(face: str, db: Path) -> None:
    """Each run has the turn it had: not the last one of the log."""
    first = finished(db)
    later = died(db, 8, [*SCRIPT, calls("add:4"), done("Later.")], prompt="More.")
    before = run_rows(db)
    after = resume(face, db, first, [])
    assert after.result is not None and after.nothing_called
    assert (after.result.run_id, after.result.text, after.result.replayed) == (first, "All is done.", True)
    assert run_rows(db) == before
    again = resume(face, db, later, [*SCRIPT, calls("add:4"), done("Later.")])
    assert again.result is not None and again.result.text == "Later."


def test_a_second_resume_calls_nothing(face: str, db: Path, quick: Path) -> None:
    """The old id and the new one both give what the turn came to."""
    old = died(db, WITH_CHECKPOINT)
    first = resume(face, db, old, SCRIPT)
    assert first.result is not None
    for run_id in (old, first.result.run_id):
        again = resume(face, db, run_id, [])
        assert again.result is not None and again.nothing_called
        assert again.result.replayed and again.result.text == "All is done."
        assert again.result.usage == first.result.usage
        assert again.result.tool_calls_count == first.result.tool_calls_count
    assert len(run_rows(db)) == 2


# ---------------------------------------------------------------- no, no
def test_an_empty_log(face: str, db: Path) -> None:
    with Agent(db, durability="process") as agent:
        agent.session("/w", options())
    after = resume(face, db, "run-7", [])
    assert isinstance(after.error, SessionError)
    assert str(after.error) == "no loop checkpoint found for run 'run-7'"
    assert after.error.code == "SESSION_ERROR"
    assert run_rows(db) == {} and last_run(db) is None


async def test_an_empty_log_in_memory() -> None:
    text = "resume_run requires a session_store on this session"
    with Agent(None, model=Again([])) as agent:
        with pytest.raises(SessionError) as caught:
            agent.session("/w", options()).resume_run("run-7")
        assert str(caught.value) == text
    async with AsyncAgent(None, model=Again([])) as other:
        session = await other.session("/w", options())
        with pytest.raises(SessionError) as caught:
            await session.resume_run("run-7")
        assert str(caught.value) == text


def test_in_memory_facts_decide_too() -> None:
    """The line above the two error lines holds for an agent in memory as well."""
    model = Again([reply("Hello.")])
    with Agent(None, model=model) as agent:
        session = agent.session("/w", options())
        sent = session.send("Hi.")
        for run_id in (sent.run_id, "never-heard-of"):
            again = session.resume_run(run_id)
            assert (again.text, again.replayed) == ("Hello.", True)
        assert len(model.requests) == 1 and len(session.runs()) == 1


def test_in_memory_an_open_turn_goes_on() -> None:
    model = Again([(RuntimeError("away"), reply("Hello."))])
    with Agent(None, model=model) as agent:
        session = agent.session("/w", options())
        with pytest.raises(RunFailed) as caught:
            session.send("Hi.")
        assert caught.value.resumable and caught.value.run_id
        again = session.resume_run(caught.value.run_id)
        assert (again.text, again.replayed) == ("Hello.", False)
        assert texts(session.history()) == [("user", "Hi."), ("assistant", "Hello.")]


# ---------------------------------------------------------------- the claim
def test_while_a_living_owner_has_it_nobody_resumes(face: str, db: Path) -> None:
    """Also in this process: the other agent is an owner of its own."""
    seen: list[SessionBusy] = []
    tools = Tools()

    def rival(key: str) -> None:
        if key == "t1-r1-c1":
            tools.on = lambda _: None
            for run_id in ("never-heard-of", last_run(db) or ""):
                other = Agent(db, model=Again([]), durability="process")
                with other, pytest.raises(SessionBusy) as caught:
                    other.resume_session("s").resume_run(run_id)
                seen.append(caught.value)

    tools.on = rival
    with Agent(db, model=Again(SCRIPT), tools=tools.own(), durability="process") as agent:
        assert agent.session("/w", options()).send("Go.").text == "All is done."
    assert [error.code for error in seen] == ["SESSION_BUSY"] * 2
    assert all("Session 's' already has an active operation" in str(error) for error in seen)
    assert len(run_rows(db)) == 1


def test_resume_of_a_resumed_run_goes_to_the_newest_descendant(face: str, db: Path, quick: Path) -> None:
    """Killed three times over: the first id, and each later one, still leads to the end of the chain."""
    ids = [died(db, WITHOUT_CHECKPOINT)]
    for _ in range(2):
        ids.append(died(db, 4, resume=ids[0]))
    assert len(set(ids)) == 3
    rows = run_rows(db)
    after = resume(face, db, ids[0], SCRIPT)
    assert after.result is not None and after.result.text == "All is done."
    now = run_rows(db)
    assert all(now[old] == rows[old] for old in ids) and len(now) == 4
    with Eyes(db) as eyes:
        chain = dict(eyes.rows("SELECT run_id, resumed_from FROM runs"))
    assert chain == {ids[0]: None, ids[1]: ids[0], ids[2]: ids[1], after.result.run_id: ids[2]}
    assert head(db) == undisturbed(quick)


# ---------------------------------------------------------------- runs as they are told
def test_states_before_and_after(face: str, db: Path) -> None:
    """Interrupted without a living owner; superseded once resumed; the status in the row stays what it was."""
    old = died(db, WITH_CHECKPOINT)
    with Agent(db, durability="process") as agent:
        session = agent.resume_session("s")
        (run,) = session.runs()
        assert (run.status, run.state) == ("executing", "interrupted")
        assert session.current_run() is None
        assert session.run_snapshot(old) == run
    after = resume(face, db, old, SCRIPT)
    assert after.result is not None
    with Agent(db, durability="process") as agent:
        first, second = agent.resume_session("s").runs()
    assert (first.id, first.status, first.state) == (old, "executing", "superseded")
    assert (first.superseded_by, second.resumed_from) == (second.id, old)
    assert (second.status, second.state, second.is_terminal) == ("completed", "completed", True)


def test_facts_keep_their_keys_and_name_the_run_that_wrote_them(face: str, db: Path) -> None:
    old = died(db, WITH_CHECKPOINT)
    with Agent(db, durability="process") as agent:
        before: list[Fact] = agent.resume_session("s", SessionOptions()).facts()
    after = resume(face, db, old, SCRIPT)
    assert after.facts[: len(before)] == before
    assert after.result is not None
    assert {fact.run_id for fact in after.facts[len(before) :]} == {after.result.run_id}
    assert kinds(after.facts).count("user.message") == 1
    assert [key for key, _, _ in results(after.facts)] == ["t1-r1-c0", "t1-r1-c1", "t1-r2-c0"]
