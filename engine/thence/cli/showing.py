"""``show``: one session with its conversation, or one run (§13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from .. import waits
from ..reads import SessionRow
from ..runs import Run
from .asking import wait_text
from .configured import way_on
from .errors import NotFound
from .gate import closed_gate, report_of, report_text
from .looking import Look, RawFact, looking
from .options import Settings, common, pass_settings
from .summary import calls_of, parts_of, short_arguments, short_result, text_of, tokens_text
from .text import age, clip, columns, count, fields, moment, one_line, visible
from .whole import is_cut

_TURNS = 5
_LONGEST = 4000


@click.command()
@click.argument("name", metavar="SESSION|RUN")
@common
@pass_settings
def show(settings: Settings, name: str) -> None:
    """Show a session with its last turns, or a run with its answer."""
    with looking(settings.path) as look:
        session = look.find_session(name)
        if session is None:
            run = look.find_run(name)
            if run is None:
                raise NotFound(f"neither a session nor a run: {name}")
            report = report_of(look, run)
            value = run.to_dict() if report is None else {**run.to_dict(), "verification": report}
            settings.tell([value], lambda: _run_text(settings, look, run, report), document=value)
            return
        runs, facts = look.runs(session), list(look.facts(session))
        value = _session_value(session, runs, facts)
        settings.tell([value], lambda: _session_text(settings, session, runs, facts, look), document=value)


def _session_value(session: SessionRow, runs: list[Run], facts: list[RawFact]) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "workspace": session.workspace,
        "tenant_id": session.tags.tenant_id,
        "principal": session.tags.principal,
        "agent_template_id": session.tags.agent_template_id,
        "correlation_id": session.tags.correlation_id,
        "created_ms": session.created_ms,
        "forked_from": session.forked_from,
        "options": session.options,
        "requires": list(session.requires),
        "runs_ever": session.run_count,
        "facts": len(facts),
        "head_hash": facts[-1].hash if facts else None,
        "runs": [run.to_dict() for run in runs],
    }


def _session_text(settings: Settings, session: SessionRow, runs: list[Run], facts: list[RawFact], look: Look) -> str:
    owner = None
    if session.owner is not None:
        owner = {"alive": "at work now", "dead": "gone (interrupted)", "unknown": "cannot be asked"}[
            look.life(session.owner)
        ]
    head = fields(
        {
            "session": session.session_id,
            "workspace": session.workspace,
            "created": f"{moment(session.created_ms)} ({age(session.created_ms)} ago)",
            **session.tags.given(),
            "forked from": session.forked_from,
            "options": ", ".join(f"{name}={value}" for name, value in session.options.items()),
            "needs": ", ".join(session.requires),
            "owner": owner,
            "runs": f"{session.run_count} ever",
            "last run": f"{runs[-1].id} ({runs[-1].state})" if runs else None,
            "log": f"{count(len(facts), 'fact')}, head {facts[-1].hash[:16]}" if facts else "empty",
        }
    )
    return "\n".join([head, *_conversation(settings, session, facts)])


def _conversation(settings: Settings, session: SessionRow, facts: list[RawFact]) -> list[str]:
    starts = [at for at, fact in enumerate(facts) if fact.kind == "user.message" and _is_host(fact)]
    lines: list[str] = []
    if len(starts) > _TURNS:
        facts = facts[starts[-_TURNS] :]
        earlier = count(len(starts) - _TURNS, "earlier turn")
        lines += ["", f"({earlier}: {settings.command('facts', session.session_id)})"]
    for fact in facts:
        lines += _said(fact)
        if is_cut(fact.payload) or _is_long(fact):
            lines.append(f"  (all of it: {settings.command('facts', session.session_id, '--seq', str(fact.seq))})")
    return lines


def _is_long(fact: RawFact) -> bool:
    """Whether what is shown of a fact was cut for its length."""
    if fact.kind in ("user.message", "tool.result"):
        return len(parts_of(fact.value)) > _LONGEST
    return fact.kind == "model.turn" and len(text_of(fact.value)) > _LONGEST


def _is_host(fact: RawFact) -> bool:
    return bool(fact.value.get("origin", "host") == "host")


def _said(fact: RawFact) -> list[str]:
    payload, room = fact.value, columns() - 4
    if fact.kind == "user.message":
        return ["", f"> {_bounded(parts_of(payload))}"] if _is_host(fact) else [f"  ({one_line(parts_of(payload))})"]
    if fact.kind == "model.turn":
        text = _bounded(text_of(payload))
        return [
            *([text] if text.strip() else []),
            *(
                clip(f"  {one_line(name)} {short_arguments(arguments, room)}", room)
                for name, arguments in calls_of(payload)
            ),
        ]
    if fact.kind == "tool.result":
        return [f"    {short_result(parts_of(payload), bool(payload.get('ok')), room)}"]
    if fact.kind == "budget.denied":
        return [f"    denied: {clip(one_line(str(payload.get('reason'))), room - 8)}"]
    if fact.kind == "compaction.done":
        return [f"  (what came before was summarised: {_bounded(one_line(text_of(payload, 'summary')))})"]
    if fact.kind == "turn.ended" and payload.get("status") != "completed":
        return [f"[{visible(' '.join(str(value) for value in payload.values()))}]"]
    return []


def _bounded(text: str) -> str:
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… [{len(text) - _LONGEST} more characters]"
    return visible(text)


def _run_text(settings: Settings, look: Look, run: Run, report: Mapping[str, Any] | None) -> str:
    took = "" if run.ended_ms is None else f", took {(run.ended_ms - run.created_ms) / 1000:.1f} s"
    usage = run.usage
    took_tokens = f"{usage.prompt_tokens} prompt, {usage.completion_tokens} completion, {usage.total_tokens} total"
    tokens = tokens_text(took_tokens, usage, run.requests_without_usage)
    if not run.is_terminal and not usage.total_tokens and not run.requests_without_usage:
        tokens = "not summed up before it ends or parks"
    closed = closed_gate(run)
    error = None
    if run.error_code:
        error = f"{run.error_code}: {run.error_message}{' (resumable)' if run.resumable else ''}"
    head = fields(
        {
            "run": run.id,
            "session": run.session_id,
            "state": run.state if run.state == run.status else f"{run.state} (status {run.status})",
            "started": f"{moment(run.created_ms)} ({age(run.created_ms)} ago){took}",
            "resumed from": run.resumed_from,
            "went on in": run.superseded_by,
            "work": f"{count(run.rounds, 'round')}, {count(run.tool_calls_count, 'call')}, "
            f"{count(run.event_count, 'event')}",
            "tokens": tokens,
            "error": error,
            "changes": None if closed is None else closed.digest,
            "prompt": _bounded(run.prompt),
        }
    )
    answer = f"\n\n{_bounded(run.result_text)}" if run.result_text else ""
    verified = "" if report is None else f"\n\nverification:\n{report_text(report)}"
    return head + answer + verified + _run_hint(settings, look, run)


def _run_hint(settings: Settings, look: Look, run: Run) -> str:
    if closed_gate(run) is not None and run.superseded_by is None:
        waiving = f"{settings.command('waive', run.id, '--reason')} TEXT"
        return f"\n\nresume it: {_way_on(settings, look, run)}\nwaive it:  {waiving}"
    if run.state == "interrupted":
        return f"\n\nresume it: {_way_on(settings, look, run)}"
    if run.state == "parked":
        return _parked_text(settings, look, run)
    if run.is_terminal or run.state != run.status:
        return ""
    return f"\n\nfollow it: {settings.command('tail', run.id)}"


def _way_on(settings: Settings, look: Look, run: Run) -> str:
    return way_on(settings, look, look.session(run.session_id), run.id)


def _parked_text(settings: Settings, look: Look, run: Run) -> str:
    """All that the run waits for, whole; once all is answered, how it goes on."""
    found = look.ask(waits.waits(look.session(run.session_id).session_pk, run_id=run.id))
    told = "".join(f"\n\n{wait_text(settings, wait)}" for wait in found)
    if any(wait.state == "open" for wait in found):
        return f"\n\nit waits:{told}\n\nthen:      {_way_on(settings, look, run)}"
    return f"\n\nit is answered:{told}\n\ngo on:     {_way_on(settings, look, run)}"
