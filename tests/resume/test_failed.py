"""Runs that failed outside the transcript: resumed at the failed step, as long as their turn is the last (§5-§7)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from thence import (
    Agent,
    BudgetExhausted,
    ModelError,
    RunFailed,
    SendResult,
    SessionConfiguration,
    SessionOptions,
    ThenceError,
)

from ..kit import check_log, kinds, results
from .hand import by_hand
from .kit import Again, Eyes, Tools, calls, done, head, options, resume, run_rows

PLAIN = [calls("look:1", "add:2"), calls("add:3"), done("All is done.")]


class Denies:
    """A guard that denies the n-th model request, and every one after it."""

    def __init__(self, allowed: int) -> None:
        self.left = allowed

    def check_before_llm(self, session_id: str, tokens: int) -> Any:
        self.left -= 1
        return {"decision": "deny", "resource": "tokens", "reason": "spent"} if self.left < 0 else None


class Allows:
    def check_before_llm(self, session_id: str, tokens: int) -> None:
        return None


def send(db: Path, script: list[Any], tools: Tools, prompt: str = "Go.", **given: Any) -> SendResult | ThenceError:
    """One send by an agent that is closed afterwards."""
    with Agent(db, model=Again(script), tools=tools.all(), durability="process") as agent:
        try:
            return agent.session("/w", options(retry_base_ms=1, **given)).send(prompt)
        except ThenceError as error:
            return error


def broken(number: int, error: BaseException) -> list[Any]:
    """The script, with an error in the place of answer ``number``."""
    return [error if at == number else item for at, item in enumerate(PLAIN)]


REFUSED = ModelError("http_400", "no such model", retryable=False)
DOWN = ModelError("http_503", "overloaded", retryable=True)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("error", [REFUSED, DOWN, ValueError("odd")], ids=["refused", "down", "odd"])
def test_a_model_that_failed(face: str, db: Path, quick: Path, number: int, error: BaseException) -> None:
    """Goes on at the failed step as a new run, without a second user message, to the undisturbed log."""
    tools = Tools()
    failed = send(db, broken(number, error), tools)
    assert isinstance(failed, RunFailed) and failed.resumable and failed.run_id
    before = run_rows(db)
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM fact WHERE kind = 'turn.ended'") == 0
        assert eyes.rows("SELECT status, resumable FROM run") == [("failed", 1)]
        assert eyes.one("SELECT count(*) FROM checkpoint") == (number > 0)
        assert eyes.one("SELECT owner FROM session") is None
    after = resume(face, db, failed.run_id, PLAIN)
    assert after.result is not None and after.result.text == "All is done."
    assert after.result.run_id != failed.run_id and not after.result.replayed
    assert tools.times() + after.tools.times() == {"t1-r1-c0": 1, "t1-r1-c1": 1, "t1-r2-c0": 1}
    assert len(after.model.requests) == 3 - number
    assert kinds(after.facts).count("user.message") == 1
    assert run_rows(db)[failed.run_id] == before[failed.run_id]
    send(quick / "undisturbed.db", PLAIN, Tools())
    assert head(db) == head(quick / "undisturbed.db")
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM checkpoint") == 0


def test_usage_and_calls_include_what_went_before(face: str, db: Path) -> None:
    failed = send(db, broken(2, REFUSED), Tools())
    assert isinstance(failed, RunFailed) and failed.run_id
    after = resume(face, db, failed.run_id, PLAIN)
    assert after.result is not None
    assert after.result.tool_calls_count == 3
    usage = after.result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (120, 7, 127)
    with Eyes(db) as eyes:
        old, new = eyes.rows("SELECT rounds, tool_calls_count, prompt_tokens FROM run ORDER BY run_pk")
    assert (old, new) == ((2, 3, 20), (2, 3, 120))


def test_failing_again_and_again(face: str, db: Path) -> None:
    """Each attempt is a run of its own; the first id leads to the newest."""
    failed = send(db, broken(1, REFUSED), Tools())
    assert isinstance(failed, RunFailed) and failed.run_id
    ids = [failed.run_id]
    for _ in range(3):
        after = resume(face, db, ids[0], broken(1, REFUSED))
        assert isinstance(after.error, RunFailed) and after.error.resumable and after.error.run_id
        assert not after.tools.ran
        ids.append(after.error.run_id)
    assert len(set(ids)) == 4
    after = resume(face, db, ids[1], PLAIN)
    assert after.result is not None and after.tools.keys() == ["t1-r2-c0"]
    with Eyes(db) as eyes:
        assert [
            row[0] for row in eyes.rows("SELECT state FROM runs JOIN run_identity i USING(run_id) ORDER BY i.run_pk")
        ] == ["superseded"] * 4 + ["completed"]


def test_b07_a_denied_request_keeps_the_pair_before_it(face: str, db: Path) -> None:
    """B07: call and result stay; the denied turn raises the budget error; after the resume c1 has run once."""
    tools = Tools()
    denied = send(db, PLAIN, tools, budget_guard=Denies(1))
    assert isinstance(denied, BudgetExhausted) and denied.resumable and denied.run_id
    assert str(denied) == "Budget exhausted on 'tokens': spent"
    assert tools.keys() == ["t1-r1-c0", "t1-r1-c1"]
    after = resume(face, db, denied.run_id, PLAIN, given={"budget_guard": Allows()})
    assert after.result is not None and after.result.text == "All is done."
    assert after.tools.keys() == ["t1-r2-c0"]
    assert [key for key, _, _ in results(after.facts)] == ["t1-r1-c0", "t1-r1-c1", "t1-r2-c0"]
    check_log(after.facts)


def test_denied_again(face: str, db: Path) -> None:
    """A guard that still denies: the same error, a further run, nothing ran."""
    denied = send(db, PLAIN, Tools(), budget_guard=Denies(1))
    assert isinstance(denied, BudgetExhausted) and denied.run_id
    after = resume(face, db, denied.run_id, PLAIN, given={"budget_guard": Denies(0)})
    assert isinstance(after.error, BudgetExhausted) and after.nothing_called
    assert str(after.error) == str(denied) and after.error.run_id != denied.run_id


def test_a_session_that_had_a_guard_is_not_resumed_without_one(db: Path) -> None:
    denied = send(db, PLAIN, Tools(), budget_guard=Denies(1))
    assert isinstance(denied, BudgetExhausted)
    before = run_rows(db)
    with Agent(db, model=Again(PLAIN), tools=Tools().all(), durability="process") as agent:
        for given in (None, SessionOptions(), SessionOptions(budget_guard=None)):
            with pytest.raises(SessionConfiguration) as caught:
                agent.resume_session("s", given)
            assert caught.value.field == "budget_guard"
    assert run_rows(db) == before


@pytest.mark.parametrize("how", ["send", "spawn"])
def test_the_next_turn_closes_it(face: str, db: Path, how: str) -> None:
    """The next send or spawn closes the turn as failed, with its code, and drops its checkpoint; from then on its id
    raises the recorded error again."""
    failed = send(db, broken(1, REFUSED), Tools())
    assert isinstance(failed, RunFailed) and failed.run_id
    before = run_rows(db)
    with Agent(db, model=Again([*PLAIN[:1], done("Hello.")]), tools=Tools().all(), durability="process") as agent:
        session = agent.resume_session("s")
        if how == "send":
            assert session.send("Another thing.").text == "Hello."
        else:
            assert session.spawn_run_with_id("mine", "Another thing.").wait().text == "Hello."
    with Eyes(db) as eyes:
        ends = eyes.rows("SELECT key, json_extract(payload, '$.status'), json_extract(payload, '$.code') FROM facts"
                         " WHERE kind = 'turn.ended' ORDER BY seq")  # fmt: skip
        assert ends == [("t1-end", "failed", "LLM_ERROR"), ("t2-end", "completed", None)]
        assert eyes.one("SELECT count(*) FROM checkpoint") == 0
    after = resume(face, db, failed.run_id, PLAIN)
    assert isinstance(after.error, RunFailed) and after.nothing_called
    assert (after.error.code, after.error.resumable) == ("LLM_ERROR", False)
    assert run_rows(db)[failed.run_id] == before[failed.run_id]


def test_the_error_of_a_turn_that_was_closed_later_is_the_recorded_one(face: str, db: Path) -> None:
    """§7: a turn that failed raises its recorded error again: with its text, too."""
    denied = send(db, PLAIN, Tools(), budget_guard=Denies(1))
    assert isinstance(denied, BudgetExhausted) and denied.run_id
    send(db, [PLAIN[0], done("Hello.")], Tools(), "Another thing.", budget_guard=Allows())
    after = resume(face, db, denied.run_id, [], given={"budget_guard": Allows()})
    assert isinstance(after.error, ThenceError)
    assert (after.error.code, str(after.error)) == ("BUDGET_EXHAUSTED", "Budget exhausted on 'tokens': spent")


def test_a_time_limit_can_be_resumed_past(face: str, db: Path) -> None:
    """The time limit of a run is the run's own: the resumed one has all of it again."""
    tools = Tools(on=lambda key: time.sleep(0.4))
    failed = send(db, [calls("look:1"), done("Done.")], tools, max_execution_time_ms=150)
    assert isinstance(failed, RunFailed) and failed.code == "EXECUTION_TIMEOUT" and failed.resumable and failed.run_id
    after = resume(face, db, failed.run_id, [calls("look:1"), done("Done.")], given={"max_execution_time_ms": 60_000})
    assert after.result is not None and after.result.text == "Done."


def test_a_failed_step_in_a_dead_process(face: str, db: Path, quick: Path) -> None:
    """Both at once: a run that failed, was resumed, and whose second run died."""
    failed = send(db, broken(1, REFUSED), Tools())
    assert isinstance(failed, RunFailed) and failed.run_id
    by_hand(db, PLAIN, resume=failed.run_id, at=8)
    after = resume(face, db, failed.run_id, PLAIN)
    assert after.result is not None and after.result.text == "All is done."
    send(quick / "undisturbed.db", PLAIN, Tools())
    assert head(db) == head(quick / "undisturbed.db")
