"""Folding and judging where a single word of a rule decides (§4, §5)."""

from __future__ import annotations

from typing import Any

import pytest

from thence.canonical import Json
from thence.chat import Usage
from thence.errors import IllegalFact
from thence.facts import Answered, Asked, Call, Configured, Denied, Ended, NewFact, Payload, Returned, Text
from thence.fold import fold, next_step
from thence.judge import judge
from thence.limits import Limits
from thence.loopguard import LoopGuard
from thence.state import Phase, State
from thence.steps import End, Refuse, Run, Traits, Verdict

HOST = Asked((Text("hi"),))
STEER = Asked((Text("rather"),), "steer", "q")
END = Ended("completed")
TOOLS = {"read": Traits("read"), "look": Traits("read"), "write": Traits(None)}


def after(*payloads: Payload, start: State | None = None) -> State:
    return fold([NewFact(f"k{n}", None, payload) for n, payload in enumerate(payloads)], start)


def ask(*names: str) -> Answered:
    """An answer with these calls; ``!`` at the end of a name makes its arguments malformed."""
    return Answered(
        "",
        tuple(
            Call("c", name.rstrip("!"), None if name.endswith("!") else {"n": 1}, "{", "why" if "!" in name else "")
            for name in names
        ),
    )


def ran(number: int, request: int, effect: str | None = "read") -> Returned:
    return Returned(f"t1-r{request}-c{number}", True, (Text("out"),), {"effect": effect} if effect else {})


def thrice(name: str = "read") -> State:
    """Three rounds that each ran the same call."""
    return after(HOST, *(fact for n in (1, 2, 3) for fact in (ask(name), ran(0, n))))


def said(verdict: Verdict) -> tuple[str, Any]:
    assert isinstance(verdict, Refuse) and isinstance(verdict.result, Returned)
    [part] = verdict.result.parts
    assert isinstance(part, Text) and verdict.result.ok is False
    return part.text, verdict.result.metadata


def names(verdicts: tuple[Verdict, ...]) -> list[str]:
    return [
        "run" if isinstance(v, Run) else str(getattr(v.result, "metadata", {}).get("refused", "denied"))
        for v in verdicts
    ]


# ------------------------------------------------------------------ the fold
def test_counters_of_the_log_go_on_over_turns_and_those_of_a_turn_do_not():
    config = Configured("m", "", {}, {}, "0" * 64)
    cut = Returned("t1-r1-c0", True, (Text("out"),), {"output": {"bytes": 9}})
    first = after(config, HOST, ask("read"), cut, STEER, STEER, Answered("", usage=None), END)
    assert (first.configs, first.steers, first.cut, first.without_usage, first.tool_calls) == (1, 2, True, 2, 1)
    assert first.ended == END
    assert after(HOST, start=first).config == config
    second = after(HOST, config, start=first)
    assert (second.turn, second.configs, second.config, second.cut) == (2, 2, config, True)
    assert second == State(second.phase, 2, cut=True, config=config, configs=2)


def test_usage_is_added_up_and_what_is_missing_is_counted():
    one, two = Usage(1, 2, 3, 4, 5), Usage(10, 20, 30, 40, 50)
    state = after(HOST, Answered("a", usage=one), STEER, Answered("b"), STEER, Answered("c", usage=two))
    assert (state.usage, state.without_usage, state.request) == (Usage(11, 22, 33, 44, 55), 1, 3)


def test_a_refused_call_is_not_counted_as_run():
    refused = Returned("t1-r1-c0", False, (Text("no"),), {"refused": "unknown_tool"})
    assert after(HOST, ask("x", "read"), refused, ran(1, 1)).tool_calls == 1


def test_a_denial_is_the_result_of_the_next_open_call_only():
    with pytest.raises(IllegalFact, match="result of 't1-r1-c1' came before that of 't1-r1-c0'"):
        after(HOST, ask("read", "look"), Denied("t1-r1-c1", "guard", "r", "why"))


def test_what_is_illegal_is_told_with_kind_key_and_phase():
    with pytest.raises(IllegalFact) as illegal:
        after(HOST, HOST)
    assert "before the last one has ended" in str(illegal.value)
    with pytest.raises(IllegalFact) as illegal:
        fold([NewFact("the-key", None, END)])
    assert str(illegal.value) == "Ended ('the-key') cannot come in phase idle"
    with pytest.raises(IllegalFact, match=r"^a continuation message cannot begin a turn$"):
        after(Asked((), "continuation"))
    assert [phase.value for phase in Phase] == ["idle", "infer", "calls", "answered"]


def test_the_first_reason_to_fail_is_the_one_that_is_told():
    fatal: list[dict[str, Json]] = [{"refused": "x", "fatal": {"code": c, "message": c}} for c in ("ONE", "TWO")]
    results = [Returned(f"t1-r1-c{n}", False, (), metadata) for n, metadata in enumerate(fatal)]
    state = after(HOST, ask("a", "b"), *results)
    assert next_step(state, Limits()) == End("failed", "ONE", "ONE")


def test_a_steer_after_the_cap_opens_the_turn_again():
    capped = after(HOST, ask("read"), Denied("t1-r1-c0", "round_cap", "r", "why"))
    assert capped.capped and not after(STEER, start=capped).capped


