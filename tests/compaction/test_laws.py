"""A log may be opened at its newest compaction: what comes of it is what comes of reading it from the start (§4)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence import state_json
from thence.chat import Usage
from thence.codec import decode, encode
from thence.compacted import Compacted
from thence.errors import IllegalFact, UnknownCriticalFact
from thence.facts import Answered, Asked, Configured, Ended, NewFact, Text, WaitAnswered, WaitOpened
from thence.fold import TRANSITIONS, advance, fold
from thence.gate import Gate
from thence.kept_state import KeptState, keep_state
from thence.ledger import Ledger, Nobody
from thence.log import Log
from thence.loopguard import LoopGuard
from thence.state import Phase, State
from thence.state_json import ABSENT, BUILT, PLAIN, decode_state, encode_state
from thence.steps import OpenCall, OpenWait
from thence.writes import Head

from ..kit import check_messages
from ..pure.logs import legal_logs
from .kit import HEAD, IDS, SETUP, borders, compact, may_compact, newest, stored_facts, with_compactions

SEEDS = st.integers(0, 2**32)


# ---------------------------------------------------------------- the state
def test_every_field_of_the_state_has_its_place():
    names = [field.name for field in fields(State)]
    assert sorted([*PLAIN, *BUILT, *ABSENT]) == sorted(names), "a new field of State: encode it in state_json"


EVERYTHING = State(
    phase=Phase.INFER, turn=3, request=4, rounds=2, text="é" * 40_000, stop_reason="length", capped=True,
    fatal=("X", "why"), loop=LoopGuard(("a:1", "b:2"), "a:1", 1), gate=Gate("d" * 64, True, True, 2, 3),
    continuations=2, continued=("c" * 64,), steers=1, usage=Usage(1, 2, 2**70, 4, 5), without_usage=6, tool_calls=7,
    cut=True, compactions=2, overflowed=True, context_tokens=99, configs=3,
    config=Configured("m", "i" * 70_000, {"t": 0.1, "n": 2**70}, {"a": None}, "0" * 64, "1" * 64, "own"),
    ended=Ended("failed", "C", "m"),
    waits=(OpenWait("t3-r5-w1", "budget_hold", "t3-r5", "d", {"q": 1}, WaitAnswered("t3-r5-w1", {"a": [1]}, "ann")),),
)  # fmt: skip


def test_everything_in_a_state_is_kept():
    for field in fields(State):
        if field.name not in ABSENT:
            assert getattr(EVERYTHING, field.name) != getattr(State(), field.name), (
                f"the test says nothing of {field.name}"
            )
    assert decode_state(encode_state(EVERYTHING)) == EVERYTHING
    assert decode_state(encode_state(State())) == State()


def test_a_fact_keeps_long_texts_elsewhere_and_comes_back_whole():
    fact = Compacted("hook", "s" * 70_000, 3, 9, encode_state(EVERYTHING), Usage(1), "m")
    encoded = encode(fact)
    assert len(encoded.text) < 8000 and sorted(map(len, encoded.blobs.values())) == [70_000, 70_000, 80_000]
    again = decode(encoded.kind, encoded.text, encoded.blobs.__getitem__)
    assert again == fact and encode(again) == encoded
    assert decode_state(fact.state) == EVERYTHING


def test_what_a_later_version_adds_is_refused_and_what_an_earlier_one_lacks_is_at_its_default():
    value = encode_state(EVERYTHING)
    with pytest.raises(UnknownCriticalFact, match="'moods'"):
        decode_state({**value, "moods": 1})
    del value["context_tokens"]
    assert decode_state(value) == replace(EVERYTHING, context_tokens=0)


def test_open_calls_cannot_be_put_into_a_state():
    with pytest.raises(ValueError, match="open round"):
        encode_state(State(open=(OpenCall("t1-r1-c0", 0, None, "s"),)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- the fold
BARE = Compacted("threshold", "s", None, 1, {}, Usage(1, 2, 3), "m")


def test_a_compaction_may_come_between_turns_and_before_a_request_and_nowhere_else():
    assert {phase for phase, kind in TRANSITIONS if kind is Compacted} == {Phase.IDLE, Phase.INFER}
    for phase in Phase:
        state = State(phase=phase, turn=1)
        if phase in (Phase.IDLE, Phase.INFER):
            assert advance(state, NewFact("t1-compact1", None, BARE)).phase is phase
        else:
            with pytest.raises(IllegalFact):
                advance(state, NewFact("t1-compact1", None, BARE))


def test_never_while_a_wait_is_open():
    wait = WaitOpened("t1-r1-w1", "budget_hold", "t1-r1", "d")
    state = fold([NewFact("t1-user", None, Asked((Text("x"),))), NewFact("t1-r1-w1", None, wait)])
    with pytest.raises(IllegalFact, match="wait is open"):
        advance(state, NewFact("t1-compact1", None, BARE))
    answered = advance(state, NewFact("a", None, WaitAnswered("t1-r1-w1", True)))
    after = advance(answered, NewFact("t1-compact1", None, BARE))
    assert after.waits == answered.waits and decode_state(encode_state(after)) == after


def test_what_it_counts():
    user = NewFact("t1-user", None, Asked((Text("x"),)))
    said = NewFact("t1-r1", None, Answered("y", usage=Usage(10, 5, 15)))
    end = NewFact("t1-end", None, Ended("completed"))
    state = fold([user, said, end])
    assert (state.context_tokens, state.compactions) == (15, 0)
    after = advance(state, NewFact("t1-compact1", None, BARE))
    assert after == replace(state, compactions=1, context_tokens=0, usage=Usage(11, 7, 18))
    silent = advance(after, NewFact("t1-compact2", None, replace(BARE, usage=None, trigger="overflow")))
    assert silent == replace(after, compactions=2, without_usage=1, overflowed=True)
    again = fold([NewFact("t2-user", None, Asked((Text("x"),)))], replace(silent, context_tokens=7))
    assert (again.compactions, again.overflowed, again.context_tokens, again.usage) == (0, False, 7, Usage())
    unsaid = advance(again, NewFact("t2-r1", None, Answered("z")))
    assert unsaid.context_tokens == 7, "a provider that says nothing takes nothing back"


@given(legal_logs(), SEEDS)
def test_folding_from_a_compaction_is_folding_from_the_start(log: list[NewFact], seed: int):
    facts, _ = with_compactions(log, seed)
    for number, fact in enumerate(facts, 1):
        if isinstance(fact.payload, Compacted):
            state = decode_state(fact.payload.state)
            assert state == fold(facts[:number])
            assert fold(facts[number:], state) == fold(facts)


@given(legal_logs())
def test_at_every_prefix_where_it_is_legal(log: list[NewFact]):
    grown = Log(1, 1)
    for number, fact in enumerate(log, 1):
        grown.add((fact,))
        if may_compact(grown.state):
            state = grown.state
            other, _ = with_compactions(log[:number], 0, chance=0)
            one = Log(1, 1)
            one.add(other)
            made = compact(one, borders(one)[-1])
            assert isinstance(made.payload, Compacted)
            assert decode_state(made.payload.state) == one.state == advance(state, made)


# ---------------------------------------------------------------- the log in memory
def seen(log: Log) -> Any:
    """All that two logs must agree in."""
    transcript = log.transcript
    messages = list(transcript.snapshot())
    return (
        log.state, messages, [transcript.seq(i) for i in range(len(messages))], transcript.bytes, transcript.asked,
        transcript.starts_with_summary, log.requests, log.compacted_at, log.is_compacted, log.seq,
    )  # fmt: skip


@given(legal_logs(), SEEDS)
def test_live_read_back_and_opened_at_the_compaction_are_the_same(log: list[NewFact], seed: int):
    facts, live = with_compactions(log, seed)
    rows, head, blobs = stored_facts(facts)
    whole = Log(1, 1)
    whole.add_stored(rows, blobs, head)
    assert whole.head == head and seen(whole) == seen(live)
    found = newest(facts)
    if found is None:
        return
    seq, fact = found
    opened = Log(1, 1)
    message = [] if fact.kept_message is None else [rows[fact.kept_message - 1]]
    opened.open_at(seq, message, rows[fact.kept_from - 1 :], blobs, head)
    assert opened.head == head and seen(opened) == seen(live)
    if live.state.phase is Phase.CALLS:
        assert opened.answer_hash == whole.answer_hash


@given(legal_logs(), SEEDS, st.integers(0, 80))
def test_a_log_in_memory_catches_up_over_compactions_of_others(log: list[NewFact], seed: int, cut: int):
    facts, live = with_compactions(log, seed)
    rows, head, blobs = stored_facts(facts)
    mine = Log(1, 1)
    mine.add(facts[:cut])
    _, middle, _ = stored_facts(facts[:cut])
    mine.head = middle
    if rows[cut:]:
        mine.add_stored(rows[cut:], blobs, head)
    assert seen(mine) == seen(live)


@given(legal_logs(), SEEDS, st.integers(1, 80))
def test_the_state_of_a_checkpoint_serves_behind_a_compaction_too(log: list[NewFact], seed: int, at: int):
    facts, live = with_compactions(log, seed, chance=0.1)
    found = newest(facts)
    if found is None:
        return
    seq, fact = found
    at = min(at, len(facts))
    rows, head, blobs = stored_facts(facts)
    _, there, _ = stored_facts(facts[:at])
    text = keep_state(fold(facts[:at]), there.hash)
    if text is None:
        return
    message = [] if fact.kept_message is None else [rows[fact.kept_message - 1]]
    opened = Log(1, 1)
    kept = KeptState(at, text[0].encode(), text[1])
    opened.open_at(seq, message, rows[fact.kept_from - 1 :], blobs, head, kept)
    assert seen(opened) == seen(live)


@given(legal_logs(), SEEDS)
def test_every_request_is_valid_and_earlier_ones_stay_as_they_were(log: list[NewFact], seed: int):
    facts, _ = with_compactions(log, seed)
    grown, earlier = Log(1, 1), list[tuple[Any, list[Any]]]()
    for fact in facts:
        grown.add((fact,))
        if grown.state.phase is not Phase.CALLS:
            snapshot = grown.transcript.snapshot()
            check_messages(snapshot)
            earlier.append((snapshot, list(snapshot)))
        if isinstance(fact.payload, Compacted):
            assert grown.transcript.message(0).text == HEAD + fact.payload.summary
    for snapshot, messages in earlier:
        assert list(snapshot) == messages


@given(legal_logs(), SEEDS)
def test_the_hosts_last_message_always_stays(log: list[NewFact], seed: int):
    facts, live = with_compactions(log, seed, chance=0.5)
    asked = [fact.payload for fact in facts if isinstance(fact.payload, Asked) and fact.payload.origin == "host"]
    if asked:
        part = asked[-1].parts[0]
        assert isinstance(part, Text)
        assert sum(message.text == part.text for message in live.transcript.snapshot()) == 1


def test_a_compaction_that_keeps_what_is_not_there_is_refused():
    log = Log(1, 1)
    log.add([NewFact("t1-user", None, Asked((Text("x"),)))])
    with pytest.raises(IllegalFact, match="keeps the message 7"):
        log.add([NewFact("t1-compact1", None, replace(BARE, kept_message=7, kept_from=9))])


def test_a_commit_that_was_refused_takes_its_facts_out_of_the_count():
    """A turn that was spoken to in the last moment does not end: what comes instead stands where its end would have."""
    log = Log(1, 1)
    log.add([NewFact("t1-user", None, Asked((Text("x"),))), NewFact("t1-r1", None, Answered("y"))])
    log.head = Head(1, b"")
    ledger = Ledger(IDS, log, SETUP, Nobody())
    ledger._facts.append(NewFact("t1-r1", None, Answered("y")))
    mark = ledger.mark()
    ledger.stage("t1-end", None, Ended("completed"))
    assert log.seq == 3
    ledger.go_back(mark)
    assert log.seq == 2
    ledger.stage("t1-steer1", None, Asked((Text("z"),), "steer"))
    assert log.transcript.seq(2) == 3


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch):
    """A field that is forgotten: the laws above compare states that differ."""
    monkeypatch.setattr(state_json, "PLAIN", tuple(name for name in PLAIN if name != "turn"))
    log = Log(1, 1)
    log.add([NewFact("t1-user", None, Asked((Text("x"),)))])
    made = compact(log, 1)
    assert isinstance(made.payload, Compacted)
    assert decode_state(made.payload.state) != log.state
