"""Every arrow of the fold's table, and every pair that is no arrow (§4, §5)."""

from __future__ import annotations

import pytest

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
WRONG_KEY = Returned("t1-r1-c1", True, (Text("out"),))

# How to get into each phase; the calls phase comes with one open call and with two.
WAYS: dict[str, tuple[Phase, list[Payload]]] = {
    "idle": (Phase.IDLE, []),
    "idle again": (Phase.IDLE, [HOST, SAY, END]),
    "infer": (Phase.INFER, [HOST]),
    "one call": (Phase.CALLS, [HOST, CALL1]),
    "two calls": (Phase.CALLS, [HOST, CALL2]),
    "answered": (Phase.ANSWERED, [HOST, SAY]),
    "answered by the cap": (Phase.ANSWERED, [HOST, CALL1, CAP]),
}

# (way, payload) -> phase that follows. What is not here is illegal.
ARROWS: dict[tuple[str, str], Phase] = {
    ("idle", "CONFIG"): Phase.IDLE,
    ("idle", "HOST"): Phase.INFER,
    ("idle again", "CONFIG"): Phase.IDLE,
    ("idle again", "HOST"): Phase.INFER,
    ("infer", "CONFIG"): Phase.INFER,
    ("infer", "STEER"): Phase.INFER,
    ("infer", "MORE"): Phase.INFER,
    ("infer", "SAY"): Phase.ANSWERED,
    ("infer", "CALL1"): Phase.CALLS,
    ("infer", "CALL2"): Phase.CALLS,
    ("infer", "END"): Phase.IDLE,
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
    "WRONG_KEY": WRONG_KEY,
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
