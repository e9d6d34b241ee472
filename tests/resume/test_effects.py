"""What may run again (§7): a landed result never; a call that had not started, once; a started one by its effect."""

from __future__ import annotations

import hashlib
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, DiskFull, RunInterrupted

from ..kit import check_messages, results
from .hand import by_hand, dies_at
from .kit import (
    OUTCOME_UNKNOWN,
    Again,
    Eyes,
    Tools,
    calls,
    done,
    head,
    last_run,
    options,
    rest,
    resume,
    resume_to_its_end,
)

KEY = "t1-r1-c0"
STARTED = dies_at("inflight_start")
RAN = dies_at("inflight_land", when="before")
LANDED = dies_at("inflight_land")


@pytest.mark.parametrize("ran", [True, False], ids=["ran", "did not run"])
@pytest.mark.parametrize("name", ["look", "put", "add", "fail"])
def test_a_started_call_runs_again_with_the_same_key(face: str, db: Path, quick: Path, name: str, ran: bool) -> None:
    """read, idempotent and undeclared: whether its process got to run it or not, nobody can know."""
    script = [calls(f"{name}:1", "add:2"), done()]
    before = Tools()
    by_hand(db, script, wrap=RAN if ran else STARTED, tools=before)
    assert rest(db).started.keys() == {KEY} and before.keys() == [KEY] * ran
    after = resume(face, db, last_run(db) or "", script)
    assert after.tools.keys() == [KEY, "t1-r1-c1"]
    keys = {one.idempotency_key for one in before.ran + after.tools.ran if one.call_key == KEY}
    assert len(keys) == 1 and len(keys.pop()) == 64
    assert {one.run_id for one in after.tools.ran} == {last_run(db)}
    by_hand(quick / "undisturbed.db", script)
    assert head(db) == head(quick / "undisturbed.db")


@pytest.mark.parametrize("name", ["look", "put", "add", "charge"])
def test_a_call_that_had_not_started_runs_once(face: str, db: Path, name: str) -> None:
    """``once`` too: it is in the log and was never begun."""
    script = [calls("add:1", f"{name}:2"), done()]
    before = Tools()
    by_hand(db, script, wrap=STARTED, tools=before)
    after = resume(face, db, last_run(db) or "", script)
    assert (before.times() + after.tools.times())["t1-r1-c1"] == 1
    assert results(after.facts)[1] == ("t1-r1-c1", True, f"{name} 2")


@pytest.mark.parametrize("name", ["look", "put", "add", "charge", "fail"])
def test_a_landed_result_is_never_run_again(face: str, db: Path, name: str) -> None:
    """A failed result has landed as well."""
    script = [calls(f"{name}:1", "add:2"), done()]
    before = Tools()
    by_hand(db, script, wrap=LANDED, tools=before)
    assert before.keys() == [KEY]
    assert rest(db).landed == {KEY}
    after = resume(face, db, last_run(db) or "", script)
    assert after.tools.keys() == ["t1-r1-c1"]
    assert [key for key, _, _ in results(after.facts)] == [KEY, "t1-r1-c1"]


SUBSETS = [set(chosen) for size in range(4) for chosen in combinations(range(3), size)]


@pytest.mark.parametrize("answered", SUBSETS, ids=lambda chosen: "".join("abc"[n] for n in sorted(chosen)) or "none")
def test_b01_each_subset_of_a_batch(face: str, db: Path, quick: Path, answered: set[int]) -> None:
    """B01: exactly the missing ones run, and the next request sees 3 results."""
    script = [calls("look:1", "look:2", "look:3"), done()]
    before = Tools()
    wrap = {0: STARTED, 3: dies_at("fact_append", "tool.result")}.get(
        len(answered), dies_at("inflight_land", count=len(answered))
    )
    by_hand(db, script, wrap=wrap, ending=sorted(answered), tools=before)
    names = {f"t1-r1-c{number}" for number in answered}
    found = rest(db)
    assert (found.landed | found.settled) == names
    after = resume(face, db, last_run(db) or "", script)
    missing = {f"t1-r1-c{number}" for number in range(3)} - names
    assert after.tools.times() == dict.fromkeys(missing, 1)
    assert [m.text for m in after.model.requests[-1].messages if m.role == "tool"] == ["look 1", "look 2", "look 3"]
    by_hand(quick / "undisturbed.db", script)
    assert head(db) == head(quick / "undisturbed.db")


