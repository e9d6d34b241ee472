"""A round that must wait for the world, effect by effect: what is asked, what is kept, what goes on (§7, §10)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from thence.effects import Postponed
from thence.facts import NewFact, WaitOpened

from .round_kit import END, Round, landed

W1 = "t1-r1-c1-w1"
ASKED = {
    "wait_id": W1, "kind": "unknown_outcome", "subject": "t1-r1-c1",
    "digest": hashlib.sha256(b'["once",{"n":1}]').hexdigest(),
}  # fmt: skip


def interrupted(starts: int = 1) -> Round:
    done = Round("once", "once", "read", "odd")
    done.rounds.adopt([landed(0, "once", True), replace(landed(1, "once", False), starts=starts)])
    return done


def test_an_interrupted_once_call_asks_what_came_of_it():
    """§7, §10: it does not run; a `read` behind it does, the undeclared call behind it waits."""
    done = interrupted().park()
    assert done.told == ["SYNC asked facts started", "start 2", "land 2", "write landed"]
    assert [{name: row[name] for name in ASKED} for row in done.rows("wait_open")] == [ASKED]
    [fact] = done.rows("fact_append")
    assert (fact["kind"], fact["key"], fact["cause"]) == ("wait.opened", W1, "wait:t1-r1-c1")
    said = json.loads(fact["payload"])
    assert {name: said[name] for name in ASKED} == ASKED and "must not run twice" in said["about"]["question"]
    done.told.clear()
    assert done.park().told == [], "nobody is asked the same twice"


@pytest.mark.parametrize(
    ("value", "ok", "part"),
    [
        ({"outcome": "done", "result": {"paid": 1}}, True, {"type": "json", "value": {"paid": 1}}),
        ({"outcome": "done", "result": "paid"}, True, {"type": "text", "text": "paid"}),
        ({"outcome": "failed", "error": "bounced"}, False, {"type": "text", "text": "Error: bounced"}),
        ("nonsense of another program", False, {"type": "text", "text": "Error: it failed"}),
    ],
)
def test_what_a_person_says_of_a_once_call_is_its_result(value: Any, ok: bool, part: Any):
    done = interrupted().park().hear(W1, value).run()
    assert done.told == ["SYNC started", "start 3", "land 3", f"SYNC {END}"]
    facts = {row["key"]: json.loads(row["payload"]) for row in done.rows("fact_append")}
    assert list(facts) == [f"t1-r1-c{n}" for n in range(4)]
    assert facts["t1-r1-c0"]["parts"] == [{"text": "kept", "type": "text"}] and facts["t1-r1-c0"]["ok"]
    assert (facts["t1-r1-c1"]["ok"], facts["t1-r1-c1"]["parts"]) == (ok, [part])
    assert facts["t1-r1-c1"]["metadata"] == {"answered": True, "effect": "once"}


def test_a_once_call_runs_again_when_somebody_says_so():
    """Under the row that it has, with the same key, synced as ever."""
    done = interrupted().park().hear(W1, {"outcome": "run"}).run()
    assert done.told[:3] == ["SYNC restarted", "start 1", "land 1"]
    assert [row["position"] for row in done.rows("inflight_restart")] == [1]
    assert done.keys[1] == hashlib.sha256(f"s\n{bytes(range(32)).hex()}\n1".encode()).hexdigest()


@pytest.mark.parametrize(("starts", "asks"), [(1, False), (2, True), (3, True)])
def test_a_word_is_for_the_start_before_it(starts: int, asks: bool):
    done = interrupted(starts)
    wait = WaitOpened(W1, "unknown_outcome", "t1-r1-c1", "d")
    done.ledger.log.add([NewFact(W1, None, wait)])
    done.hear(W1, {"outcome": "run"})
    (done.park if asks else done.run)()
    assert [row["wait_id"] for row in done.rows("wait_open")] == ["t1-r1-c1-w2"] * asks
    assert ("start 1" in done.told) is not asks


def test_what_was_refused_before_the_run_parks_is_kept():
    done = Round("none", "once")
    done.rounds.adopt([landed(1, "once", False)])
    assert done.park().told == ["SYNC asked facts refused"]
    [row] = done.rows("inflight_refuse")
    assert (row["position"], row["call_key"], json.loads(row["result"])["ok"]) == (0, "t1-r1-c0", False)
    done.told.clear()
    assert done.park().told == [], "it is kept once"
    assert done.hear(W1, {"outcome": "done", "result": 1}).run().told == [f"write {END}"]


def test_a_call_that_is_handed_over_waits():
    """`Defer`: its pieces are void, and what lands beside it is kept."""
    done = Round("read", "look", postpone={1: Postponed("t1-r1-c1", "deferred", "a build", 77)}).park()
    assert done.told == [
        "write started", "start 0", "start 1", "land 0", "write landed", "land 1", "SYNC asked facts",
    ]  # fmt: skip
    [row] = done.rows("wait_open")
    assert (row["wait_id"], row["kind"], row["deadline_ms"]) == (W1, "deferred", 77)
    assert json.loads(row["payload"])["question"] == "a build"
    assert {row["step"] for row in done.rows("delta_clear")} == {"t1-r1-c0", "t1-r1-c1"}
    assert done.hear(W1, [1]).run().told == [f"write {END}"]
    assert [json.loads(row["payload"])["ok"] for row in done.rows("fact_append")] == [True, True]


def test_calls_that_ran_are_counted_while_the_run_is_parked():
    done = interrupted().park()
    assert done.rounds.executed == 2, "the one that had landed and the `read`"
    assert Round("none", "read").run().rounds.executed == 0, "they are facts"


def test_a_cancelled_wait_is_closed_and_its_call_has_a_result():
    done = Round("once", "read")
    done.ledger.log.add([NewFact("w", None, WaitOpened("w", "question", "t1-r1-c0", "d"))])
    done.drive(done.rounds.settle_cancelled("enough"))
    done.drive(done.ledger.flush())
    assert done.rows("wait_close_all") == [{"session_pk": 2, "fence": 3, "now_ms": 1000}]
    assert [row["key"] for row in done.rows("fact_append")] == ["t1-r1-c0", "t1-r1-c1"]
