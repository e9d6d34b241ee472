"""Which recorded calls run next, and which get a refusal instead (§5). Pure.

Calls are judged in call order, just before their batch: duplicate guard, then malformed arguments, then whether the
tool exists. Consecutive ``read`` calls form one parallel batch; any other call runs alone. What the host has a say in
(hooks, permissions, budget) comes after this and before the call starts. While a call waits for an answer, later
``read`` calls still run, and every other waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from .canonical import Json
from .facts import Denied, Returned, Text
from .fold import fatal_of
from .limits import Limits
from .loopguard import LoopGuard
from .state import State
from .steps import OpenCall, Refuse, Run, Traits, Verdict

NO_TRAITS = Traits()
NOT_RUN = "Error: not run, because the turn has failed"


def judge(
    state: State, done: Mapping[str, Returned | Denied], tools: Mapping[str, Traits], limits: Limits
) -> tuple[Verdict, ...]:
    """Judge the next batch of ``state.open``.

    Args:
        state: a state in phase CALLS.
        done: results that calls of this answer already have, by call key (landed, or refused before).
        tools: traits of the tools the host has, by name.
        limits: the run's limits.

    Returns:
        Verdicts in call order. Empty when every call is done or waits. A call that is not ``read`` runs alone.
    """
    loop, fatal, verdicts, running = state.loop, state.fatal, list[Verdict](), False
    waiting = {wait.subject for wait in state.waits if wait.answer is None}
    blocked = False
    for call in state.open:
        known = done.get(call.key)
        if known is None and (call.key in waiting or (blocked and not _reads(call, tools))):
            # It will run or not: the calls behind it are judged as if it ran.
            loop = _after_run(loop, call, tools.get(call.call.name, NO_TRAITS))
            blocked = True
            continue
        verdict = None if known else _judge_one(call, state, loop, fatal, tools, limits)
        if isinstance(verdict, Run):
            traits = tools[call.call.name]
            read = traits.effect == "read"
            if running and not read:
                break
            verdicts.append(verdict)
            if not read:
                break  # it runs alone, and how it ends may change how the next call is judged
            running = True
            loop = _after_run(loop, call, traits)
            continue
        result = known or (verdict.result if verdict else None)
        if isinstance(result, Returned):
            loop = loop.after(call.signature, result.ok, result.metadata)
            fatal = fatal or fatal_of(result.metadata)
        elif result is not None:
            loop = loop.allowed()
        if verdict is not None:
            verdicts.append(verdict)
    return tuple(verdicts)


def _reads(call: OpenCall, tools: Mapping[str, Traits]) -> bool:
    traits = tools.get(call.call.name)
    return traits is not None and traits.effect == "read"


def _judge_one(
    call: OpenCall,
    state: State,
    loop: LoopGuard,
    fatal: tuple[str, str] | None,
    tools: Mapping[str, Traits],
    limits: Limits,
) -> Verdict:
    name = call.call.name
    if fatal is not None:
        return _refuse(call, NOT_RUN, "turn_failed")
    if state.rounds > limits.max_tool_rounds:
        reason = f"the limit of {limits.max_tool_rounds} tool rounds in one turn is reached"
        return Refuse(call, Denied(call.key, "round_cap", "tool_rounds", reason))
    traits = tools.get(name)
    count = loop.count(call.signature)
    if count >= limits.duplicate_tool_call_threshold and not (traits and traits.repeatable):
        return _refuse_duplicate(call, loop, count, limits)
    if call.call.arguments is None:
        return _refuse_malformed(call, loop.malformed + 1, limits)
    if traits is None:
        known = ", ".join(sorted(tools)) or "none"
        return _refuse(call, f"Error: there is no tool '{name[:100]}'. Tools: {known[:4000]}", "unknown_tool")
    return Run(call)


def _refuse_duplicate(call: OpenCall, loop: LoopGuard, count: int, limits: Limits) -> Refuse:
    name = call.call.name
    text = (
        f"Error: '{name[:100]}' was already called {count} times with exactly these arguments and was not run again. "
        f"Use what it returned, or change your approach."
    )
    more: dict[str, Json] = {"count": count, "threshold": limits.duplicate_tool_call_threshold}
    if loop.refused == call.signature:
        message = f"The model repeated a refused call of '{name[:100]}' without changing its approach"
        more["fatal"] = {"code": "DUPLICATE_TOOL_CALL", "message": message}
    return _refuse(call, text, "duplicate_tool_call", more)


def _refuse_malformed(call: OpenCall, count: int, limits: Limits) -> Refuse:
    more: dict[str, Json] = {}
    if count > limits.max_parse_retries:
        message = (
            f"LLM produced malformed tool arguments {count} time(s) in a row "
            f"(max_parse_retries={limits.max_parse_retries}); giving up"
        )
        more["fatal"] = {"code": "LLM_ERROR", "message": message}
    return _refuse(call, f"Error: {call.call.problem}", "malformed_arguments", more)


def _refuse(call: OpenCall, text: str, why: str, more: Mapping[str, Json] | None = None) -> Refuse:
    return Refuse(call, Returned(call.key, False, (Text(text),), {"refused": why, **(more or {})}))


def _after_run(loop: LoopGuard, call: OpenCall, traits: Traits) -> LoopGuard:
    """How the guard will stand once a call of this batch has run, as far as the rest of the batch can tell."""
    return loop.executed(call.signature, ok=False, read=traits.effect == "read", repeatable=traits.repeatable)
