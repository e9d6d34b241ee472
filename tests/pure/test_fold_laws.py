"""Laws of the fold over random legal logs (§4)."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from thence.chat import AssistantMessage, ToolMessage
from thence.facts import (
    Answered,
    Asked,
    Denied,
    Ended,
    NewFact,
    Note,
    Reported,
    Returned,
    WaitAnswered,
    WaitOpened,
    Waived,
)  # fmt: skip
from thence.fold import fold, next_step
from thence.limits import Limits
from thence.state import Phase
from thence.steps import Ask, Continue, End, Park, Settled, UseTools, Verify
from thence.transcript import Transcript

from ..kit import check_messages
from .logs import legal_logs


@given(legal_logs(), st.integers(0, 60))
def test_folding_in_two_pieces_is_folding_at_once(log: list[NewFact], cut: int):
    assert fold(log[cut:], fold(log[:cut])) == fold(log)


@given(legal_logs())
def test_folding_one_by_one_is_folding_at_once(log: list[NewFact]):
    state = None
    for fact in log:
        state = fold([fact], state)
    assert (state or fold([])) == fold(log)


@given(legal_logs(settled=True))
def test_a_settled_log_yields_nothing_to_do(log: list[NewFact]):
    state = fold(log)
    assert state.phase is Phase.IDLE and state.open == ()
    assert next_step(state, Limits()) == Settled()


@given(legal_logs(), st.integers(1, 5), st.integers(0, 3))
def test_every_log_has_exactly_one_next_step_of_the_right_kind(log: list[NewFact], rounds: int, more: int):
    state = fold(log)
    limits = Limits(max_tool_rounds=rounds, max_continuation_turns=more)
    step = next_step(state, limits)
    assert step == next_step(state, limits)  # pure
    kinds = {
        Phase.IDLE: (Settled,), Phase.INFER: (Ask, End, Park), Phase.CALLS: (UseTools,),
        Phase.ANSWERED: (Continue, End),
    }  # fmt: skip
    assert isinstance(step, kinds[state.phase])
    if isinstance(step, Ask):
        assert step.offer_tools is (state.rounds < rounds)
    gated = next_step(state, limits, gated=True)
    closed = step == End("completed") and state.gate.is_closed
    assert gated == (Verify(state.gate.changes) if closed else step)
    heard = {wait_id for wait_id, (_, answer) in waits_of(log).items() if answer is not None}
    assert isinstance(step, Park) is (state.phase is Phase.INFER and heard != set(waits_of(log)))


def waits_of(log: list[NewFact]) -> dict[str, tuple[str, WaitAnswered | None]]:
    """What the log waits for, and what it heard: a wait is over with what it is about."""
    found: dict[str, tuple[str, WaitAnswered | None]] = {}
    for payload in (fact.payload for fact in log):
        if isinstance(payload, WaitOpened):
            found[payload.wait_id] = (payload.subject, None)
        elif isinstance(payload, WaitAnswered):
            found[payload.wait_id] = (found[payload.wait_id][0], payload)
        elif isinstance(payload, Returned | Denied):
            found = {key: value for key, value in found.items() if value[0] != payload.call_key}
        elif isinstance(payload, Answered | Ended):
            found = {}
    return found


@given(legal_logs())
def test_waits_are_open_until_what_they_are_about_is_done(log: list[NewFact]):
    state = fold(log)
    assert [(wait.wait_id, (wait.subject, wait.answer)) for wait in state.waits] == list(waits_of(log).items())
    opened = {fact.payload.wait_id: fact.payload for fact in log if isinstance(fact.payload, WaitOpened)}
    for wait in state.waits:
        assert (wait.kind, wait.about) == (opened[wait.wait_id].kind, opened[wait.wait_id].about)
    if state.phase in (Phase.IDLE, Phase.ANSWERED):
        assert state.waits == ()


@given(legal_logs())
def test_waits_tell_the_model_nothing(log: list[NewFact]):
    whole, without = Transcript(), Transcript()
    for fact in log:
        whole.advance(fact)
        if not isinstance(fact.payload, WaitOpened | WaitAnswered):
            without.advance(fact)
    assert list(whole.snapshot()) == list(without.snapshot())


@given(legal_logs())
def test_the_gate_says_what_the_facts_of_the_turn_say(log: list[NewFact]):
    """Said anew from the facts: any change moves the digest; the newest report of a digest counts; a waiver stays."""
    state = fold(log)
    starts = [i for i, fact in enumerate(log) if isinstance(fact.payload, Asked) and fact.payload.origin == "host"]
    turn = [fact.payload for fact in log[starts[-1] :]] if starts else []
    changed = [p for p in turn if isinstance(p, Returned) and _changes(p)]
    assert bool(state.gate.changes) is bool(changed)
    reports = [p for p in turn if isinstance(p, Reported) and p.digest == state.gate.changes]
    waived = any(isinstance(p, Waived) and p.digest == state.gate.changes for p in turn)
    newest = bool(reports) and reports[-1].passed
    assert state.gate.is_closed is (bool(changed) and not (waived or newest))


def _changes(result: Returned) -> bool:
    metadata = result.metadata
    wrote = result.ok and "workspace" in metadata and metadata.get("effect") != "read"
    return "refused" not in metadata and (wrote or "changed_paths" in metadata)


@given(legal_logs())
def test_the_history_is_valid_wherever_a_model_is_asked(log: list[NewFact]):
    """Each call is followed by exactly one result, in call order, before the next model turn (§4)."""
    transcript, state = Transcript(), fold([])
    for fact in log:
        state = fold([fact], state)
        transcript.advance(fact)
        if state.phase in (Phase.INFER, Phase.ANSWERED, Phase.IDLE):
            check_messages(transcript.snapshot())


@given(legal_logs(settled=True))
def test_the_transcript_says_what_the_facts_say(log: list[NewFact]):
    transcript = Transcript()
    for fact in log:
        transcript.advance(fact)
    messages = list(transcript.snapshot())
    told = [fact.payload for fact in log if not isinstance(fact.payload, Note)]
    assert sum(m.role == "user" for m in messages) == sum(isinstance(p, Asked) for p in told)
    answers = [p for p in told if isinstance(p, Answered)]
    assert [m.text for m in messages if isinstance(m, AssistantMessage)] == [p.text for p in answers]
    calls = [call for m in messages if isinstance(m, AssistantMessage) for call in m.calls]
    assert len({call.key for call in calls}) == len(calls)  # public ids are unique whatever the provider's are
    assert [call.id for call in calls] == [call.id for p in answers for call in p.calls]
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    shown = {m.call_key: m.ok for m in messages if isinstance(m, ToolMessage)}
    for payload in told:
        if isinstance(payload, Returned):
            assert shown[payload.call_key] == payload.ok


@given(legal_logs(), st.integers(0, 60))
def test_a_snapshot_of_the_transcript_does_not_grow(log: list[NewFact], cut: int):
    transcript = Transcript()
    for fact in log[:cut]:
        transcript.advance(fact)
    early = transcript.snapshot()
    before = list(early)
    for fact in log[cut:]:
        transcript.advance(fact)
    assert list(early) == before and len(early) == len(before)
    assert [early[i] for i in range(len(early))] == before and early[: len(before)] == before


@given(legal_logs(settled=True))
def test_usage_and_counters_are_folds_of_the_newest_turn(log: list[NewFact]):
    state = fold(log)
    starts = [i for i, fact in enumerate(log) if isinstance(fact.payload, Asked) and fact.payload.origin == "host"]
    turn = [fact.payload for fact in log[starts[-1] :]] if starts else []
    answers = [p for p in turn if isinstance(p, Answered)]
    assert state.turn == len(starts) and state.request == len(answers)
    assert state.rounds == sum(bool(p.calls) for p in answers)
    assert state.usage.total_tokens == sum(p.usage.total_tokens for p in answers if p.usage)
    assert state.without_usage == sum(p.usage is None for p in answers)
    ran = [p for p in turn if isinstance(p, Returned) and "refused" not in p.metadata]
    assert state.tool_calls == len(ran)


@given(legal_logs(most=400))
def test_the_state_stays_small(log: list[NewFact]):
    state = fold(log)
    assert len(state.loop.window) <= 8 and len(state.open) <= 3
