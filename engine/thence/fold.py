"""The heart: facts in, next step out (§4, §5). Pure; `turn` performs what it says.

The rules, in one page:

* A turn begins with a ``user.message`` and ends with ``turn.ended``. Between them the model answers; an answer with
  calls is a round, and every call of it gets exactly one result, in call order, before the next answer.
* After ``max_tool_rounds`` rounds the model is offered no tools; calls it makes all the same are denied, and the turn
  ends with the text it has.
* A call whose arguments are not one JSON object never runs; more than ``max_parse_retries`` such calls in a row fail
  the turn. The same call too often among the last eight is refused; refused again at once, it fails the turn.
* A wait, about a call or about the next model request, keeps what it is about from being done until its answer is a
  fact. It is over with the result of its call, or with the answer to that request.
* An answer without calls that is empty, or was cut by its length limit or a pause, is continued a few times.
* A turn that changed the workspace ends ``completed`` only when its changes were verified or waived, if that is asked.
* A compaction comes between two turns or before a model request: never while a call or a wait is open.

=========  =================================================  ==============================================
phase      facts that may come                                 and then
=========  =================================================  ==============================================
IDLE       run.configured, user.message (host)                 IDLE, INFER
IDLE       compaction.done                                     IDLE
INFER      run.configured, user.message, model.turn, ended     INFER, CALLS with calls, else ANSWERED; IDLE
INFER      wait.opened, wait.answered, compaction.done         INFER
CALLS      tool.result and budget.denied of the next open call CALLS; the last one: INFER, or ANSWERED if capped
CALLS      wait.opened, wait.answered                          CALLS
ANSWERED   run.configured, verification.reported, gate.waived, ANSWERED, INFER, IDLE
           user.message, turn.ended
=========  =================================================  ==============================================

Any other fact is an :class:`~thence.errors.IllegalFact`: the log was not written by a turn. Ancillary notes may come
at any time and change nothing. ``fold(a + b) == fold(b, fold(a))``, and every counter is a fold of facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .canonical import sha256_hex
from .compacted import Compacted
from .errors import IllegalFact
from .facts import (
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
    WaitAnswered,
    WaitOpened,
    Waived,
    answer_key,
    call_key,
)
from .limits import Limits
from .state import Phase, State
from .steps import Ask, Continue, End, OpenCall, OpenWait, Park, Settled, Step, UseTools, Verify

CONTINUE_TEXT = "Continue."
UNFINISHED = frozenset({"length", "max_tokens", "pause", "pause_turn"})


def fold(facts: Iterable[NewFact], start: State | None = None) -> State:
    """Fold ``facts`` into the state they amount to, going on from ``start``."""
    state = start or State()
    for fact in facts:
        state = advance(state, fact)
    return state


def advance(state: State, fact: NewFact) -> State:
    """The state after one more fact.

    Raises:
        IllegalFact: this kind cannot come in this phase, or a result is not that of the next open call.
    """
    payload = fact.payload
    if isinstance(payload, Note):
        return state
    move = TRANSITIONS.get((state.phase, type(payload)))
    if move is None:
        raise IllegalFact(f"{type(payload).__name__} ('{fact.key}') cannot come in phase {state.phase.value}")
    return move(state, payload)


def next_step(state: State, limits: Limits, *, gated: bool = False) -> Step:
    """What a turn does next. Depends on nothing but its arguments. ``gated``: the completion gate is on."""
    match state.phase:
        case Phase.IDLE:
            return Settled()
        case Phase.CALLS:
            return UseTools()
        case Phase.INFER if any(wait.answer is None for wait in state.waits):
            return Park()
        case Phase.INFER if state.fatal is None:
            return Ask(offer_tools=state.rounds < limits.max_tool_rounds)
        case _ if state.fatal is not None:
            return End("failed", *state.fatal)
        case _ if not state.capped and _wants_more(state, limits):
            return Continue()
        case _ if gated and state.gate.is_closed:
            return Verify(state.gate.changes)
        case _:
            return End("completed")


def signature(call: Call) -> str:
    """Tool name and SHA-256 of the canonical arguments: equal for calls that do the same."""
    return f"{call.name}:{sha256_hex(call.text)}"


def _wants_more(state: State, limits: Limits) -> bool:
    unfinished = not state.text.strip() or state.stop_reason in UNFINISHED
    return (
        unfinished
        and limits.continuation_enabled
        and state.continuations < limits.max_continuation_turns
        and sha256_hex(state.text) not in state.continued
    )


def _configured(state: State, fact: Configured) -> State:
    return replace(state, config=fact, configs=state.configs + 1)


def _asked_idle(state: State, fact: Asked) -> State:
    if fact.origin != "host":
        raise IllegalFact(f"a {fact.origin} message cannot begin a turn")
    return State(
        Phase.INFER,
        state.turn + 1,
        cut=state.cut,
        context_tokens=state.context_tokens,
        config=state.config,
        configs=state.configs,
    )


def _asked_again(state: State, fact: Asked) -> State:
    if fact.origin == "host":
        raise IllegalFact("a new turn cannot begin before the last one has ended")
    if fact.origin == "steer":
        return replace(state, phase=Phase.INFER, steers=state.steers + 1, capped=False)
    continued = (*state.continued, sha256_hex(state.text))
    return replace(state, phase=Phase.INFER, continuations=state.continuations + 1, continued=continued)


def _answered(state: State, fact: Answered) -> State:
    request = state.request + 1
    opened = tuple(
        OpenCall(call_key(state.turn, request, position), position, call, signature(call))
        for position, call in enumerate(fact.calls)
    )
    return replace(
        state,
        phase=Phase.CALLS if opened else Phase.ANSWERED,
        request=request,
        open=opened,
        waits=(),
        text=fact.text,
        stop_reason=fact.stop_reason,
        rounds=state.rounds + bool(opened),
        usage=state.usage + fact.usage if fact.usage else state.usage,
        without_usage=state.without_usage + (fact.usage is None),
        context_tokens=fact.usage.prompt_tokens + fact.usage.completion_tokens if fact.usage else state.context_tokens,
    )


def _returned(state: State, fact: Returned) -> State:
    call = _next_open(state, fact.call_key)
    fatal = fatal_of(fact.metadata)
    executed = "refused" not in fact.metadata
    loop = state.loop.after(call.signature, fact.ok, fact.metadata)
    rest = state.open[1:]
    return replace(
        state,
        phase=Phase.CALLS if rest else Phase.ANSWERED if state.capped else Phase.INFER,
        open=rest,
        waits=_waits_without(state, call.key),
        loop=loop,
        gate=state.gate.after_result(call.signature, fact.ok, fact.metadata),
        fatal=state.fatal or fatal,
        tool_calls=state.tool_calls + executed,
        cut=state.cut or "output" in fact.metadata,
    )


def _denied(state: State, fact: Denied) -> State:
    _next_open(state, fact.call_key)
    rest = state.open[1:]
    capped = state.capped or fact.scope == "round_cap"
    return replace(
        state,
        phase=Phase.CALLS if rest else Phase.ANSWERED if capped else Phase.INFER,
        open=rest,
        waits=_waits_without(state, fact.call_key),
        capped=capped,
        loop=state.loop.allowed(),
    )


def _opened(state: State, fact: WaitOpened) -> State:
    request = answer_key(state.turn, state.request + 1)
    subjects = {call.key for call in state.open} if state.phase is Phase.CALLS else {request}
    if fact.subject not in subjects:
        raise IllegalFact(f"wait '{fact.wait_id}' is about '{fact.subject}', which is not open")
    if any(wait.wait_id == fact.wait_id for wait in state.waits):
        raise IllegalFact(f"wait '{fact.wait_id}' is open already")
    return replace(
        state, waits=(*state.waits, OpenWait(fact.wait_id, fact.kind, fact.subject, fact.digest, fact.about))
    )


def _wait_answered(state: State, fact: WaitAnswered) -> State:
    if not any(wait.wait_id == fact.wait_id and wait.answer is None for wait in state.waits):
        raise IllegalFact(f"no wait '{fact.wait_id}' is open")
    waits = (replace(wait, answer=fact) if wait.wait_id == fact.wait_id else wait for wait in state.waits)
    return replace(state, waits=tuple(waits))


def _waits_without(state: State, subject: str) -> tuple[OpenWait, ...]:
    return tuple(wait for wait in state.waits if wait.subject != subject) if state.waits else ()


def _reported(state: State, fact: Reported) -> State:
    return replace(state, gate=state.gate.after_report(fact))


def _waived(state: State, fact: Waived) -> State:
    return replace(state, gate=state.gate.after_waiver(fact))


def _compacted(state: State, fact: Compacted) -> State:
    if any(wait.answer is None for wait in state.waits):
        raise IllegalFact("a compaction cannot come while a wait is open")
    return replace(
        state,
        compactions=state.compactions + 1,
        overflowed=state.overflowed or fact.trigger == "overflow",
        context_tokens=0,
        usage=state.usage + fact.usage if fact.usage else state.usage,
        without_usage=state.without_usage + (fact.usage is None),
    )


def _ended(state: State, fact: Ended) -> State:
    return replace(state, phase=Phase.IDLE, ended=fact, waits=())


def _next_open(state: State, key: str) -> OpenCall:
    call = state.open[0]
    if call.key != key:
        raise IllegalFact(f"result of '{key}' came before that of '{call.key}'")
    return call


def fatal_of(metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    """(code, message) of a result that makes its turn fail, else None."""
    fatal = metadata.get("fatal")
    return None if fatal is None else (str(fatal["code"]), str(fatal["message"]))


TRANSITIONS: dict[tuple[Phase, type[Payload]], Callable[[State, Any], State]] = {
    (Phase.IDLE, Configured): _configured,
    (Phase.IDLE, Asked): _asked_idle,
    (Phase.IDLE, Compacted): _compacted,
    (Phase.INFER, Configured): _configured,
    (Phase.INFER, Asked): _asked_again,
    (Phase.INFER, Answered): _answered,
    (Phase.INFER, WaitOpened): _opened,
    (Phase.INFER, WaitAnswered): _wait_answered,
    (Phase.INFER, Compacted): _compacted,
    (Phase.INFER, Ended): _ended,
    (Phase.CALLS, Returned): _returned,
    (Phase.CALLS, Denied): _denied,
    (Phase.CALLS, WaitOpened): _opened,
    (Phase.CALLS, WaitAnswered): _wait_answered,
    (Phase.ANSWERED, Configured): _configured,
    (Phase.ANSWERED, Asked): _asked_again,
    (Phase.ANSWERED, Reported): _reported,
    (Phase.ANSWERED, Waived): _waived,
    (Phase.ANSWERED, Ended): _ended,
}
