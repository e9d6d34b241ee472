"""Facts, calls and results in a few words for a person (§13). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..canonical import dumps_checked
from ..chat import Usage
from ..waits import Wait
from .text import clip, count, one_line


def short_arguments(arguments: object, columns: int) -> str:
    """``path=notes.txt limit=5``, cut to a line."""
    if not isinstance(arguments, Mapping):
        return clip(one_line(str(arguments or "")), columns)
    given = cast("Mapping[str, Any]", arguments)
    return clip(" ".join(f"{one_line(name)}={_value(value)}" for name, value in given.items()), columns)


def _value(value: Any) -> str:
    if isinstance(value, str):
        text = one_line(value)
        return text if text and " " not in text else f'"{text}"'
    return one_line(dumps_checked(value))


def short_result(output: str, ok: bool, columns: int) -> str:
    """How a call ended: how many lines, and what fits of them."""
    # a long output is not read beyond what fits
    lines = [one_line(line) for line in output[: 4 * columns].splitlines() if line.strip()]
    if not ok:
        return clip(f"failed: {(lines or [''])[0].removeprefix('Error: ')}", columns)
    several = f"{count(output.count(chr(10)) + (not output.endswith(chr(10))), 'line')}: " if len(lines) > 1 else ""
    return clip(several + " | ".join(lines) if lines else "(nothing)", columns)


def tokens_text(told: str, usage: Usage, unknown: int) -> str:
    """What requests took, as ``told``; of ``unknown`` ones nobody knows it, which is not the same as nothing."""
    if not unknown:
        return told
    rest = f"unknown for {count(unknown, 'request')}"
    return f"{told}; {rest}" if usage.total_tokens else rest


def text_of(value: Mapping[str, Any], name: str = "text") -> str:
    """A stored text, or what stands for one that was too long to be stored in place."""
    sha = value.get(f"{name}_sha256")
    found = value.get(name, "")
    if sha is not None:
        return f"[long text, blob {str(sha)[:12]}…]"
    return found if isinstance(found, str) else ""


def parts_of(payload: Mapping[str, Any]) -> str:
    """The parts of a message or a result as text."""
    return "\n".join(_part(part) for part in cast("Sequence[Mapping[str, Any]]", payload.get("parts", ())))


def _part(part: Mapping[str, Any]) -> str:
    if part.get("type") == "text":
        return text_of(part)
    if "value" in part:
        return dumps_checked(part["value"])
    return f"[{part.get('type')} {part.get('name') or str(part.get('sha256'))[:12]}]"


def about(wait: Wait) -> str:
    """What a wait is about: its call, and what is asked."""
    call = f"{one_line(wait.tool)} {short_arguments(wait.arguments, 200)}".strip() if wait.tool else ""
    return ": ".join(text for text in (call, one_line(wait.question or "")) if text)


def calls_of(payload: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, arguments) of an answer's calls; the raw text where the arguments could not be read."""
    calls = cast("Sequence[Mapping[str, Any]]", payload.get("calls", ()))
    return [(str(call.get("name")), call.get("arguments", text_of(call, "raw"))) for call in calls]


def tell_fact(kind: str, payload: Any) -> str:
    """What a fact says, in one line."""
    if not isinstance(payload, Mapping):
        return "[cannot be read]" if payload is None else one_line(dumps_checked(payload))
    value = cast("Mapping[str, Any]", payload)
    if kind == "user.message":
        origin = value.get("origin", "host")
        return one_line(parts_of(value) if origin == "host" else f"[{origin}] {parts_of(value)}")
    if kind == "model.turn":
        calls = [f"{name}({short_arguments(arguments, 200)})" for name, arguments in calls_of(value)]
        return one_line(" ".join([text_of(value), *calls]))
    if kind == "tool.result":
        return short_result(parts_of(value), bool(value.get("ok")), 1000)
    if kind == "run.configured":
        return one_line(f"model {value.get('model')}, tools {str(value.get('tools_sha256'))[:12]}")
    if kind == "budget.denied":
        return one_line(f"{value.get('resource')}: {value.get('reason')}")
    if kind == "verification.reported":
        return one_line(f"{'passed' if value.get('passed') else 'failed'}: changes {str(value.get('digest'))[:12]}")
    if kind == "gate.waived":
        return one_line(f"changes {str(value.get('digest'))[:12]}: {text_of(value, 'reason')}")
    if kind == "compaction.done":
        return one_line(f"{value.get('trigger')}: {text_of(value, 'summary')}")
    if kind == "turn.ended":
        return one_line(" ".join(str(value[name]) for name in ("status", "code", "message") if value.get(name)))
    if kind == "wait.opened":
        about = cast("Mapping[str, Any]", value.get("about") or {})
        asks = f" {short_arguments(about, 1000)}" if about else ""
        return one_line(f"{str(value.get('kind')).replace('_', ' ')} of {value.get('subject')}{asks}")
    if kind == "wait.answered":
        by = f" by {value['by']}" if value.get("by") else ""
        said = "nobody answered in time" if value.get("expired") else f"{_answer(value.get('value'))}{by}"
        return one_line(f"{value.get('wait_id')}: {said}")
    # what has no words of its own: its fields, rather than raw JSON
    return short_arguments(value, 1000)


def _answer(value: Any) -> str:
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if isinstance(given.get("approved"), bool):
            reason = f": {given['reason']}" if given.get("reason") else ""
            return ("yes" if given["approved"] else "no") + reason
    return _value(value)


def tell_event(kind: str, payload: Mapping[str, Any]) -> str:
    """What an event says, in one line."""
    if kind in ("tool_start", "tool_execution_start"):
        return f"{one_line(str(payload.get('name')))} {short_arguments(payload.get('args'), 1000)}".strip()
    if kind == "tool_end":
        outcome = short_result(str(payload.get("output", "")), not payload.get("exit_code"), 1000)
        return f"{one_line(str(payload.get('name')))} {outcome}"
    if kind == "turn_start":
        return f"request {payload.get('turn')}"
    if kind in ("confirmation_required", "permission_denied"):
        return f"{one_line(str(payload.get('tool_name')))} {short_arguments(payload.get('args'), 1000)}".strip()
    if kind == "user_question":
        return one_line(str(payload.get("question")))
    if kind in ("confirmation_received", "confirmation_timeout"):
        said = {True: "yes", False: "no"}.get(payload.get("approved"), "nobody answered in time")  # type: ignore[arg-type]
        by = f" by {payload['by']}" if payload.get("by") else ""
        reason = f": {payload['reason']}" if payload.get("reason") else ""
        return one_line(f"{payload.get('tool_id')} {said}{by}{reason}")
    if kind == "context_compacted":
        messages = f"{payload.get('before_messages')} messages to {payload.get('after_messages')}"
        return one_line(f"{messages}: {payload.get('summary')}")
    if kind in ("agent_start", "turn_end", "agent_end", "error"):
        words = [str(payload[name]) for name in ("status", "code", "message", "prompt", "text") if payload.get(name)]
        return one_line(" ".join(words))
    if kind == "run_control_applied":
        why = payload.get("input") or payload.get("reason")
        return one_line(f"{payload.get('operation')}{f': {why}' if why else ''}")
    if kind == "budget_threshold_hit":
        word = {"soft": "warns", "hard": "stops"}.get(str(payload.get("kind")), str(payload.get("kind")))
        of = f" {_value(payload.get('consumed'))} of {_value(payload.get('limit'))}" if payload.get("limit") else ""
        why = f": {payload['message']}" if payload.get("message") else ""
        return one_line(f"{payload.get('resource')} {word}{of}{why}")
    return short_arguments(payload, 1000)
