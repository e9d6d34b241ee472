"""What a turn tells its readers: the payloads of events and traces (§10). Pure; bounded.

Events are for eyes. Long texts in them are cut at :data:`MAX_EVENT_TEXT` characters; the facts hold the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .answers import YES_OR_NO
from .budget import GuardDecision
from .canonical import Json
from .compaction import Compaction
from .effects import Landed
from .errors import ThenceError
from .events import NewEvent
from .facts import Answered, Denied, Returned, WaitAnswered, WaitOpened, text_of, turn_key
from .state import State
from .steps import OpenCall, OpenWait
from .transcript import denied_text

MAX_EVENT_TEXT = 8192


def start_of_run(prompt: str) -> NewEvent:
    """``agent_start``"""
    return NewEvent("agent_start", {"prompt": shorten(prompt)})


def start_of_request(number: int) -> NewEvent:
    """``turn_start``: the number of the model request, from 1; the same again voids its deltas."""
    return NewEvent("turn_start", {"turn": number})


def end_of_answer(number: int, answer: Answered, calls: Sequence[OpenCall]) -> tuple[NewEvent, ...]:
    """``turn_end`` with the answer's text, then ``tool_start`` for each call it holds."""
    usage: Json = answer.usage.to_dict() if answer.usage else None
    end = NewEvent("turn_end", {"turn": number, "usage": usage, "text": shorten(answer.text)})
    return (end, *(NewEvent("tool_start", {"id": call.key, "name": call.call.name}) for call in calls))


def call_started(call: OpenCall) -> NewEvent:
    """``tool_execution_start``"""
    return NewEvent("tool_execution_start", {"id": call.key, "name": call.call.name, "args": _arguments(call)})


def call_returned(call: OpenCall, landed: Landed) -> NewEvent:
    """``tool_end`` of a call that ran."""
    payload = _tool_end(call, text_of(landed.result.parts), landed.exit_code)
    payload["output_bytes"] = landed.output_bytes
    return NewEvent("tool_end", payload)


def call_told(call: OpenCall, result: Returned) -> NewEvent:
    """``tool_end`` of a call whose result somebody told."""
    return NewEvent("tool_end", _tool_end(call, text_of(result.parts), 0 if result.ok else 1))


def call_refused(call: OpenCall, result: Returned | Denied) -> NewEvent:
    """``tool_end`` of a call that was not run."""
    if isinstance(result, Denied):
        payload = _tool_end(call, denied_text(result), 1)
        payload["error_kind"] = "budget_denied"
    else:
        payload = _tool_end(call, text_of(result.parts), 1)
        payload["error_kind"] = result.metadata.get("refused")
    return NewEvent("tool_end", payload)


def permission_denied(call: OpenCall, reason: str) -> NewEvent:
    """``permission_denied``: the policy does not let the call run."""
    payload: dict[str, Json] = {"tool_id": call.key, "tool_name": call.call.name, "args": _arguments(call)}
    return NewEvent("permission_denied", payload | {"reason": reason})


def wait_opened(wait: WaitOpened, call: OpenCall | None) -> tuple[NewEvent, ...]:
    """``confirmation_required`` or ``user_question``: somebody is needed. A held budget has an event of its own."""
    payload: dict[str, Json] = {"tool_id": wait.subject, "wait_id": wait.wait_id, "digest": wait.digest}
    if wait.deadline_ms is not None:
        payload["deadline_ms"] = wait.deadline_ms
    if wait.kind in ("question", "deferred", "unknown_outcome"):
        return (NewEvent("user_question", payload | {"question": wait.about.get("question")}),)
    if wait.kind == "budget_hold" or call is None:
        return ()
    payload |= {"tool_name": call.call.name, "args": _arguments(call)}
    return (NewEvent("confirmation_required", payload),)