class FailsOnce:
    """A store whose first commit with a landing (or with results) is refused by a full disk."""

    def __init__(self, store: Any) -> None:
        self._store, self.failed = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, plan: Any) -> Any:
        lands = any(
            op.statement == "inflight_land" or any(row.get("kind") == "tool.result" for row in op.rows)
            for op in plan.ops
        )
        if lands and not self.failed:
            self.failed = True
            raise DiskFull("no space left")
        return self._store.commit(plan)


@pytest.mark.parametrize("more", [True, False], ids=["landing", "settling"])
def test_b05_a_result_that_could_not_be_stored(face: str, db: Path, more: bool) -> None:
    """B05: the call runs twice in all, with one idempotency key; its result is stored once."""
    script = [calls("add:1", "add:2") if more else calls("add:1"), done()]
    before = Tools()
    _, outcome = by_hand(db, script, wrap=FailsOnce, tools=before)
    assert isinstance(outcome, DiskFull)
    assert before.keys() == [KEY] and rest(db).started.keys() == {KEY}
    after = resume(face, db, last_run(db) or "", script)
    assert after.error is None
    ran = [one for one in before.ran + after.tools.ran if one.call_key == KEY]
    assert len(ran) == 2 and len({one.idempotency_key for one in ran}) == 1
    assert [key for key, _, _ in results(after.facts)].count(KEY) == 1


def test_b05_once_is_charged_once(face: str, db: Path) -> None:
    """B05 with the effect that says so: 1 time in total, and the model is told what a person knows of it."""
    script = [calls("charge:1"), done()]
    before = Tools()
    by_hand(db, script, wrap=FailsOnce, tools=before)
    after = resume_to_its_end(face, db, last_run(db) or "", script)
    assert before.keys() == [KEY] and not after.tools.ran
    assert [fact.key for fact in after.facts if fact.kind == "wait.opened"] == [f"{KEY}-w1"]
    assert results(after.facts) == [(KEY, True, "charge 1")]
    assert after.result is not None and after.result.status == "completed"


def test_the_key_is_the_same_in_a_copy_of_the_file(face: str, db: Path, quick: Path) -> None:
    """SHA-256 of session, chain hash at the answer and position (§7): nothing of the machine or the run is in it."""
    script = [calls("add:1", "add:2"), done()]
    before = Tools()
    by_hand(db, script, wrap=RAN, tools=before)
    shutil.copy(db, quick / "copy.db")
    with Eyes(db) as eyes:
        anchor = eyes.one("SELECT hash FROM facts WHERE kind = 'model.turn'")
    expected = [hashlib.sha256(f"s\n{anchor}\n{position}".encode()).hexdigest() for position in range(2)]
    assert [one.idempotency_key for one in before.ran] == expected[:1]
    for path in (db, quick / "copy.db"):
        after = resume(face, path, last_run(path) or "", script)
        assert [one.idempotency_key for one in after.tools.ran] == expected


def test_a01_a_call_without_a_result(face: str, db: Path) -> None:
    """A01: run exactly once, 1 call and 1 result in the request, and a second resume runs nothing."""
    script = [calls("add:5"), done("5")]
    by_hand(db, script, wrap=dies_at("fact_append", "model.turn"))
    run_id = last_run(db) or ""
    after = resume(face, db, run_id, script)
    assert after.tools.keys() == [KEY]
    asked = after.model.requests[0].messages
    assert [m.role for m in asked] == ["user", "assistant", "tool"] and asked[2].call_key == asked[1].calls[0].key
    assert after.result is not None and after.result.text == "5"
    again = resume(face, db, run_id, script)
    assert again.nothing_called and again.result is not None and again.result.replayed