# ------------------------------------------------------------------ judging
def test_a_denied_call_between_two_refusals_breaks_the_row():
    """§5: only the same refused signature again *in a row* fails the turn, and a denied call is in between."""
    state = after(ask("read", "look", "read"), start=thrice())
    first, *_ = judge(state, {}, TOOLS, Limits())
    assert isinstance(first, Refuse)
    done: dict[str, Returned | Denied] = {"t1-r4-c0": first.result}
    done["t1-r4-c1"] = denied = Denied("t1-r4-c1", "guard", "r", "why")
    [last] = judge(state, done, TOOLS, Limits())
    assert "fatal" not in said(last)[1]
    # and the fold sees it as judging did
    folded = after(done["t1-r4-c0"], denied, start=state)
    [again] = judge(folded, {}, TOOLS, Limits())
    assert said(again) == said(last)


def test_a_refusal_that_is_in_the_log_counts_for_the_next_answer():
    state = after(ask("read"), start=thrice())
    [refused] = judge(state, {}, TOOLS, Limits())
    assert isinstance(refused, Refuse)
    state = after(refused.result, ask("read"), start=state)
    [again] = judge(state, {}, TOOLS, Limits())
    assert said(again)[1]["fatal"] == {
        "code": "DUPLICATE_TOOL_CALL",
        "message": "The model repeated a refused call of 'read' without changing its approach",
    }


def test_a_tool_that_this_host_lacks_is_a_duplicate_first():
    """§5: the duplicate guard comes first, also where a resuming host no longer has the tool that ran."""
    state = after(ask("gone"), start=thrice("gone"))
    assert names(judge(state, {}, TOOLS, Limits())) == ["duplicate_tool_call"]


def test_refusals_say_why_and_with_what_count():
    state = after(ask("read"), start=thrice())
    text, metadata = said(judge(state, {}, TOOLS, Limits())[0])
    assert "'read'" in text and " 3 times" in text
    assert metadata == {"refused": "duplicate_tool_call", "count": 3, "threshold": 3}
    state = after(HOST, ask("nope", "look!"))
    unknown, broken = judge(state, {}, TOOLS, Limits())
    assert said(unknown) == (
        "Error: there is no tool 'nope'. Tools: look, read, write", {"refused": "unknown_tool"},
    )  # fmt: skip
    assert said(broken) == ("Error: why", {"refused": "malformed_arguments"})
    assert said(judge(state, {}, {}, Limits())[0])[0] == "Error: there is no tool 'nope'. Tools: none"


@pytest.mark.parametrize(("length", "shown"), [(99, 99), (100, 100), (101, 100), (9000, 100)])
def test_a_made_up_name_is_shown_in_part(length: int, shown: int):
    """A model's nonsense does not come back to it whole, nor does a long list of tools."""
    name, tools = "n" * length, {f"tool-{n:04}": Traits("read") for n in range(900)}
    [unknown] = judge(after(HOST, ask(name)), {}, tools, Limits())
    known = ", ".join(tools)[:4000]
    assert said(unknown)[0] == f"Error: there is no tool '{'n' * shown}'. Tools: {known}"
    again = after(ask(name), start=thrice(name))
    [refused] = judge(again, {}, {}, Limits())
    assert said(refused)[0].startswith(f"Error: '{'n' * shown}' was already called 3 times")
    assert isinstance(refused, Refuse)
    [failed] = judge(after(refused.result, ask(name), start=again), {}, {}, Limits())
    assert said(failed)[1]["fatal"]["message"].startswith(f"The model repeated a refused call of '{'n' * shown}' ")


def test_a_call_of_a_turn_that_has_failed_says_so():
    state = after(HOST, ask("write!", "write"))
    first, second = judge(state, {}, TOOLS, Limits(max_parse_retries=0))
    assert said(first)[1]["fatal"]["code"] == "LLM_ERROR"
    assert said(second) == ("Error: not run, because the turn has failed", {"refused": "turn_failed"})


def test_the_cap_denies_with_the_limit():
    state = after(HOST, ask("read"), ran(0, 1), ask("look"))
    [denied] = judge(state, {}, TOOLS, Limits(max_tool_rounds=1))
    assert isinstance(denied, Refuse) and denied.result == Denied(
        "t1-r2-c0", "round_cap", "tool_rounds", "the limit of 1 tool rounds in one turn is reached"
    )


def test_a_refusal_does_not_part_a_batch_of_reads():
    state = after(HOST, ask("read", "nope", "look", "write", "read"))
    verdicts = judge(state, {}, TOOLS, Limits())
    assert names(verdicts) == ["run", "unknown_tool", "run"]


# ------------------------------------------------------------------ the guard
def test_the_window_is_eight_calls():
    guard = LoopGuard()
    for number in range(9):
        guard = guard.executed(f"s{number}", ok=True, read=True, repeatable=False)
    assert guard.window == tuple(f"s{number}" for number in range(1, 9))
    assert [guard.count(f"s{number}") for number in (0, 1, 8)] == [0, 1, 1]


def test_what_each_result_does_to_the_guard():
    guard = LoopGuard(("s",), "r", 2)
    assert LoopGuard() == LoopGuard((), None, 0)
    assert guard.after("x", False, {"refused": "malformed_arguments"}) == LoopGuard(("s",), "r", 3)
    assert guard.after("x", False, {"refused": "duplicate_tool_call"}) == LoopGuard(("s",), "x", 0)
    assert guard.after("x", False, {"refused": "unknown_tool"}) == LoopGuard(("s",), None, 0)
    assert guard.after("x", True, {"repeatable": True}) == LoopGuard(("s",), None, 0)
    assert guard.after("x", True, {"effect": "read"}) == LoopGuard(("s", "x"))
    assert guard.after("x", False, {}) == LoopGuard(("s", "x"))
    assert guard.after("x", True, {}) == LoopGuard(("x",))
    assert guard.after("s", True, {"effect": "once"}) == LoopGuard(("s", "s"))
    assert guard.allowed() == LoopGuard(("s",), None, 0)
