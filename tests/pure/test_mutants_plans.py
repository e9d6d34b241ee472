"""Each decision as the plan that writes it: the statement, every parameter, and where each comes from (§4, §5, §8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from thence import waits
from thence.chat import Usage
from thence.events import NewEvent
from thence.facts import Answered, Call, Data, Ended, NewFact, Returned, Text, WaitAnswered, WaitOpened
from thence.inflight import adopt_calls, clear_calls, land_call, refuse_call, restart_calls, start_calls
from thence.kept_state import keep_state
from thence.loopguard import LoopGuard
from thence.plan import Op, Plan, SqlValue
from thence.state import State
from thence.steps import OpenCall, Traits
from thence.writes import (
    BEGINNING,
    SCHEMA_VERSION,
    Head,
    RunIds,
    add_deltas,
    append,
    begin_run,
    checkpoint,
    clear_deltas,
    count_unknown,
    end_run,
    forget_checkpoint,
    fork_branch,
    keep_blobs,
    record_events,
    release,
    trace_call,
)

IDS = RunIds(2, "s", 8, "r", "me", 3, 5)
BIG = "x" * 70_000
SHA = hashlib.sha256(BIG.encode()).hexdigest()
KEEP = (
    Op("blob_add", ({"sha256": SHA, "size": 70_000, "bytes": BIG.encode()},)),
    Op("blob_ref_add", ({"session_pk": 2, "sha256": SHA},)),
)
STATE = State(
    turn=4, request=6, rounds=3, continuations=1, usage=Usage(1, 2, 3, 4, 5), without_usage=7, tool_calls=9,
    loop=LoopGuard(malformed=8),
)  # fmt: skip
RUN: dict[str, SqlValue] = {"run_pk": 5, "fence": 3}
TOTALS: dict[str, SqlValue] = {
    **RUN, "rounds": 3, "tool_calls_count": 9, "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3,
    "cache_read_tokens": 4, "cache_write_tokens": 5, "requests_without_usage": 7,
}  # fmt: skip
WAIT = WaitOpened("w", "question", "t1-r1-c1", "d", 77, {"question": "why?"})
CLOSING: dict[str, SqlValue] = {"session_pk": 2, "fence": 3, "now_ms": 9}
OPENED: dict[str, SqlValue] = {
    "session_pk": 2, **RUN, "wait_id": "w", "kind": "question", "subject": "t1-r1-c1", "digest": "d", "deadline_ms": 77,
    "opened_ms": 9,
}  # fmt: skip


def call(position: int, name: str) -> OpenCall:
    return OpenCall(f"t1-r1-c{position}", position, Call("c", name, {}), "signature")


PLANS: list[tuple[str, Callable[[], Any], Any]] = [
    ("release", lambda: release(IDS), Op("session_release", ({"session_pk": 2, "owner": "me", "fence": 3},))),
    (
        "begin_run", lambda: begin_run(IDS, first_seq=6, input_sha256="ab", prompt="p", now_ms=9),
        (
            Op("run_identity_add", ({
                "run_id": "r", "session_pk": 2, "first_seq": 6, "input_sha256": "ab", "resumed_from": None,
            },)),
            Op("stream_add", ({"run_id": "r"},)),
            Op(
                "run_begin", ({"run_id": "r", "fence": 3, "status": "executing", "now_ms": 9, "prompt": "p"},),
                returning=True,
            ),
        ),
    ),
    (
        "fork_branch", lambda: fork_branch(2),
        (
            Op("branch_fork", ({"session_pk": 2},), expect=1, returning=True),
            Op("ancestry_fork", ({"session_pk": 2},)), Op("session_go_live_again", ({"session_pk": 2},)),
        ),
    ),
    ("adopt_calls", lambda: adopt_calls(IDS), Op("inflight_adopt", ({"session_pk": 2, "run_id": "r", "fence": 3},))),
    ("keep_blobs", lambda: keep_blobs(2, {SHA: BIG.encode()}), KEEP),
    ("keep no blobs", lambda: keep_blobs(2, {}), ()),
    ("no events", lambda: record_events(IDS, (), 9), ()),
    (
        "events", lambda: record_events(IDS, (NewEvent("t", {"b": 1, "a": "é"}), NewEvent("u", {})), 9),
        (Op("event_append", (
            {"stream_pk": 5, "run_id": "r", "fence": 3, "ts_ms": 9, "type": "t", "payload": '{"a":"é","b":1}'},
            {"stream_pk": 5, "run_id": "r", "fence": 3, "ts_ms": 9, "type": "u", "payload": "{}"},
        )),),
    ),
    (
        "start_calls",
        lambda: start_calls(IDS, (call(0, "look"), call(1, "odd")), {"look": Traits("read"), "odd": Traits(None)}, 9),
        Op("inflight_start", tuple(
            {
                "session_pk": 2, **RUN, "call_key": f"t1-r1-c{n}", "position": n, "tool": tool, "effect": effect,
                "started_ms": 9,
            } for n, (tool, effect) in enumerate((("look", "read"), ("odd", None)))
        )),
    ),
    (
        "land_call", lambda: land_call(IDS, Returned("k", True, (Data(1),)), 9),
        (Op(
            "inflight_land",
            ({
                "session_pk": 2, "call_key": "k", "fence": 3, "landed_ms": 9, "blobs": None,
                "result": '{"call_key":"k","metadata":{},"ok":true,"parts":[{"type":"json","value":1}]}',
            },),
            expect=1, refusal="OWNERSHIP_LOST",
        ),),
    ),
    (
        "restart_calls", lambda: restart_calls(IDS, (call(1, "look"), call(3, "odd"))),
        Op("inflight_restart", tuple({"session_pk": 2, "position": n, "fence": 3} for n in (1, 3))),
    ),
    (
        "refuse_call",
        lambda: refuse_call(IDS, call(1, "odd"), Returned("t1-r1-c1", False, (Text("no"),), {"refused": "rejected"})),
        Op("inflight_refuse", ({
            "session_pk": 2, "run_id": "r", "fence": 3, "call_key": "t1-r1-c1", "position": 1, "tool": "odd",
            "result": '{"call_key":"t1-r1-c1","metadata":{"refused":"rejected"},"ok":false,'
                      '"parts":[{"text":"no","type":"text"}]}',
        },)),
    ),
    (
        "open a wait",
        lambda: waits.open_wait(IDS, WAIT, Call("c", "odd", {"b": 1, "a": "é"}), 9),
        Op("wait_open", ({
            **OPENED, "payload": '{"arguments":{"a":"é","b":1},"question":"why?","tool":"odd"}',
        },)),
    ),
    (
        "open a wait about no call", lambda: waits.open_wait(IDS, WAIT, None, 9),
        Op("wait_open", ({**OPENED, "payload": '{"question":"why?"}'},)),
    ),
    ("close", lambda: waits.close(IDS, "w", 9), Op("wait_close", ({**CLOSING, "wait_id": "w"},))),
    ("close_all", lambda: waits.close_all(IDS, 9), Op("wait_close_all", (CLOSING,))),
    ("adopt", lambda: waits.adopt(IDS), Op("wait_adopt", ({"session_pk": 2, "run_id": "r", "fence": 3},))),
    ("expire", lambda: waits.expire(IDS, 9), Op("wait_expire", ({"session_pk": 2, "now_ms": 9},))),
    (
        "answer", lambda: waits.answer(2, "w", {"b": 1, "a": "é"}, digest=None, by="ann", now_ms=9),
        Plan((Op(
            "wait_answer",
            ({
                "session_pk": 2, "wait_id": "w", "value": '{"a":"é","b":1}', "by": "ann", "digest": None, "now_ms": 9,
            },),
            expect=1, refusal="WAIT_NOT_FOUND",
        ),), durable=True),
    ),
    (
        "park", lambda: waits.park(IDS, STATE, tool_calls=12, without_usage=13, now_ms=9),
        Op("run_park", ({**TOTALS, "tool_calls_count": 12, "requests_without_usage": 13, "now_ms": 9},), expect=1,
           refusal="ANSWERED"),
    ),
    (
        "wake", lambda: waits.wake(IDS, 9),
        Op("run_wake", ({**RUN, "now_ms": 9},), expect=1, refusal="SESSION_BUSY"),
    ),
    ("clear_calls", lambda: clear_calls(IDS), Op("inflight_clear", ({"session_pk": 2},))),
    (
        "trace_call", lambda: trace_call(IDS, "look", {"b": 1, "a": 2}, 9),
        Op("trace_append", ({
            "session_pk": 2, **RUN, "ts_ms": 9, "kind": "tool_execution", "name": "look", "payload": '{"a":2,"b":1}',
        },)),
    ),
    (
        "checkpoint", lambda: checkpoint(IDS, Head(6, b"h"), STATE, 9),
        Op("checkpoint_put", ({
            "session_pk": 2, **RUN, "branch_pk": 8, "seq": 6, "round": 3, "ts_ms": 9, "schema_version": 1,
            "counters": '{"continuations":1,"malformed":8,"request":6,"tool_calls":9,"turn":4,"without_usage":7}',
            "usage": '{"cache_read_tokens":4,"cache_write_tokens":5,"completion_tokens":2,"prompt_tokens":1,'
                     '"total_tokens":3}',
            **dict(zip(("state", "proof"), keep_state(STATE, b"h") or (), strict=True)),
        },)),
    ),
    ("clear_deltas", lambda: clear_deltas(IDS, "t1-r1"), Op("delta_clear", ({"stream_pk": 5, "step": "t1-r1"},))),
    (
        "add_deltas", lambda: add_deltas(IDS, 7, [("t1-r1", "text_delta", {"text": t}) for t in "ab"]),
        Plan((Op("delta_add", tuple(
            {
                "stream_pk": 5, "fence": 3, "number": number, "step": "t1-r1", "type": "text_delta",
                "payload": f'{{"text":"{text}"}}',
            } for number, text in ((7, "a"), (8, "b"))
        )),), durable=False),
    ),
    (
        "end_run", lambda: end_run(IDS, STATE, status="completed", now_ms=9, text="answer"),
        Op("run_end", ({
            **TOTALS, "status": "completed", "now_ms": 9, "resumable": 0, "error_code": None, "error_message": None,
            "result_text": "answer",
        },), expect=1, refusal="STEERED"),
    ),
    (
        "end_run badly",
        lambda: end_run(IDS, STATE, status="failed", now_ms=9, text=None, error=("CODE", "why"), resumable=True),
        Op("run_end", ({
            **TOTALS, "status": "failed", "now_ms": 9, "resumable": 1, "error_code": "CODE", "error_message": "why",
            "result_text": None,
        },), refusal="STEERED"),
    ),
    (
        "count_unknown", lambda: count_unknown(IDS, at_least=3, more=2),
        Op("run_count_unknown", ({**RUN, "at_least": 3, "more": 2},)),
    ),
    ("forget_checkpoint", lambda: forget_checkpoint(IDS), Op("run_forget_checkpoint", ({"session_pk": 2},))),
]  # fmt: skip


@pytest.mark.parametrize(("made", "expected"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_the_plan_of(made: Callable[[], Any], expected: Any):
    assert made() == expected


def test_a_run_that_goes_on_names_the_one_before_it():
    first, *_ = begin_run(IDS, first_seq=6, input_sha256="ab", prompt="p", now_ms=9, resumed_from=4)
    assert first.rows[0]["resumed_from"] == 4


def test_facts_go_on_from_the_head_in_one_chain():
    facts = [
        NewFact("k1", "why", Returned("k1", False, (Text("a"), Text(BIG)))),
        NewFact("k2", None, Ended("completed")),
    ]
    ops, head, answer = append(IDS, Head(6, bytes(range(32))), facts, 9)
    texts = [
        f'{{"call_key":"k1","metadata":{{}},"ok":false,"parts":[{{"text":"a","type":"text"}},{{"text_sha256":"{SHA}",'
        '"type":"text"}]}',
        '{"status":"completed"}',
    ]
    quoted = texts[0].replace('"', '\\"')
    one = hashlib.sha256(bytes(range(32)) + f'[7,"tool.result","k1","why","{quoted}"]'.encode()).digest()
    two = hashlib.sha256(one + rb'[8,"turn.ended","k2",null,"{\"status\":\"completed\"}"]').digest()
    where: dict[str, SqlValue] = {"branch_pk": 8, **RUN, "run_id": "r", "ts_ms": 9}
    assert ops == (
        *KEEP,
        Op("fact_append", (
            {
                **where, "seq": 7, "kind": "tool.result", "key": "k1", "cause": "why", "hash": one,
                "prev_hash": bytes(range(32)), "blobs": f'["{SHA}"]', "payload": texts[0],
            },
            {
                **where, "seq": 8, "kind": "turn.ended", "key": "k2", "cause": None, "hash": two, "prev_hash": one,
                "blobs": None, "payload": texts[1],
            },
        )),
    )  # fmt: skip
    assert head == Head(8, two) and answer is None


def test_the_last_answer_of_a_model_names_its_calls_wherever_the_head_is():
    wait = NewFact("w", None, WaitAnswered("w", True))
    facts = [NewFact(f"k{n}", None, Answered(str(n))) for n in range(2)]
    ops, head, answer = append(IDS, Head(), [*facts, wait], 9)
    hashes = [row["hash"] for row in ops[-1].rows]
    assert answer == hashes[1] != head.hash == hashes[2]
    assert append(IDS, head, [wait], 9)[2] is None


def test_a_landing_keeps_the_blobs_that_its_text_names():
    more = "y" * 70_000
    *kept, land = land_call(IDS, Returned("k", True, (Text(BIG), Text(more))), 9)
    names = sorted((SHA, hashlib.sha256(more.encode()).hexdigest()))
    assert [op.statement for op in kept] == ["blob_add", "blob_ref_add"]
    assert sorted(row["sha256"] for row in kept[1].rows) == names  # type: ignore[type-var]
    assert land.rows[0]["blobs"] == f'["{names[0]}","{names[1]}"]'


def test_an_empty_branch_and_a_run_without_its_row():
    assert BEGINNING == Head() == Head(0, bytes(32))
    assert replace(IDS, run_pk=None) == RunIds(2, "s", 8, "r", "me", 3)
    assert RunIds(2, "s", 8, "r", "me", 3).head == BEGINNING
    assert SCHEMA_VERSION == 1
