"""When a compaction is due, what it keeps, what it asks for: exact limits (§5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.chat import UserMessage
from thence.compaction import (
    MAX_SUMMARY_BYTES,
    Room,
    choose,
    cut_end,
    cut_middle,
    due,
    estimate,
    instructions,
    render,
    room_for,
    summary_request,
)
from thence.facts import Answered, Asked, Call, NewFact, Payload, Returned, Text
from thence.limits import Limits
from thence.log import Log
from thence.state import State
from thence.transcript import size_of

from .kit import compact, is_summary_request, size

AUTO = Limits(auto_compact=True, auto_compact_threshold=0.8, max_context_tokens=1000)
WIDE = Room(10**6, 10**6, 10**6)

# (limits, used, hooked, compactions in this turn) -> why
DUE = [
    (AUTO, 800, False, 0, "threshold"),
    (AUTO, 799, False, 0, None),
    (AUTO, 800, False, 1, None),
    (AUTO, 5000, False, 0, "threshold"),
    (AUTO, 0, True, 0, "hook"),
    (AUTO, 900, True, 0, "hook"),
    (AUTO, 900, True, 1, None),
    (Limits(max_context_tokens=1000), 999_999, False, 0, None),
    (Limits(max_context_tokens=1000), 0, True, 0, "hook"),
    (replace(AUTO, auto_compact_threshold=0.0), 0, False, 0, "threshold"),
    (replace(AUTO, auto_compact_threshold=1.0), 999, False, 0, None),
    (replace(AUTO, auto_compact_threshold=1.0), 1000, False, 0, "threshold"),
]


@pytest.mark.parametrize(("limits", "used", "hooked", "before", "why"), DUE)
def test_when_it_is_due(limits: Limits, used: int, hooked: bool, before: int, why: str | None):
    assert due(State(compactions=before), limits, used, hooked=hooked) == why


def test_the_shares_of_the_window():
    assert room_for(1000, 900, 900, "threshold") == Room(tail=1080, summary=400, request=2000)
    assert room_for(1000, 5000, 5000, "threshold") == Room(tail=1200, summary=400, request=2000)
    assert room_for(1000, 500, 500, "request") == Room(tail=600, summary=400, request=2000)
    assert room_for(1000, 500, 500, "overflow") == Room(600, 200, 1000), "the true window is smaller"
    assert room_for(200_000, 10**6, 10**6, "hook") == Room(240_000, MAX_SUMMARY_BYTES, 400_000)


def test_a_provider_that_counts_more_has_shorter_tokens():
    assert room_for(1000, 900, 300, "threshold") == Room(tail=360, summary=133, request=666)
    assert room_for(1000, 2000, 500, "overflow") == Room(tail=300, summary=100, request=500)


def said(text: str, *calls: str) -> Answered:
    return Answered(text, tuple(Call(f"c{n}", name, {}) for n, name in enumerate(calls)))


def log_of(*payloads: Payload) -> Log:
    log, request = Log(1, 1), 0
    for number, payload in enumerate(payloads):
        request += isinstance(payload, Answered)
        key = payload.call_key if isinstance(payload, Returned) else f"k{number}"
        if isinstance(payload, Answered):
            key = f"t1-r{request}"
        log.transcript.advance(NewFact(key, None, payload), number + 1)
    return log


def result(request: int, position: int, length: int) -> Returned:
    return Returned(f"t1-r{request}-c{position}", True, (Text("r" * length),))


OLD: list[Payload] = [Asked((Text("o" * 400),)), said("a" * 400)]
TURN: list[Payload] = [
    Asked((Text("u" * 100),)),
    said("", "x", "y"),
    result(1, 0, 50),
    result(1, 1, 50),
    said("z" * 30),
]


def tail_of(room: int, *payloads: Payload, closed: bool = False) -> tuple[int, int | None, int] | None:
    """(index of the tail, kept message, messages that are dropped)."""
    cut = choose(log_of(*payloads).transcript, replace(WIDE, tail=room), closed=closed)
    return None if cut is None else (cut.tail, cut.kept_message, len(cut.dropped))


def fixed(*payloads: Payload) -> list[Payload]:
    """The keys of results say which answer they belong to: the second one here."""
    return [
        replace(p, call_key=p.call_key.replace("t1-r1", "t1-r2")) if isinstance(p, Returned) else p for p in payloads
    ]


LOG = fixed(*OLD, *TURN)
GROUP = 100 + 2 * len("{}")  # two results, and the arguments of the two calls

# bytes for the tail -> (index of the tail, kept message, messages that are dropped)
TAILS = [
    (0, (7, 2, 6)),
    (29, (7, 2, 6)),
    (30, (6, 2, 5)),
    (30 + GROUP - 1, (6, 2, 5)),
    (30 + GROUP, (3, 2, 2)),
    (30 + GROUP + 99, (3, 2, 2)),
    (30 + GROUP + 100, (2, None, 2)),
    (30 + GROUP + 100 + 399, (2, None, 2)),
    (30 + GROUP + 100 + 400, (1, None, 1)),
    (30 + GROUP + 100 + 800, None),
    (10**6, None),
]


@pytest.mark.parametrize(("room", "expected"), TAILS)
def test_the_tail_is_the_longest_end_of_whole_groups_that_fits(room: int, expected: tuple[int, int | None, int] | None):
    assert tail_of(room, *LOG) == expected


def test_an_end_that_does_not_fit_is_not_passed_over():
    """The newest group alone is too large: nothing stays but the host's message, however short the others are."""
    assert tail_of(50, *OLD, said("short"), Asked((Text("hi"),)), said("z" * 100)) == (5, 3, 4)


