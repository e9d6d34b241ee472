"""Counters are folds of facts: a chain of resumes counts on where the dead left off (§4, §5, §7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thence.testing import reply

from ..kit import check_log, check_messages, kinds, results
from .hand import Died, by_hand, dies_at
from .kit import After, Eyes, Tools, calls, done, head, last_run, rest, resume

ANSWERED = dies_at("fact_append", "model.turn")


def nested(face: str, db: Path, script: list[Any], deaths: int, **given: Any) -> tuple[After, Tools]:
    """A run that dies each time an answer is recorded, ``deaths`` times, and then ends in ``face``."""
    tools, first = Tools(), None
    for _ in range(deaths):
        _, outcome = by_hand(db, script, wrap=ANSWERED, resume=first, tools=tools, given=given)
        assert isinstance(outcome, Died)
        assert not rest(db).closed
        first = first or last_run(db)
    return resume(face, db, first or "", script, tools=tools), tools


def undisturbed(quick: Path, script: list[Any], **given: Any) -> str:
    by_hand(quick / "undisturbed.db", script, given=given)
    return head(quick / "undisturbed.db")


def test_b03_rounds_are_counted_once(face: str, db: Path, quick: Path) -> None:
    """B03: three deaths before three checkpoints; the rounds counted at the end are 3, not 5 or 6."""
    script = [calls("add:1"), calls("add:2"), calls("add:3"), calls("add:4"), done()]
    after, tools = nested(face, db, script, 3, max_tool_rounds=3)
    assert after.result is not None and after.result.status == "completed"
    assert tools.times() == {"t1-r1-c0": 1, "t1-r2-c0": 1, "t1-r3-c0": 1}
    assert [key for key, ok, _ in results(after.facts) if not ok] == ["t1-r4-c0"]
    assert "budget.denied" in kinds(after.facts)
    assert [len(request.tools) for request in after.model.requests] == [0]
    with Eyes(db) as eyes:
        assert eyes.one("SELECT rounds FROM runs ORDER BY rounds DESC") == 4
        assert eyes.one("SELECT tool_calls_count FROM runs ORDER BY rounds DESC") == 3
    assert head(db) == undisturbed(quick, script, max_tool_rounds=3)


def test_malformed_calls_in_a_row(face: str, db: Path, quick: Path) -> None:
    """Two before the deaths and one after them are three in a row: the turn fails."""
    script = [calls("add:{1"), calls("add:{2"), calls("add:{3"), done()]
    after, tools = nested(face, db, script, 2, max_parse_retries=2)
    assert (
        str(after.error) == "LLM produced malformed tool arguments 3 time(s) in a row (max_parse_retries=2); giving up"
    )
    assert not tools.ran
    assert head(db) == undisturbed(quick, script, max_parse_retries=2)


def test_malformed_calls_not_in_a_row(face: str, db: Path, quick: Path) -> None:
    script = [calls("add:{1"), calls("add:{2"), calls("look:1"), calls("add:{3"), calls("add:{4"), done()]
    after, _ = nested(face, db, script, 4, max_parse_retries=2)
    assert after.result is not None and after.result.status == "completed"
    assert head(db) == undisturbed(quick, script, max_parse_retries=2)


def test_the_duplicate_window(face: str, db: Path, quick: Path) -> None:
    """Three equal calls in three lives: the fourth is refused, and the fifth fails the turn."""
    script = [calls("add:1")] * 5
    after, tools = nested(face, db, script, 3)
    assert tools.times() == {"t1-r1-c0": 1, "t1-r2-c0": 1, "t1-r3-c0": 1}
    assert after.error is not None and "repeated a refused call" in str(after.error)
    said = [ok for _, ok, _ in results(after.facts)]
    assert said == [True, True, True, False, False]
    assert head(db) == undisturbed(quick, script)


def test_a_success_still_clears_the_window(face: str, db: Path, quick: Path) -> None:
    """Edit, test, edit, test is no loop, in however many lives."""
    script = [calls("look:1"), calls("add:1"), calls("look:1"), calls("add:2"), calls("look:1"), calls("add:3"),
              calls("look:1"), calls("look:1"), done()]  # fmt: skip
    after, tools = nested(face, db, script, 5)
    assert after.result is not None and len(tools.ran) == 8
    assert head(db) == undisturbed(quick, script)


def test_continuations(face: str, db: Path, quick: Path) -> None:
    """At most ``max_continuation_turns``, the dead's included; never twice for the same text."""
    script = [reply(f"Part {n}", stop_reason="length") for n in range(6)]
    after, _ = nested(face, db, script, 2, max_continuation_turns=3)
    assert after.result is not None and after.result.text == "Part 3"
    assert kinds(after.facts).count("user.message") == 4
    assert head(db) == undisturbed(quick, script, max_continuation_turns=3)


def test_usage_and_calls_over_three_resumes(face: str, db: Path, quick: Path) -> None:
    script = [calls("look:1", "add:2"), calls("fail:3"), calls("add:4"), done()]
    after, tools = nested(face, db, script, 3)
    assert after.result is not None
    assert after.result.tool_calls_count == len(tools.ran) == 4
    usage = after.result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (130, 8, 138)
    check_log(after.facts)
    check_messages(after.history)
    with Eyes(db) as eyes:
        runs = eyes.rows(
            "SELECT status, state, prompt_tokens FROM runs JOIN run_identity i USING(run_id) ORDER BY i.run_pk"
        )
        assert [row[:2] for row in runs] == [("executing", "superseded")] * 3 + [("completed", "completed")]
        assert [row[2] for row in runs] == [0, 0, 0, 130]
    assert head(db) == undisturbed(quick, script)


def test_one_run_an_attempt(face: str, db: Path) -> None:
    """Eight deaths, nine runs, one user message, one end."""
    script = [calls(f"add:{n}") for n in range(8)] + [done()]
    after, tools = nested(face, db, script, 8)
    assert after.result is not None and len(tools.ran) == 8
    assert set(tools.times().values()) == {1}
    assert kinds(after.facts).count("user.message") == kinds(after.facts).count("turn.ended") == 1
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run") == 9
        assert eyes.one("SELECT count(*) FROM branch") == 9
