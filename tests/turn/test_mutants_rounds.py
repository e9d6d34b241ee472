"""A round's effects one by one: what is written before what, and what must survive a power cut (§5, §7).

The generator is driven by hand, so that a test sees each commit between two starts and two landings.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from thence.budget import GuardDecision
from thence.effects import AwaitTool, Landed, Stopped
from thence.events import NewEvent
from thence.facts import Answered, Call, NewFact, Returned, Text
from thence.inflight import InflightCall
from thence.ledger import Setup, configuration
from thence.limits import Limits
from thence.state import Phase

from .round_kit import END, SPECS, TRAITS, Round, landed


@pytest.mark.parametrize(
    ("calls", "how", "told"),
    [
        # what protects an effect is synced before it; the last landing goes with the settling commit
        (("odd",), {}, ["SYNC started", "start 0", "land 0", f"SYNC {END}"]),
        (
            ("once", "odd"), {},
            ["SYNC started", "start 0", "land 0", "SYNC landed", "SYNC started", "start 1", "land 1", f"SYNC {END}"],
        ),
        # reads need no sync of their own
        (("read",), {}, ["write started", "start 0", "land 0", f"write {END}"]),
        (
            ("read", "look", "read"), {"lands": (2, 0, 1)},
            ["write started", "start 0", "start 1", "start 2", "land 2", "write landed", "land 0", "write landed",
             "land 1", f"write {END}"],
        ),
        # no more than two at a time
        (
            ("read", "look", "read"), {"parallel": 2},
            ["write started", "start 0", "start 1", "land 0", "write landed", "write started", "start 2", "land 1",
             "write landed", "land 2", f"write {END}"],
        ),
        (
            ("read", "odd"), {},
            ["write started", "start 0", "land 0", "write landed", "SYNC started", "start 1", "land 1", f"SYNC {END}"],
        ),
        # a refusal parts no batch, and costs no commit
        (
            ("read", "none", "look"), {},
            ["write started", "start 0", "start 2", "land 0", "write landed", "land 2", f"write {END}"],
        ),
        (("none",), {}, ["write cursor facts"]),
        (("read", "odd"), {"deny": "odd"}, ["write started", "start 0", "land 0", "write landed", f"write {END}"]),
    ],
)  # fmt: skip
def test_what_is_written_before_what(calls: tuple[str, ...], how: dict[str, Any], told: list[str]):
    assert Round(*calls, **how).run().told == told


def test_results_become_facts_in_call_order_whoever_was_faster():
    done = Round("read", "look", "read", lands=(2, 1, 0)).run()
    assert [(row["key"], row["cause"]) for row in done.rows("fact_append")] == [
        (f"t1-r1-c{n}", f"tool:t1-r1-c{n}") for n in range(3)
    ]
    assert [row["seq"] for row in done.rows("fact_append")] == [3, 4, 5]
    assert [row["seq"] for row in done.rows("checkpoint_put")] == [5], "the cursor stands behind the results"


def test_a_call_has_one_name_in_every_copy_of_the_log():
    """§7: the idempotency key is made of the session, the chain's hash at the answer, and the position."""
    names = [f"s\n{bytes(range(32)).hex()}\n{n}" for n in range(2)]
    assert Round("read", "odd").run().keys[0] == hashlib.sha256(names[0].encode()).hexdigest()
    assert Round("read", "look").run().keys == [hashlib.sha256(name.encode()).hexdigest() for name in names]


def test_a_round_without_a_started_call_clears_nothing():
    done = Round("read").run()
    done.ledger.log.add([NewFact("t1-r2", None, Answered("", (Call("c", "none", {}),)))])
    done.told.clear()
    assert done.run().told == ["write cursor facts"]


def test_a_landed_call_is_traced_and_its_pieces_are_void():
    done = Round("read").run()
    assert done.rows("delta_clear") == [{"stream_pk": 5, "step": "t1-r1-c0"}]
    assert [row["name"] for row in done.rows("trace_append")] == ["read"]


def test_the_guard_denies_one_call():
    done = Round("read", "odd", deny="odd").run()
    assert json.loads(done.rows("fact_append")[1]["payload"]) == {
        "call_key": "t1-r1-c1", "reason": "too much", "resource": "tokens", "scope": "guard",
    }  # fmt: skip


