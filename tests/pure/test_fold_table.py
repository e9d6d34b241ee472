"""Every arrow of the fold's table, and every pair that is no arrow (§4, §5)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from thence.compacted import Compacted
from thence.errors import IllegalFact
from thence.facts import (
    Answered,
    Asked,
    Call,
    Configured,
    Denied,
    Ended,
    NewFact,
    Note,
    Payload,
    Reported,
    Returned,
    Text,
    WaitAnswered,
    WaitOpened,
    Waived,
)
from thence.fold import TRANSITIONS, advance, fold
from thence.state import Phase, State

HOST = Asked((Text("hi"),))
STEER = Asked((Text("rather"),), "steer", "q1")
MORE = Asked((Text("Continue."),), "continuation")
CONFIG = Configured("m", "", {}, {}, "0" * 64)
SAY = Answered("text")
CALL1 = Answered("", (Call("a", "x", {}),))
CALL2 = Answered("", (Call("a", "x", {}), Call("a", "x", {})))
RESULT = Returned("t1-r1-c0", True, (Text("out"),))
GUARD = Denied("t1-r1-c0", "guard", "r", "why")
CAP = Denied("t1-r1-c0", "round_cap", "r", "why")
REPORT = Reported("d" * 64, True, {"n": 1})
WAIVER = Waived("d" * 64, "by hand")
END = Ended("completed")
SHORT = Compacted("request", "What was said.", None, 1, {})
# About the first model request, about the first call of its answer, about the second.
HELD = WaitOpened("t1-r1-w1", "budget_hold", "t1-r1", "d")
GATED = WaitOpened("t1-r1-c0-w1", "confirmation", "t1-r1-c0", "d", None, {"question": "why?"})
GATED2 = WaitOpened("t1-r1-c1-w1", "question", "t1-r1-c1", "d")
HELD_YES = WaitAnswered("t1-r1-w1", True, "ann")
GATED_YES = WaitAnswered("t1-r1-c0-w1", {"approved": True})
WRONG_KEY = Returned("t1-r1-c1", True, (Text("out"),))

# How to get into each phase; the calls phase comes with one open call and with two.
WAYS: dict[str, tuple[Phase, list[Payload]]] = {
    "idle": (Phase.IDLE, []),
    "idle again": (Phase.IDLE, [HOST, SAY, END]),
    "infer": (Phase.INFER, [HOST]),
    "one call": (Phase.CALLS, [HOST, CALL1]),
    "two calls": (Phase.CALLS, [HOST, CALL2]),
    "held": (Phase.INFER, [HOST, HELD]),
    "held and heard": (Phase.INFER, [HOST, HELD, HELD_YES]),
    "gated": (Phase.CALLS, [HOST, CALL1, GATED]),
    "gated and heard": (Phase.CALLS, [HOST, CALL1, GATED, GATED_YES]),
    "two gated": (Phase.CALLS, [HOST, CALL2, GATED2, GATED]),
    "answered": (Phase.ANSWERED, [HOST, SAY]),
    "answered by the cap": (Phase.ANSWERED, [HOST, CALL1, CAP]),
}

# (way, payload) -> phase that follows. What is not here is illegal.
ARROWS: dict[tuple[str, str], Phase] = {
    ("idle", "CONFIG"): Phase.IDLE,
    ("idle", "HOST"): Phase.INFER,
    ("idle", "SHORT"): Phase.IDLE,
    ("idle again", "SHORT"): Phase.IDLE,
    ("infer", "SHORT"): Phase.INFER,
    ("held and heard", "SHORT"): Phase.INFER,
    ("idle again", "CONFIG"): Phase.IDLE,
    ("idle again", "HOST"): Phase.INFER,
    ("infer", "CONFIG"): Phase.INFER,
    ("infer", "STEER"): Phase.INFER,
    ("infer", "MORE"): Phase.INFER,
    ("infer", "SAY"): Phase.ANSWERED,
    ("infer", "CALL1"): Phase.CALLS,
    ("infer", "CALL2"): Phase.CALLS,
    ("infer", "END"): Phase.IDLE,
    ("infer", "HELD"): Phase.INFER,
    ("held", "CONFIG"): Phase.INFER,
    ("held", "STEER"): Phase.INFER,
    ("held", "MORE"): Phase.INFER,
    ("held", "SAY"): Phase.ANSWERED,
    ("held", "CALL1"): Phase.CALLS,
    ("held", "CALL2"): Phase.CALLS,
    ("held", "END"): Phase.IDLE,
    ("held", "HELD_YES"): Phase.INFER,
    ("held and heard", "CONFIG"): Phase.INFER,
    ("held and heard", "STEER"): Phase.INFER,
    ("held and heard", "MORE"): Phase.INFER,
    ("held and heard", "SAY"): Phase.ANSWERED,
    ("held and heard", "CALL1"): Phase.CALLS,
    ("held and heard", "CALL2"): Phase.CALLS,
    ("held and heard", "END"): Phase.IDLE,
    ("one call", "GATED"): Phase.CALLS,
    ("gated", "RESULT"): Phase.INFER,
    ("gated", "GUARD"): Phase.INFER,
    ("gated", "CAP"): Phase.ANSWERED,
    ("gated", "GATED_YES"): Phase.CALLS,
    ("gated and heard", "RESULT"): Phase.INFER,
    ("gated and heard", "GUARD"): Phase.INFER,
    ("gated and heard", "CAP"): Phase.ANSWERED,
    ("two calls", "GATED"): Phase.CALLS,
    ("two calls", "GATED2"): Phase.CALLS,
    ("two gated", "RESULT"): Phase.CALLS,
    ("two gated", "GUARD"): Phase.CALLS,
    ("two gated", "CAP"): Phase.CALLS,
    ("two gated", "GATED_YES"): Phase.CALLS,
    ("one call", "RESULT"): Phase.INFER,
    ("one call", "GUARD"): Phase.INFER,
    ("one call", "CAP"): Phase.ANSWERED,
    ("two calls", "RESULT"): Phase.CALLS,
    ("two calls", "GUARD"): Phase.CALLS,
    ("two calls", "CAP"): Phase.CALLS,
    ("answered", "CONFIG"): Phase.ANSWERED,
    ("answered", "STEER"): Phase.INFER,
    ("answered", "MORE"): Phase.INFER,
    ("answered", "REPORT"): Phase.ANSWERED,
    ("answered", "WAIVER"): Phase.ANSWERED,
    ("answered", "END"): Phase.IDLE,
    ("answered by the cap", "CONFIG"): Phase.ANSWERED,
    ("answered by the cap", "STEER"): Phase.INFER,
    ("answered by the cap", "MORE"): Phase.INFER,
    ("answered by the cap", "REPORT"): Phase.ANSWERED,
    ("answered by the cap", "WAIVER"): Phase.ANSWERED,
    ("answered by the cap", "END"): Phase.IDLE,
}

PAYLOADS: dict[str, Payload] = {
    "CONFIG": CONFIG, "HOST": HOST, "STEER": STEER, "MORE": MORE, "SAY": SAY, "CALL1": CALL1, "CALL2": CALL2,
    "RESULT": RESULT, "GUARD": GUARD, "CAP": CAP, "REPORT": REPORT, "WAIVER": WAIVER, "END": END,
    "SHORT": SHORT,
    "WRONG_KEY": WRONG_KEY,
    "HELD": HELD, "GATED": GATED, "GATED2": GATED2, "HELD_YES": HELD_YES, "GATED_YES": GATED_YES,
}  # fmt: skip


def facts(payloads: list[Payload]) -> list[NewFact]:
    return [NewFact(f"k{number}", None, payload) for number, payload in enumerate(payloads)]


def at(way: str) -> State:
    phase, payloads = WAYS[way]
    state = fold(facts(payloads))
    assert state.phase is phase
    return state


@pytest.mark.parametrize(("way", "name"), ARROWS)
def test_an_arrow(way: str, name: str):
    assert advance(at(way), NewFact("k", None, PAYLOADS[name])).phase is ARROWS[way, name]


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_arrow_is_illegal(way: str, name: str):
    if (way, name) in ARROWS:
        return
    before = at(way)
    with pytest.raises(IllegalFact) as illegal:
        advance(before, NewFact("the-key", None, PAYLOADS[name]))
    assert illegal.value.code == "ILLEGAL_FACT"
    assert before == at(way)  # and nothing has moved


def test_the_table_has_these_arrows_and_no_others():
    """Whoever adds an arrow adds it here too."""
    tested = {(WAYS[way][0], type(PAYLOADS[name])) for way, name in ARROWS}
    assert set(TRANSITIONS) == tested


@pytest.mark.parametrize("way", WAYS)
def test_ancillary_notes_change_nothing_anywhere(way: str):
    state = at(way)
    assert advance(state, NewFact("n", None, Note("note.anything", {"x": 1}))) == state


def test_results_come_in_call_order():
    state = fold(facts([HOST, CALL2]))
    with pytest.raises(IllegalFact, match="t1-r1-c1"):
        advance(state, NewFact("t1-r1-c1", None, WRONG_KEY))
    both = fold(facts([RESULT, WRONG_KEY]), state)
    assert both.phase is Phase.INFER


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ([], (0, 0, 0)),
        ([HOST], (1, 0, 0)),
        ([HOST, SAY, END, HOST], (2, 0, 0)),
        ([HOST, CALL1], (1, 1, 1)),
        ([HOST, CALL1, RESULT, SAY], (1, 2, 1)),
        ([HOST, CALL1, CAP, END, CONFIG, HOST, SAY], (2, 1, 0)),
    ],
)
def test_turn_request_and_round_are_counted_from_the_facts(payloads: list[Payload], expected: tuple[int, int, int]):
    state = fold(facts(payloads))
    assert (state.turn, state.request, state.rounds) == expected


def test_call_keys_carry_turn_round_and_position():
    state = fold(facts([HOST, SAY, END, HOST, SAY, MORE, CALL2]))
    assert [call.key for call in state.open] == ["t2-r2-c0", "t2-r2-c1"]


@pytest.mark.parametrize(
    ("payloads", "waiting"),
    [
        ([HOST, HELD], [("t1-r1-w1", None)]),
        ([HOST, HELD, HELD_YES], [("t1-r1-w1", HELD_YES)]),
        ([HOST, HELD, HELD_YES, SAY], []),
        ([HOST, HELD, HELD_YES, CALL1], []),
        ([HOST, HELD, END], []),
        ([HOST, CALL2, GATED2, GATED, GATED_YES], [("t1-r1-c1-w1", None), ("t1-r1-c0-w1", GATED_YES)]),
        ([HOST, CALL2, GATED2, GATED, GATED_YES, RESULT], [("t1-r1-c1-w1", None)]),
        ([HOST, CALL2, GATED2, GATED, GUARD], [("t1-r1-c1-w1", None)]),
        ([HOST, CALL2, GATED2, GATED, RESULT, WRONG_KEY], []),
        ([HOST, CALL1, GATED, GATED_YES, replace(GATED, wait_id="w2")], [("t1-r1-c0-w1", GATED_YES), ("w2", None)]),
    ],
)
def test_a_wait_is_over_with_what_it_is_about(payloads: list[Payload], waiting: list[tuple[str, object]]):
    assert [(wait.wait_id, wait.answer) for wait in fold(facts(payloads)).waits] == waiting


def test_a_wait_is_kept_as_it_was_opened():
    [wait] = fold(facts([HOST, CALL1, GATED])).waits
    assert (wait.kind, wait.subject, wait.about) == ("confirmation", "t1-r1-c0", {"question": "why?"})


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        ([HOST, CALL1, GATED2], "'t1-r1-c1-w1' is about 't1-r1-c1', which is not open"),
        ([HOST, CALL1, HELD], "'t1-r1-w1' is about 't1-r1', which is not open"),
        ([HOST, CALL1, RESULT, HELD], "'t1-r1-w1' is about 't1-r1', which is not open"),
        ([HOST, CALL1, GATED, GATED_YES, GATED], "'t1-r1-c0-w1' is open already"),
        ([HOST, HELD, HELD], "'t1-r1-w1' is open already"),
        ([HOST, CALL1, GATED, GATED_YES, GATED_YES], "no wait 't1-r1-c0-w1' is open"),
        ([HOST, CALL1, GATED, HELD_YES], "no wait 't1-r1-w1' is open"),
        ([HOST, HELD_YES], "no wait 't1-r1-w1' is open"),
    ],
)
def test_what_is_illegal_about_a_wait_is_told(payloads: list[Payload], message: str):
    before = fold(facts(payloads[:-1]))
    with pytest.raises(IllegalFact, match=re.escape(message)):
        advance(before, NewFact("the-key", None, payloads[-1]))
