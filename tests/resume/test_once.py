"""A ``once`` call that had started when its process died (§7, §10): it is asked about, and never run on a guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thence import Agent

from ..kit import check_log, check_messages, results
from .hand import by_hand, dies_at
from .kit import Again, Tools, answer_all, calls, done, last_run, resume

KEY = "t1-r1-c0"
STARTED = dies_at("inflight_start")
RAN = dies_at("inflight_land", when="before")
WAIT = f"{KEY}-w1"
SAID: dict[str, tuple[Any, bool, str]] = {
    "done": ({"outcome": "done", "result": "paid"}, True, "paid"),
    "failed": ({"outcome": "failed", "error": "no money"}, False, "Error: no money"),
    "run": ({"outcome": "run"}, True, "charge 1"),
}


@pytest.mark.parametrize("ran", [True, False], ids=["ran", "did not run"])
@pytest.mark.parametrize("said", SAID)
def test_a_started_once_call_is_not_run_again(face: str, db: Path, ran: bool, said: str) -> None:
    """Nobody can know whether it did its work: the run is parked until somebody says so, the calls behind it wait."""
    script = [calls("charge:1", "add:2"), done()]
    value, ok, text = SAID[said]
    before = Tools()
    by_hand(db, script, wrap=RAN if ran else STARTED, tools=before)
    dead = last_run(db) or ""
    asked = resume(face, db, dead, script)
    assert asked.result is not None and asked.nothing_called
    assert (asked.result.status, [wait.id for wait in asked.result.waits]) == ("parked", [WAIT])
    [wait] = answer_all(db, lambda _: value)
    assert (wait.id, wait.kind, wait.run_id) == (WAIT, "unknown_outcome", asked.result.run_id)
    after = resume(face, db, dead, script)
    again = [KEY] if said == "run" else []
    assert before.keys() + after.tools.keys() == [KEY] * ran + [*again, "t1-r1-c1"]
    assert len({one.idempotency_key for one in before.ran + after.tools.ran if one.call_key == KEY}) <= 1
    assert results(after.facts) == [(KEY, ok, text), ("t1-r1-c1", True, "add 2")]
    last = after.model.requests[-1].messages
    assert next((m.call_key, m.ok, m.text) for m in last if m.role == "tool") == (KEY, ok, text)
    assert after.result is not None and after.result.status == "completed"
    assert after.result.run_id == asked.result.run_id != dead
    check_log(after.facts)
    check_messages(after.history)


def test_once_stays_unknown_over_further_deaths(face: str, db: Path, quick: Path) -> None:
    """However often the resume dies before it could ask, and however often after it: it is asked once."""
    script = [calls("charge:1", "add:2"), done()]
    tools = Tools()
    by_hand(db, script, wrap=STARTED, tools=tools)
    run_id = last_run(db) or ""
    for at in (1, 2, 3, 4):
        by_hand(db, script, resume=run_id, at=at, tools=tools)
    asked = resume(face, db, run_id, script)
    assert asked.nothing_called and not tools.ran
    assert (asked.result is not None and asked.result.status == "parked") or WAIT in str(asked.error)
    assert [wait.id for wait in answer_all(db)] == [WAIT]
    for at in (1, 2, 3):
        by_hand(db, script, resume=run_id, at=at, tools=tools)
    after = resume(face, db, run_id, script)
    assert KEY not in tools.times() + after.tools.times()
    assert results(after.facts) == [(KEY, True, "charge 1"), ("t1-r1-c1", True, "add 2")]
    assert [fact.key for fact in after.facts if fact.kind == "wait.opened"] == [WAIT]


def test_the_effect_that_counts_is_the_one_it_started_with(face: str, db: Path) -> None:
    """What the row says: a host that calls the tool harmless today does not make yesterday's call so."""
    by_hand(db, [calls("charge:1"), done()], wrap=STARTED)
    tools = Tools()
    look = tools.own()[0]
    harmless = Tools()
    with Agent(db, model=Again([calls("charge:1"), done()]), tools=harmless.all(), durability="process") as agent:
        core: Any = agent._core
        core.tools = {**core.tools, "charge": replace(look, name="charge")}
        result = agent.resume_session("s").resume_run(last_run(db) or "")
    assert (result.status, [wait.kind for wait in result.waits]) == ("parked", ["unknown_outcome"])
    assert not tools.ran and not harmless.ran