# bytes for the tail -> (index of the tail, kept message, messages that are dropped), once the turn is closed
CLOSED = [(0, (6, 2, 5)), (29, (6, 2, 5)), (30, (6, 2, 5)), (30 + GROUP, (3, 2, 2)), (10**6, None)]


@pytest.mark.parametrize(("room", "expected"), CLOSED)
def test_the_last_answer_of_a_closed_turn_stays_with_its_question(
    room: int, expected: tuple[int, int | None, int] | None
):
    assert tail_of(room, *LOG, closed=True) == expected


def test_a_closed_turn_without_an_answer_keeps_what_an_open_one_does():
    cancelled = fixed(*OLD, *TURN[:-1])
    assert tail_of(0, *cancelled, closed=True) == tail_of(0, *cancelled) == (6, 2, 5)
    assert tail_of(0, *OLD, Asked((Text("u" * 100),)), closed=True) == (3, 2, 2)


@pytest.mark.parametrize("payloads", [[], [Asked((Text("u" * 5000),))]], ids=["nothing", "one message"])
def test_there_is_nothing_to_drop(payloads: list[Payload]):
    assert tail_of(0, *payloads) is None


def test_a_summary_alone_is_not_summarised_again():
    log = log_of(*LOG)
    log.seq = 7
    compact(log, 3)
    assert [message.role for message in log.transcript.snapshot()] == [
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert choose(log.transcript, replace(WIDE, tail=10**6)) is None
    assert choose(log.transcript, replace(WIDE, tail=30 + GROUP)) is None, "only the kept message lies between"
    cut = choose(log.transcript, replace(WIDE, tail=30))
    assert cut is not None and (cut.tail, cut.kept_message) == (5, 1)
    assert [message.text[:1] for message in cut.dropped] == ["[", "", "r", "r"]


def test_the_summary_is_at_most_half_of_what_it_stands_for():
    cut = choose(log_of(*LOG).transcript, replace(WIDE, tail=30 + GROUP + 100))
    assert cut is not None and cut.summary_bytes == 400
    small = choose(log_of(*LOG).transcript, replace(WIDE, tail=30 + GROUP + 100, summary=64))
    assert small is not None and small.summary_bytes == 64
    assert choose(log_of(*LOG).transcript, replace(WIDE, tail=30 + GROUP + 100, summary=63)) is None


def test_what_is_too_short_to_gain_anything_is_left_alone():
    short: list[Payload] = [Asked((Text("o" * 60),)), said("a" * 67), *TURN[:1]]
    assert tail_of(0, *short) is None
    assert tail_of(0, Asked((Text("o" * 61),)), *short[1:]) == (3, 2, 2)


@pytest.mark.parametrize("room", [2000, 1500, 1100])
def test_the_request_stays_within_its_share_and_names_what_was_done(room: int):
    payloads = [Asked((Text("first words " + "o" * 3000),)), *LOG[1:]]
    cut = choose(log_of(*payloads).transcript, Room(30, 64, room))
    assert cut is not None
    request = summary_request("m", {"temperature": 0}, cut)
    assert is_summary_request(request) and request.instructions == instructions(64)
    assert size(request) <= room and (size(request) + 3) // 4 == estimate(request)
    assert (request.tools, request.settings, request.output_schema, len(request.messages)) == (
        (),
        {"temperature": 0},
        None,
        1,
    )
    text = request.messages[0].text
    assert text.startswith("[user]\nfirst words") and "bytes and more are left out" in text
    assert "[call] x({})" in text and "[result of y]\nrrr" in text


def test_a_window_without_room_for_the_request_compacts_nothing():
    words = len(instructions(64))
    assert choose(log_of(*LOG).transcript, Room(30, 64, words + 127)) is None
    assert choose(log_of(*LOG).transcript, Room(30, 64, words + 128)) is not None


TEXTS = st.text(st.sampled_from("aé漢😀\n"), max_size=400)


@given(TEXTS, st.integers(0, 500))
def test_cutting_keeps_to_the_limit_and_to_whole_characters(text: str, limit: int):
    for cut in (cut_middle(text, limit), cut_end(text, limit)):
        assert len(cut.encode()) <= limit
        assert cut == text or len(text.encode()) > limit
    assert text.startswith(cut_end(text, limit))
    assert len(text.encode()) <= limit or len(cut_end(text, limit).encode()) > limit - 4


@given(st.lists(TEXTS, max_size=20), st.integers(200, 2000))
def test_a_rendering_keeps_to_its_limit(texts: Sequence[str], limit: int):
    assert len(render([UserMessage(text) for text in texts], limit).encode()) <= limit


def test_a_long_result_does_not_push_the_others_out():
    log = log_of(Asked((Text("please"),)), said("", "x"), result(1, 0, 100_000), said("short"))
    text = render(log.transcript.snapshot(), 4000)
    assert "please" in text and "short" in text and size_of(log.transcript.message(2)) == 100_000
