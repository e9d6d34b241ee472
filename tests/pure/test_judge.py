"""Judging calls (§5): purity, batches, the duplicate guard and the malformed counter, against a naive model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thence.facts import Answered, Asked, Call, Denied, NewFact, Payload, Returned, Text
from thence.fold import fold
from thence.judge import judge
from thence.limits import Limits
from thence.state import State
from thence.steps import Refuse, Run, Traits

TOOLS = {
    "read": Traits("read"), "look": Traits("read"), "write": Traits(None), "once": Traits("once"),
    "set": Traits("idempotent"), "poll": Traits("read", repeatable=True), "push": Traits(None, repeatable=True),
}  # fmt: skip

BAD = "bad"  # arguments that are no JSON object
Spec = tuple[str, object, bool]
"""One call of an answer: tool, arguments (or BAD), and whether it will succeed."""


def answer(specs: list[Spec]) -> Answered:
    calls = tuple(
        Call(f"c{i}", name, None, "{", "arguments are not JSON") if args == BAD else Call(f"c{i}", name, {"n": args})  # type: ignore[dict-item]
        for i, (name, args, _) in enumerate(specs)
    )
    return Answered("", calls)


def outcome(key: str, name: str, ok: bool) -> Returned:
    """The fact that a call's run leaves, with what the guard needs to know in its metadata."""
    traits = TOOLS[name]
    metadata = {"effect": traits.effect} if traits.effect else {}
    return Returned(key, ok, (Text("out"),), {**metadata, **({"repeatable": True} if traits.repeatable else {})})


def play(turn: list[list[Spec]], limits: Limits) -> tuple[list[str], list[list[str]]]:
    """Let ``judge`` run whole rounds. Returns what became of each call, and which calls ran together."""
    state = fold([NewFact("u", None, Asked((Text("hi"),)))])
    fates: list[str] = []
    batches: list[list[str]] = []
    for specs in turn:
        if state.capped:
            break
        state = fold([NewFact("a", None, answer(specs))], state)
        done: dict[str, Returned | Denied] = {}
        by_key = {call.key: specs[call.position] for call in state.open}
        while verdicts := judge(state, done, TOOLS, limits):
            assert judge(state, dict(done), dict(TOOLS), limits) == verdicts, "not pure"
            running = [v.call for v in verdicts if isinstance(v, Run)]
            for verdict in verdicts:
                if isinstance(verdict, Refuse):
                    done[verdict.call.key] = verdict.result
            if len(running) > 1:
                assert all(TOOLS[call.call.name].effect == "read" for call in running)
            if running:
                batches.append([call.key for call in running])
            for call in running:
                done[call.key] = outcome(call.key, call.call.name, by_key[call.key][2])
        results: list[Payload] = [done[call.key] for call in state.open]
        fates += [fate_of(result) for result in results]
        state = fold([NewFact(f"r{i}", None, result) for i, result in enumerate(results)], state)
        if state.fatal is not None:
            fates.append("FAILED")
            break
    return fates, batches


def fate_of(result: Payload) -> str:
    if isinstance(result, Denied):
        return "denied"
    assert isinstance(result, Returned)
    why = result.metadata.get("refused")
    return "ran" if why is None else str(why)