def test_a02_an_orphan_that_is_not_at_the_tail(db: Path) -> None:
    """A02: no user message can come after an open call: the log refuses it, and ``send`` asks first what to do. With
    ``settle`` the orphan gets its explicit result in its place, and was run 0 times."""
    by_hand(db, [calls("add:1"), done()], wrap=STARTED)
    tools, model = Tools(), Again([calls("add:1"), done("Going on.")])
    with Agent(db, model=model, tools=tools.all(), durability="process") as agent:
        session = agent.resume_session("s")
        with pytest.raises(RunInterrupted) as caught:
            session.send("go on")
        assert caught.value.open_calls == (KEY,)
        assert session.send("go on", on_interrupted="settle").text == "Going on."
        check_messages(session.history())
        assert [m.role for m in session.history()] == ["user", "assistant", "tool", "user", "assistant"]
        assert results(session.facts()) == [(KEY, False, OUTCOME_UNKNOWN)]
    assert not tools.ran


def test_a06_call_in_one_run_and_result_in_another(face: str, db: Path) -> None:
    """A06: r1 byte-equal, r2 a new run, 1 call and 1 result, and 5 later turns succeed."""
    script = [calls("add:1"), done(), *[done(f"Turn {n}") for n in range(5)]]
    by_hand(db, script, wrap=STARTED)
    r1 = last_run(db) or ""
    with Eyes(db) as eyes:
        before = eyes.rows("SELECT * FROM run")
    after = resume(face, db, r1, script)
    with Eyes(db) as eyes:
        assert eyes.rows("SELECT * FROM run ORDER BY run_pk")[:1] == before
        assert eyes.rows("SELECT run_id FROM facts WHERE kind = 'model.turn' AND key = 't1-r1'") == [(r1,)]
        assert eyes.rows("SELECT run_id FROM facts WHERE kind = 'tool.result'") == [(last_run(db),)]
    assert after.result is not None and after.result.run_id == last_run(db) != r1
    with Agent(db, model=Again(script), tools=Tools().all(), durability="process") as agent:
        session = agent.resume_session("s")
        assert [session.send("More.").text for _ in range(5)] == [f"Turn {n}" for n in range(5)]
        check_messages(session.history())


def test_a12_results_are_stored_under_the_calls_own_key(face: str, db: Path) -> None:
    """A12: the provider's id, any message's id and the call's key are three things; the result is found by the key, and
    a look-up by another id is a typed error to the model, not silence."""
    from thence.testing import call, reply

    first = reply("m-1", calls=[call("add", {"n": 1}, id="c-1")])
    lookup = reply("", calls=[call("read_output", {"call": "m-1"}), call("read_output", {"call": "c-1"})])
    script = [first, lookup, done()]
    by_hand(db, script, wrap=STARTED)
    after = resume(face, db, last_run(db) or "", script)
    assert after.result is not None
    said = results(after.facts)
    assert said[0] == (KEY, True, "add 1")
    assert [ok for _, ok, _ in said[1:]] == [False, False]
    assert "m-1" in said[1][2] and "c-1" in said[2][2]


def test_b19_a_free_call_beside_a_denied_one(face: str, db: Path) -> None:
    """B19, with a death between the two: a keeps its result and ran once; b stays denied and never ran."""

    class Denies:
        def check_before_tool(self, session_id: str, name: str) -> Any:
            return {"decision": "deny", "resource": "adds", "reason": "no"} if name == "add" else None

    script = [calls("look:1", "add:2", "look:3"), done()]
    before = Tools()
    by_hand(db, script, wrap=dies_at("inflight_land"), tools=before, given={"budget_guard": Denies()})
    after = resume(face, db, last_run(db) or "", script, given={"budget_guard": Denies()})
    total = before.times() + after.tools.times()
    assert total["t1-r1-c0"] == 1 and total["t1-r1-c1"] == 0
    assert results(after.facts) == [
        ("t1-r1-c0", True, "look 1"),
        ("t1-r1-c1", False, "Budget exhausted on 'adds': no"),
        ("t1-r1-c2", True, "look 3"),
    ]
    with Agent(db, model=Again([*script, done("Open.")]), tools=Tools().all(), durability="process") as agent:
        session = agent.session("/w", options(budget_guard=Denies()))
        assert session.send("Still open?").text == "Open."
