"""The gate as a fold of facts (§5): what moves the digest, what opens the gate, what comes next. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.facts import Answered, Asked, Call, Denied, Ended, NewFact, Payload, Reported, Returned, Text, Waived
from thence.fold import fold, next_step
from thence.gate import Gate, digest_of
from thence.limits import Limits
from thence.steps import Ask, Continue, End, Verify

from .kit import digest

HOST = Asked((Text("hi"),))
SAY = Answered("done")
KEY = "t1-r1-c0"


def after(*payloads: Payload):
    return fold(NewFact(f"k{number}", None, payload) for number, payload in enumerate(payloads))


def answer(*calls: Call) -> Answered:
    return Answered("", calls)


def result(metadata: dict[str, Any], *, ok: bool = True, key: str = KEY) -> Returned:
    return Returned(key, ok, (Text("out"),), metadata)


CALL = Call("a", "x", {"n": 1})
CHANGED: list[Payload] = [HOST, answer(CALL), result({"workspace": True}), SAY]
D = digest(("x", {"n": 1}, ()))


def test_the_digest_is_this_for_ever():
    """SHA-256 of ``["","x:aa",[]]`` and of ``["bb","y:cc",["a","b"]]``, made with the sha256sum program."""
    assert digest_of("", "x:aa", []) == "bc7f0c32b89786f9327dfdeb0111934b1abc209454b1e271cb8d226b800337e5"
    assert (
        digest_of("bb", "y:cc", ["b", "a", "b"]) == "370126ec1e0cbbc774c4af19c25a43518999112007ba7335dc78a93e81bd6364"
    )


@pytest.mark.parametrize(
    ("metadata", "ok", "paths"),
    [
        ({"workspace": True}, True, ()),
        ({"workspace": True, "effect": "once"}, True, ()),
        ({"workspace": True, "effect": "idempotent"}, True, ()),
        ({"workspace": True}, False, None),
        ({"workspace": True, "effect": "read"}, True, None),
        ({"effect": "read"}, True, None),
        ({"effect": "once"}, True, None),
        ({}, True, None),
        ({"changed_paths": []}, True, None),
        ({"changed_paths": ["b", "a"]}, True, ["a", "b"]),
        ({"changed_paths": ["a"]}, False, ["a"]),
        ({"changed_paths": ["a"], "effect": "read"}, True, ["a"]),
        ({"changed_paths": ["a"], "workspace": True}, True, ["a"]),
        ({"workspace": True, "refused": "duplicate_tool_call"}, True, None),
        ({"changed_paths": ["a"], "refused": "interrupted"}, False, None),
        ({"tool": {"changed_paths": ["a"], "workspace": True}}, True, None),
    ],
)
def test_what_counts_as_a_change(metadata: dict[str, Any], ok: bool, paths: Any):
    state = after(HOST, answer(CALL), result(metadata, ok=ok))
    assert state.gate.changes == ("" if paths is None else digest(("x", {"n": 1}, paths)))
    assert state.gate.is_closed is (paths is not None)


def test_a_denied_call_changes_nothing():
    assert after(HOST, answer(CALL), Denied(KEY, "guard", "r", "w")).gate == Gate()


def test_changes_are_a_chain_in_call_order():
    two = answer(CALL, Call("b", "y", {}))
    state = after(HOST, two, result({"workspace": True}), result({"changed_paths": ["f"]}, key="t1-r1-c1"), SAY)
    assert state.gate.changes == digest(("x", {"n": 1}, ()), ("y", {}, ["f"]))


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ([], Verify(D)),
        ([Reported(D, True)], End("completed")),
        ([Reported(D, False)], Verify(D)),
        ([Reported("0" * 64, True)], Verify(D)),
        ([Reported(D, False), Reported(D, True)], End("completed")),
        ([Reported(D, True), Reported(D, False)], Verify(D)),
        ([Reported(D, True), Reported("0" * 64, False)], End("completed")),
        ([Reported(D, True), Reported("0" * 64, True)], End("completed")),
        ([Waived(D, "r")], End("completed")),
        ([Waived("0" * 64, "r")], Verify(D)),
        ([Waived(D, "r"), Reported(D, False)], End("completed")),
        ([Waived(D, "r"), Waived("0" * 64, "r")], End("completed")),
    ],
)
def test_what_opens_the_gate(said: list[Payload], step: Any):
    state = after(*CHANGED, *said)
    assert next_step(state, Limits(), gated=True) == step
    assert next_step(state, Limits()) == next_step(state, Limits(), gated=False) == End("completed")
    assert (state.gate.reports, state.gate.waivers) == (
        sum(isinstance(one, Reported) for one in said),
        sum(isinstance(one, Waived) for one in said),
    )


@pytest.mark.parametrize("opened", [Reported(D, True), Waived(D, "r")])
def test_a_change_behind_it_closes_the_gate_again(opened: Payload):
    more = Asked((Text("and"),), "steer", "q1")
    again: list[Payload] = [more, answer(CALL), result({"workspace": True}, key="t1-r3-c0"), SAY]
    state = after(*CHANGED, opened, *again)
    assert next_step(state, Limits(), gated=True) == Verify(digest(("x", {"n": 1}, ()), ("x", {"n": 1}, ())))
    # and what named the old digest counts for nothing from then on
    assert next_step(after(*CHANGED, opened, *again, opened), Limits(), gated=True) == Verify(state.gate.changes)


@pytest.mark.parametrize("origin", ["steer", "continuation"])
def test_neither_steer_nor_continuation_forgets_the_changes(origin: Any):
    state = after(*CHANGED, Asked((Text("x"),), origin, "q1" if origin == "steer" else None), SAY)
    assert state.gate.changes == D


def test_a_new_turn_starts_with_no_changes():
    assert after(*CHANGED, Ended("failed"), HOST).gate == Gate()
    assert after(*CHANGED, Waived(D, "r"), Ended("completed"), HOST).gate == Gate()


def test_the_order_is_fatal_then_continuation_then_gate():
    fatal = {"changed_paths": ["a"], "fatal": {"code": "C", "message": "m"}}
    assert next_step(after(HOST, answer(CALL), result(fatal)), Limits(), gated=True) == End("failed", "C", "m")
    half: list[Payload] = [*CHANGED[:-1], Answered("half", (), None, "length")]
    assert next_step(after(*half), Limits(), gated=True) == Continue()
    assert next_step(after(*half), Limits(continuation_enabled=False), gated=True) == Verify(D)
    assert next_step(after(*CHANGED[:-1]), Limits(), gated=True) == Ask(offer_tools=True)


def test_a_capped_turn_passes_the_gate_too():
    two = answer(CALL, CALL)
    capped: list[Payload] = [HOST, two, result({"workspace": True}), Denied("t1-r1-c1", "round_cap", "r", "w")]
    assert next_step(after(*capped), Limits(), gated=True) == Verify(D)


@given(st.lists(st.tuples(st.text(), st.lists(st.text(max_size=5), max_size=4)), max_size=6), st.randoms())
def test_equal_changes_have_equal_digests_and_others_have_others(changes: list[tuple[str, list[str]]], random: Any):
    def chain(shuffled: bool) -> list[str]:
        found = [""]
        for name, paths in changes:
            given = random.sample(paths, len(paths)) if shuffled else paths
            found.append(digest_of(found[-1], name, given))
        return found

    assert chain(True) == chain(False)
    assert len(set(chain(False))) == len(changes) + 1  # it never comes back