# ------------------------------------------------------------------ after another run
@pytest.mark.parametrize(
    ("calls", "adopted", "told"),
    [
        # what had landed is not run again, and its row goes when it is a fact
        (("read",), [landed(0, "read", True)], [f"write {END}"]),
        (("once",), [landed(0, "once", True)], [f"write {END}"]),
        # what was running is run once more, under the row that it has
        (("read",), [landed(0, "read", False)], ["write restarted", "start 0", "land 0", f"write {END}"]),
        (("odd",), [landed(0, None, False)], ["SYNC restarted", "start 0", "land 0", f"SYNC {END}"]),
        (
            ("read", "look"), [landed(1, "read", False)],
            ["write restarted started", "start 0", "start 1", "land 0", "write landed", "land 1", f"write {END}"],
        ),
        (
            ("read", "look"), [landed(0, "read", True)],
            ["write started", "start 1", "land 1", f"write {END}"],
        ),
        ((), [], ["write cursor facts"]),
    ],
)  # fmt: skip
def test_a_run_that_goes_on(calls: tuple[str, ...], adopted: list[InflightCall], told: list[str]):
    done = Round(*(calls or ("none",)))
    done.rounds.adopt(adopted)
    assert done.run().told == told
    assert [row["position"] for row in done.rows("inflight_restart")] == [
        int(one.call_key[-1]) for one in adopted if one.result is None
    ]


# ------------------------------------------------------------------ cancelled
@pytest.mark.parametrize(("reason", "tail"), [("", ""), ("enough", " (enough)")])
def test_a_cancelled_call_has_a_result_and_does_not_count_as_run(reason: str, tail: str):
    done = Round("once", "odd", "read")
    done.rounds.done["t1-r1-c0"] = Returned("t1-r1-c0", True, (Text("out"),))
    done.rounds.running["t1-r1-c1"] = done.ledger.log.state.open[1]
    done.drive(done.rounds.settle_cancelled(reason))
    assert done.rows("wait_close_all") == []
    assert done.rounds.running == {} and done.ledger.log.state.phase is Phase.INFER
    assert done.ledger.log.state.tool_calls == 1
    done.drive(done.ledger.flush())
    first, running, waiting = (json.loads(row["payload"]) for row in done.rows("fact_append"))
    assert (first["ok"], running["ok"], waiting["ok"]) == (True, False, False)
    assert running["parts"][0]["text"] == f"Error: cancelled while it was running; its outcome is unknown{tail}"
    assert waiting["parts"][0]["text"] == f"Error: not run, because the run was cancelled{tail}"
    assert running["metadata"] == waiting["metadata"] == {"refused": "cancelled"}


def test_a_stop_comes_through_and_nothing_is_settled():
    done, stopped = Round("read", "read"), Stopped("cancel")
    answer: Any = None
    flow = done.rounds.settle_round()
    while not isinstance(effect := flow.send(answer), AwaitTool):
        answer = done._answer(effect)
    with pytest.raises(StopIteration) as end:
        flow.send(stopped)
    assert end.value.value is stopped and len(done.ledger.log.state.open) == 2
    done.drive(done.rounds.land_all([Landed(Returned("t1-r1-c1", True, ())), Landed(Returned("unknown", True, ()))]))
    assert [row["call_key"] for row in done.rows("inflight_land")] == ["t1-r1-c1"]
    assert list(done.rounds.running) == ["t1-r1-c0"]


# ------------------------------------------------------------------ the ledger
def test_nothing_staged_is_no_commit():
    done = Round("read")
    assert not done.ledger.staged
    done.drive(done.ledger.flush())
    assert done.told == []


def test_protection_is_for_the_next_commit_only():
    done = Round("read")
    for durable in (True, False):
        if durable:
            done.ledger.protect()
        done.ledger.say(NewEvent("t", {}))
        assert done.ledger.staged
        done.drive(done.ledger.flush())
        assert done.told.pop() == ("SYNC " if durable else "write ")
        assert not done.ledger.staged


@pytest.mark.parametrize(("decision", "said"), [("allow", 0), ("soft", 1), ("deny", 1)])
def test_only_what_the_guard_minds_is_told(decision: Any, said: int):
    done = Round("read")
    done.ledger.note_decision(GuardDecision(decision, "tokens", "why"))
    done.drive(done.ledger.flush())
    assert len(done.rows("event_append")) == said


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
def test_a_configuration_names_its_schemas_by_hash(schema: Any):
    setup = Setup("m", "i", {"t": 1}, SPECS, TRAITS, Limits(), schema)
    config, blobs = configuration(setup)
    tools = (
        '[{"description":"Reads.","effect":"read","name":"read","parameters":{"type":"object"},"repeatable":false},'
        '{"description":"","effect":"once","name":"once","parameters":{},"repeatable":false}]'
    )
    texts = [tools] if schema is None else [tools, '{"type":"object"}']
    assert blobs == {hashlib.sha256(text.encode()).hexdigest(): text.encode() for text in texts}
    assert [config.tools_sha256, config.output_sha256] == [*blobs, None][:2]
    assert (config.model, config.instructions, config.settings) == ("m", "i", {"t": 1})
    assert config.limits == Limits().to_dict()