class Naive:
    """The rules of §5, as a reader would do them on paper, one call after the other."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.window: list[str] = []
        self.refused: str | None = None
        self.malformed = 0
        self.fatal = False
        self.rounds = 0

    def call(self, spec: Spec) -> str:
        name, args, ok = spec
        traits = TOOLS.get(name)
        signature = f"{name} {args}"
        if self.fatal:
            return "turn_failed"
        if self.rounds > self.limits.max_tool_rounds:
            return "denied"
        repeatable = traits is not None and traits.repeatable
        if not repeatable and self.window[-8:].count(signature) >= self.limits.duplicate_tool_call_threshold:
            self.fatal = self.refused == signature
            self.refused, self.malformed = signature, 0
            return "duplicate_tool_call"
        if args == BAD:
            self.malformed += 1
            self.fatal = self.malformed > self.limits.max_parse_retries
            return "malformed_arguments"
        self.refused, self.malformed = None, 0
        if traits is None:
            return "unknown_tool"
        if not repeatable:
            if ok and traits.effect != "read" and any(seen != signature for seen in self.window[-8:]):
                self.window.clear()
            self.window.append(signature)
        return "ran"

    def turn(self, turn: list[list[Spec]]) -> list[str]:
        fates: list[str] = []
        for specs in turn:
            self.rounds += 1
            fates += [self.call(spec) for spec in specs]
            if self.fatal:
                return [*fates, "FAILED"]
            if self.rounds > self.limits.max_tool_rounds:
                break
        return fates


SPEC = st.tuples(st.sampled_from([*TOOLS, "nope"]), st.sampled_from([1, 1, 1, 2, BAD]), st.booleans())
# Few different calls, so that they often repeat.
NARROW = st.one_of(st.just(("read", 1, True)), st.just(("write", 1, True)), SPEC)
REPEATING = st.lists(st.lists(NARROW, min_size=1, max_size=6), min_size=1, max_size=12)
TURN = st.lists(st.lists(SPEC, min_size=1, max_size=6), min_size=1, max_size=12)


@settings(max_examples=300)
@given(REPEATING, st.integers(1, 4), st.integers(0, 3), st.sampled_from([3, 50]))
def test_it_judges_like_the_naive_model(turn: list[list[Spec]], threshold: int, retries: int, cap: int):
    limits = Limits(max_tool_rounds=cap, duplicate_tool_call_threshold=threshold, max_parse_retries=retries)
    assert play(turn, limits)[0] == Naive(limits).turn(turn)


@given(st.lists(SPEC, min_size=1, max_size=12))
def test_consecutive_reads_run_together_and_others_alone(specs: list[Spec]):
    limits = Limits(duplicate_tool_call_threshold=1000, max_parse_retries=1000)
    _, batches = play([specs], limits)
    batch_of = {key: number for number, batch in enumerate(batches) for key in batch}
    keys = [f"t1-r1-c{i}" for i in range(len(specs))]
    for i, (a, b) in enumerate(pairwise(specs)):
        first, second = keys[i], keys[i + 1]
        if first in batch_of and second in batch_of:
            both_read = all(TOOLS[name].effect == "read" for name, _, _ in (a, b))
            assert (batch_of[first] == batch_of[second]) is both_read
    assert [key for batch in batches for key in batch] == [key for key in keys if key in batch_of]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ("rrr", [[0, 1, 2]]), ("w", [[0]]), ("ww", [[0], [1]]), ("rwr", [[0], [1], [2]]),
        ("rrwrr", [[0, 1], [2], [3, 4]]),
        ("oir", [[0], [1], [2]]), ("wrrrw", [[0], [1, 2, 3], [4]]),
    ],
)  # fmt: skip
def test_batches(specs: str, expected: list[list[int]]):
    names = {"r": "read", "w": "write", "o": "once", "i": "set"}
    turn: list[list[Spec]] = [[(names[letter], number, True) for number, letter in enumerate(specs)]]
    assert play(turn, Limits())[1] == [[f"t1-r1-c{i}" for i in batch] for batch in expected]


ONE: Spec = ("read", 1, True)
D, R, F = "duplicate_tool_call", "ran", "FAILED"

DUPLICATES: list[tuple[str, list[Any], list[str]]] = [
    ("calls 1-3 run", [[ONE]] * 3, [R, R, R]),
    ("the 4th is refused", [[ONE]] * 4, [R, R, R, D]),
    ("the 5th identical one fails", [[ONE]] * 5, [R, R, R, D, D, F]),
    ("in one answer too", [[ONE] * 5], [R, R, R, D, D, F]),
    ("all later ones get failed results", [[ONE] * 5 + [("write", 1, True)]], [R, R, R, D, D, "turn_failed", F]),
    ("another call between refusals", [[ONE]] * 4 + [[("read", 2, True)], [ONE]], [R, R, R, D, R, D]),
    ("another success that is no read clears", [[ONE]] * 3 + [[("write", 1, True)], [ONE]], [R] * 5),
    ("in one answer as well", [[ONE]] * 3 + [[("write", 1, True), ONE]], [R] * 5),
    ("a failed one does not", [[ONE]] * 3 + [[("write", 1, False)], [ONE]], [R] * 4 + [D]),
    ("a read does not", [[ONE]] * 3 + [[("look", 1, True)], [ONE]], [R] * 4 + [D]),
    ("the same write is no other", [[("write", 1, True)]] * 4, [R, R, R, D]),
    ("repeatable is exempt", [[("poll", 1, True)]] * 9, [R] * 9),
    ("other arguments are another call", [[("read", n, True)] for n in range(9)], [R] * 9),
    ("another tool is another call", [[ONE]] * 3 + [[("look", 1, True)]], [R] * 4),
    ("among the last eight", [[ONE]] * 3 + [[("read", n, True)] for n in range(10, 15)] + [[ONE]], [R] * 8 + [D]),
    ("not among the last eight", [[ONE]] * 3 + [[("read", n, True)] for n in range(10, 16)] + [[ONE]], [R] * 10),
    (
        "refused ones are not executed",
        [[ONE]] * 4 + [[("read", n, True)] for n in range(10, 15)] + [[ONE]],
        [R] * 3 + [D] + [R] * 5 + [D],
    ),
]


@pytest.mark.parametrize(("turn", "expected"), [d[1:] for d in DUPLICATES], ids=[d[0] for d in DUPLICATES])
def test_the_duplicate_guard(turn: list[list[Spec]], expected: list[str]):
    assert play(turn, Limits(max_tool_rounds=50))[0] == expected


M = "malformed_arguments"
GOOD: Spec = ("read", 7, True)
BROKEN: list[Spec] = [("write", BAD, True)]

MALFORMED: list[tuple[int, list[list[Spec]], list[str]]] = [
    (0, [BROKEN], [M, F]),
    (1, [BROKEN, BROKEN], [M, M, F]),
    (1, [BROKEN, [GOOD], BROKEN, [GOOD]], [M, R, M, R]),
    (2, [BROKEN, BROKEN, BROKEN], [M, M, M, F]),
    (2, [BROKEN, BROKEN, [GOOD], BROKEN, BROKEN], [M, M, R, M, M]),
    (2, [BROKEN + BROKEN, BROKEN], [M, M, M, F]),
    (2, [[*BROKEN, GOOD, *BROKEN, *BROKEN]], [M, R, M, M]),
    (0, [[("write", BAD, True), GOOD]], [M, "turn_failed", F]),
]


@pytest.mark.parametrize(("retries", "turn", "expected"), MALFORMED)
def test_the_malformed_counter(retries: int, turn: list[list[Spec]], expected: list[str]):
    assert play(turn, Limits(max_parse_retries=retries))[0] == expected


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_the_text_of_giving_up(retries: int):
    state = fold([NewFact("u", None, Asked((Text("hi"),))), NewFact("a", None, answer(BROKEN * (retries + 1)))])
    *_, last = judge(state, {}, TOOLS, Limits(max_parse_retries=retries))
    assert isinstance(last, Refuse) and isinstance(last.result, Returned)
    fatal = last.result.metadata["fatal"]
    assert isinstance(fatal, Mapping) and fatal["message"] == (
        f"LLM produced malformed tool arguments {retries + 1} time(s) in a row (max_parse_retries={retries}); giving up"
    )


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_the_round_cap_denies(cap: int):
    turn: list[list[Spec]] = [[("read", n, True)] for n in range(cap + 1)]
    assert play(turn, Limits(max_tool_rounds=cap))[0] == ["ran"] * cap + ["denied"]


@given(TURN, st.integers(0, 30))
def test_judging_after_a_crash_is_judging_live(turn: list[list[Spec]], landed: int):
    """Judging is a function of the fold and of the results that are there: not of what this process remembers (§5)."""
    limits = Limits()
    state: State = fold([NewFact("u", None, Asked((Text("hi"),))), NewFact("a", None, answer(turn[0]))])
    done: dict[str, Returned | Denied] = {}
    while len(done) < landed and (verdicts := judge(state, done, TOOLS, limits)):
        for verdict in verdicts:
            key, position = verdict.call.key, verdict.call.position
            done[key] = (
                verdict.result
                if isinstance(verdict, Refuse)
                else outcome(key, verdict.call.call.name, turn[0][position][2])
            )
    copied = dict(reversed(done.items()))
    assert judge(state, copied, TOOLS, limits) == judge(state, done, TOOLS, limits)