def wait_answered(wait: OpenWait, answer: WaitAnswered) -> NewEvent:
    """``confirmation_received``, or ``confirmation_timeout`` when nobody answered in time."""
    if answer.expired:
        return NewEvent("confirmation_timeout", {"tool_id": wait.subject, "action_taken": "rejected"})
    payload: dict[str, Json] = {"tool_id": wait.subject, "wait_id": wait.wait_id}
    value = answer.value
    if wait.kind not in YES_OR_NO:
        payload["approved"] = True
    elif isinstance(value, Mapping):
        payload |= {"approved": value.get("approved") is True}
        payload |= {"reason": value["reason"]} if "reason" in value else {}
    else:
        payload["approved"] = value is True
    if answer.by is not None:
        payload["by"] = answer.by
    return NewEvent("confirmation_received", payload)


def end_of_run(status: str, state: State, error: ThenceError | None) -> NewEvent:
    """``agent_end``, or ``error`` for a run that failed."""
    if status == "failed":
        code = error.code if error else "RUN_FAILED"
        return NewEvent("error", {"message": shorten(str(error or "")), "code": code})
    usage: dict[str, Json] = {**state.usage.to_dict()}
    text = shorten(state.text) if status == "completed" else ""
    summary: Json = state.gate.summary() if status == "completed" else None
    return NewEvent("agent_end", {"text": text, "usage": usage, "status": status, "verification_summary": summary})


def control_applied(
    operation: str, state: State, *, request_id: str | None = None, text: str | None = None, reason: str | None = None
) -> NewEvent:
    """``run_control_applied``: a steer, an interrupt or a cancel has reached the run.

    ``turn_revision`` counts the messages that the turn was steered with so far, this one included.
    """
    payload: dict[str, Json] = {
        "request_id": request_id,
        "operation": operation,
        "turn_id": turn_key(state.turn),
        "turn_revision": state.steers,
    }
    if text is not None:
        payload["input"] = shorten(text)
    if reason:
        payload["reason"] = shorten(reason)
    return NewEvent("run_control_applied", payload)


def threshold_hit(decision: GuardDecision) -> NewEvent:
    """``budget_threshold_hit``: kind soft for a warning, hard for a denial."""
    if decision.decision in ("deny", "hold"):
        hard: dict[str, Json] = {"kind": "hard", "consumed": 0.0, "limit": 0.0, "message": decision.reason}
        return NewEvent("budget_threshold_hit", {"resource": decision.resource, **hard})
    payload: dict[str, Json] = {
        "resource": decision.resource,
        "kind": "soft",
        "consumed": decision.consumed,
        "limit": decision.limit,
    }
    if decision.message is not None:
        payload["message"] = decision.message
    return NewEvent("budget_threshold_hit", payload)


def context_compacted(session_id: str, compaction: Compaction, percent_before: float) -> NewEvent:
    """``context_compacted``: how full the window was, in percent, and what the conversation came down to."""
    payload: dict[str, Json] = {
        "session_id": session_id,
        "before_messages": compaction.before_messages,
        "after_messages": compaction.after_messages,
        "percent_before": percent_before,
        "summary": shorten(compaction.summary),
    }
    return NewEvent("context_compacted", payload)


def trace_of(name: str, landed: Landed) -> Mapping[str, Json]:
    """A tool run's trace: no arguments, no output text."""
    return {
        "schema": "thence.trace_event.v1",
        "kind": "tool_execution",
        "name": name,
        "success": landed.result.ok,
        "exit_code": landed.exit_code,
        "duration_ms": landed.duration_ms,
        "output_bytes": landed.output_bytes,
    }


def _arguments(call: OpenCall) -> Json:
    text = call.call.text
    return call.call.arguments if len(text) <= MAX_EVENT_TEXT else shorten(text)


def shorten(text: str) -> str:
    """``text``, or its beginning and how much was left out."""
    if len(text) <= MAX_EVENT_TEXT:
        return text
    return f"{text[:MAX_EVENT_TEXT]}… [{len(text) - MAX_EVENT_TEXT} more characters]"


def _tool_end(call: OpenCall, output: str, exit_code: int) -> dict[str, Json]:
    return {"id": call.key, "name": call.call.name, "output": shorten(output), "exit_code": exit_code}
