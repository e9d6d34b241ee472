"""What comes next (§5): the round cap and the continuation rules, as tables over pure states."""

from __future__ import annotations

import pytest

from thence.canonical import Json
from thence.facts import (
    Answered,
    Asked,
    Call,
    Denied,
    Ended,
    NewFact,
    Payload,
    Returned,
    Text,
    WaitAnswered,
    WaitOpened,
)
from thence.fold import fold, next_step
from thence.limits import Limits
from thence.steps import Ask, Continue, End, Park, Settled, UseTools

HOST = Asked((Text("hi"),))
MORE = Asked((Text("Continue."),), "continuation")


def state_after(*payloads: Payload):
    return fold(NewFact(f"k{number}", None, payload) for number, payload in enumerate(payloads))


def rounds(count: int) -> list[Payload]:
    found: list[Payload] = [HOST]
    for number in range(1, count + 1):
        found += [Answered("", (Call("c", "x", {"n": number}),)), Returned(f"t1-r{number}-c0", True, (Text("out"),))]
    return found


@pytest.mark.parametrize("cap", [1, 2, 5])
@pytest.mark.parametrize("done", range(7))
def test_tools_are_offered_until_the_cap(cap: int, done: int):
    step = next_step(state_after(*rounds(done)), Limits(max_tool_rounds=cap))
    assert step == Ask(offer_tools=done < cap)


def test_a_capped_turn_ends_completed_whatever_its_text():
    for text in ("", "the end"):
        state = state_after(
            *rounds(1), Answered(text, (Call("c", "x", {}),)), Denied("t1-r2-c0", "round_cap", "r", "w")
        )
        assert next_step(state, Limits(max_tool_rounds=1)) == End("completed")


def test_the_simple_steps():
    assert next_step(state_after(), Limits()) == Settled()
    assert next_step(state_after(HOST), Limits()) == Ask(offer_tools=True)
    assert next_step(state_after(HOST, Answered("", (Call("c", "x", {}),))), Limits()) == UseTools()
    assert next_step(state_after(HOST, Answered("ok")), Limits()) == End("completed")
    assert next_step(state_after(HOST, Answered("ok"), Ended("completed")), Limits()) == Settled()


def test_a_request_waits_until_every_hold_of_it_is_answered():
    holds = [WaitOpened(f"t1-r1-w{n}", "budget_hold", "t1-r1", "d") for n in (1, 2)]
    answers = [WaitAnswered(f"t1-r1-w{n}", n == 1) for n in (1, 2)]
    assert next_step(state_after(HOST, holds[0]), Limits()) == Park()
    assert next_step(state_after(HOST, holds[0], answers[0]), Limits()) == Ask(offer_tools=True)
    assert next_step(state_after(HOST, *holds, answers[1]), Limits()) == Park()
    assert next_step(state_after(HOST, *holds, *answers), Limits()) == Ask(offer_tools=True)


def test_a_call_that_waits_leaves_the_others_to_the_round():
    wait = WaitOpened("t1-r1-c0-w1", "confirmation", "t1-r1-c0", "d")
    calls = Answered("", (Call("a", "x", {}), Call("b", "x", {})))
    assert next_step(state_after(HOST, calls, wait), Limits()) == UseTools()


def test_a_fatal_result_ends_the_turn_after_all_calls_have_results():
    fatal: dict[str, Json] = {"refused": "malformed_arguments", "fatal": {"code": "LLM_ERROR", "message": "giving up"}}
    answer = Answered("", (Call("a", "x", None, "{", "bad"), Call("b", "x", {})))
    first, second = Returned("t1-r1-c0", False, (Text("Error"),), fatal), Returned("t1-r1-c1", False, (Text("Error"),))
    assert next_step(state_after(HOST, answer, first), Limits()) == UseTools()
    assert next_step(state_after(HOST, answer, first, second), Limits()) == End("failed", "LLM_ERROR", "giving up")


@pytest.mark.parametrize(
    ("text", "stop_reason", "goes_on"),
    [
        ("", "stop", True), (" \n\t", "stop", True), ("half", "length", True), ("half", "max_tokens", True),
        ("half", "pause", True), ("half", "pause_turn", True), ("whole", "stop", False),
        ("whole", "content_filter", False),
        ("Let me see:", "stop", False), ("...", "stop", False), ("I will go on,", "end_turn", False), ("x", "", False),
    ],
)  # fmt: skip
def test_which_answers_are_unfinished(text: str, stop_reason: str, goes_on: bool):
    state = state_after(HOST, Answered(text, (), None, stop_reason))
    assert next_step(state, Limits()) == (Continue() if goes_on else End("completed"))


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7])
def test_at_most_so_many_continuations(most: int):
    payloads: list[Payload] = [HOST]
    taken = 0
    while True:
        payloads.append(Answered(f"part {taken}", (), None, "length"))
        step = next_step(state_after(*payloads), Limits(max_continuation_turns=most))
        if step != Continue():
            break
        payloads.append(MORE)
        taken += 1
    assert taken == most and step == End("completed")


def test_never_when_it_is_off():
    state = state_after(HOST, Answered("", (), None, "length"))
    assert next_step(state, Limits(continuation_enabled=False)) == End("completed")


@pytest.mark.parametrize("texts", [["a", "a"], ["a", "b", "a"], ["a", "b", "c", "b"]])
def test_never_twice_for_the_same_text(texts: list[str]):
    payloads: list[Payload] = [HOST]
    for text in texts[:-1]:
        payloads += [Answered(text, (), None, "length"), MORE]
        assert next_step(state_after(*payloads[:-1]), Limits(max_continuation_turns=9)) == Continue()
    payloads.append(Answered(texts[-1], (), None, "length"))
    assert next_step(state_after(*payloads), Limits(max_continuation_turns=9)) == End("completed")


def test_a_new_turn_counts_anew():
    used: list[Payload] = [HOST, Answered("a", (), None, "length"), MORE, Answered("b"), Ended("completed")]
    state = state_after(*used, HOST, Answered("a", (), None, "length"))
    assert next_step(state, Limits(max_continuation_turns=1)) == Continue()
    assert next_step(
        state_after(*rounds(3), Answered("x"), Ended("completed"), HOST), Limits(max_tool_rounds=2)
    ) == Ask(offer_tools=True)
