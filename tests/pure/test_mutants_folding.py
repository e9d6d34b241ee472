"""Folding, where a rule holds only over several facts of one round, and the words of what is illegal (§4, §5)."""

from __future__ import annotations

import re

import pytest

from thence.codec import decode
from thence.errors import IllegalFact
from thence.facts import Call, Denied, Returned, Text, WaitAnswered, WaitOpened, Waived
from thence.fold import signature
from thence.gate import Gate
from thence.judge import judge
from thence.limits import Limits
from thence.loopguard import LoopGuard
from thence.state import Phase
from thence.steps import Run, Traits

from .test_mutants_decisions import HOST, TOOLS, after, ask, names, ran, said, thrice

CAP = Denied("t1-r1-c0", "round_cap", "tool_rounds", "why")
WAIT = WaitOpened("w", "question", "t1-r1-c0", "d")


def test_the_signature_of_a_call_is_this_for_ever():
    """Logs that are resumed by a later version compare it, and digests of changes are made of it. The hash is that of
    ``{"n":1}``, made with the sha256sum program."""
    sha = "2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd"
    assert signature(Call("c", "read", {"n": 1})) == f"read:{sha}"


def test_a_text_that_a_fact_does_not_have_is_empty():
    """A later version may leave an empty text out: nothing is asked for in the blob table."""
    assert decode("gate.waived", '{"digest":"d"}', dict[str, bytes]().__getitem__) == Waived("d", "")


def test_once_capped_a_round_stays_capped():
    """§5: a call behind the denied one, run or denied for another reason, does not open the turn again."""
    start = after(HOST, ask("read", "look"), CAP)
    for last in (ran(1, 1), Denied("t1-r1-c1", "guard", "tokens", "why")):
        state = after(last, start=start)
        assert (state.phase, state.capped) == (Phase.ANSWERED, True)


def test_a_log_that_has_a_cut_result_has_one_for_ever():
    cut = Returned("t1-r1-c0", True, (Text("out"),), {"output": {"bytes": 9}})
    assert after(HOST, ask("read", "look"), cut, ran(1, 1)).cut
    assert not after(HOST, ask("read"), ran(0, 1)).cut


def test_what_is_illegal_is_told_in_these_words():
    """It names what a person looks for in the log."""
    for facts, text in (
        ((HOST, HOST), "a new turn cannot begin before the last one has ended"),
        (
            (HOST, ask("read"), WaitOpened("w", "question", "t1-r1", "d")),
            "wait 'w' is about 't1-r1', which is not open",
        ),
        ((HOST, ask("read"), WAIT, WAIT), "wait 'w' is open already"),
        ((HOST, ask("read", "look"), ran(1, 1)), "result of 't1-r1-c1' came before that of 't1-r1-c0'"),
        ((HOST, ask("read"), WaitAnswered("w", 1)), "no wait 'w' is open"),
    ):
        with pytest.raises(IllegalFact, match=f"^{re.escape(text)}$"):
            after(*facts)


# ------------------------------------------------------------------ the duplicate guard
def test_a_good_call_ends_a_row_of_malformed_ones():
    """§5: `in a row`, whatever was refused or not before."""
    assert LoopGuard(malformed=2).allowed() == LoopGuard()
    assert LoopGuard(("a",), "a", 2).allowed() == LoopGuard(("a",))


def test_one_other_call_in_the_window_is_enough_to_clear_it():
    """Edit, test, edit, test is no loop: also when the edit is the same as an earlier one."""
    guard = LoopGuard(("edit", "test"))
    assert guard.executed("edit", ok=True, read=False, repeatable=False).window == ("edit",)
    alone = LoopGuard(("edit", "edit"))
    assert alone.executed("edit", ok=True, read=False, repeatable=False).window == ("edit", "edit", "edit")


# ------------------------------------------------------------------ the completion gate
def test_what_is_told_of_a_gate_that_is_open():
    """§5: why a turn that changed something could end; nothing of one that changed nothing, whatever was said."""
    for gate, status in (
        (Gate(), None),
        (Gate(verified=True, waived=True), None),
        (Gate("d"), None),
        (Gate("d", verified=True), "verified"),
        (Gate("d", waived=True), "waived"),
        (Gate("d", verified=True, waived=True), "verified"),
    ):
        assert gate.summary() == (status and {"digest": "d", "status": status})


# ------------------------------------------------------------------ calls that wait
def test_a_call_runs_as_soon_as_its_wait_is_answered_and_not_before():
    """§10: reads behind it do not wait for it, all others do."""
    state = after(HOST, ask("write", "read", "write"), WAIT)
    assert [v.call.position for v in judge(state, {}, TOOLS, Limits())] == [1]
    state = after(WaitAnswered("w", 1), start=state)
    [first] = judge(state, {}, TOOLS, Limits())
    assert isinstance(first, Run) and first.call.position == 0


def test_a_result_behind_a_call_that_waits_counts():
    """§5: what was refused before the run parked fails the turn still, and nothing behind it runs."""
    state = after(HOST, ask("write", "write!", "read"), WAIT)
    broken = Returned("t1-r1-c1", False, (), {"refused": "malformed_arguments", "fatal": {"code": "X", "message": "x"}})
    [last] = judge(state, {broken.call_key: broken}, TOOLS, Limits())
    assert said(last)[1] == {"refused": "turn_failed"}


def test_a_call_of_a_tool_that_is_gone_waits_like_any_other():
    state = after(HOST, ask("gone", "read"), WAIT)
    assert [v.call.position for v in judge(state, {}, TOOLS, Limits())] == [1]


def test_nothing_runs_after_the_turn_has_failed():
    """§5: not the next call, and none behind it."""
    state = after(HOST, ask("write!", "write", "write", "read"))
    _, *rest = judge(state, {}, TOOLS, Limits(max_parse_retries=0))
    assert names(tuple(rest)) == ["turn_failed"] * 3


def test_a_call_of_a_tool_that_is_gone_is_no_read():
    state = after(HOST, ask("write", "gone", "read"), WAIT)
    assert [v.call.position for v in judge(state, {}, TOOLS, Limits())] == [2]


def test_a_call_that_waits_is_not_taken_for_a_success():
    """§5: what is behind it is judged as if it had run, and nobody knows how well: it clears nothing."""
    state = after(ask("write", "read"), WaitOpened("w", "question", "t1-r4-c0", "d"), start=thrice())
    assert names(judge(state, {}, TOOLS, Limits())) == ["duplicate_tool_call"]


def test_a_tool_that_this_host_calls_repeatable_is():
    """§5: also where it was not when it ran."""
    state = after(ask("read"), start=thrice())
    assert names(judge(state, {}, {"read": Traits("read", repeatable=True)}, Limits())) == ["run"]
    assert names(judge(state, {}, TOOLS, Limits())) == ["duplicate_tool_call"]
