"""The commands that list what a file holds: ``ls``, ``runs``, ``facts``, ``events``, ``trace`` (§13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .. import reads
from ..events import Event, EventPage
from ..reads import SessionRow
from ..runs import TERMINAL, Run
from .errors import NotFound
from .looking import Look, looking
from .options import Settings, common, pass_settings
from .summary import tell_event, tell_fact
from .text import age, clock, one_line, table
from .whole import fact_text, is_cut, whole


@click.command()
@click.option("--tenant", metavar="ID", help="Only sessions of this tenant.")
@click.option("--principal", metavar="ID", help="Only sessions of this principal.")
@common
@pass_settings
def ls(settings: Settings, tenant: str | None, principal: str | None) -> None:
    """List the sessions, oldest first."""
    filters: dict[str, str | None] = {}
    if tenant is not None:
        filters["tenant_id"] = tenant
    if principal is not None:
        filters["principal"] = principal
    with looking(settings.path) as look:
        values = (_session_value(look, row) for row in look.sessions(filters))
        if settings.form == "text":
            found = list(values)
            settings.tell(found, lambda: _sessions_text(found), none=f"no sessions in {settings.path}")
        else:
            settings.tell(values, str)


def _session_value(look: Look, row: SessionRow) -> dict[str, Any]:
    last = look.ask(reads.last_run(row.session_pk))
    state = last.status if last else None
    if last is not None and state not in TERMINAL:
        run = look.find_run(last.run_id)
        state = run.state if run else None
    return {
        "session_id": row.session_id,
        "workspace": row.workspace,
        "tenant_id": row.tags.tenant_id,
        "principal": row.tags.principal,
        "agent_template_id": row.tags.agent_template_id,
        "correlation_id": row.tags.correlation_id,
        "created_ms": row.created_ms,
        "runs_ever": row.run_count,
        "last_run_id": last.run_id if last else None,
        "last_run_state": state,
    }


def _sessions_text(found: list[dict[str, Any]]) -> str:
    rows = [
        {
            "session": value["session_id"],
            "runs": value["runs_ever"],
            "last run": value["last_run_state"] or "-",
            "age": age(value["created_ms"]),
            "workspace": value["workspace"],
        }
        for value in found
    ]
    return table(rows, flexible="workspace", right=("runs", "age"), keep_end=True)


@click.command()
@click.argument("session")
@common
@pass_settings
def runs(settings: Settings, session: str) -> None:
    """List the runs of a SESSION that are kept, oldest first."""
    with looking(settings.path) as look:
        found = look.runs(look.session(session))
    settings.tell(
        (run.to_dict() for run in found), lambda: runs_text(found), none=f"no runs in session {session} are kept"
    )


def runs_text(found: list[Run]) -> str:
    """A table of runs. Ids are whole, so that they can be pasted."""
    rows = [{"run": run.id, "state": run.state, "age": age(run.created_ms), "prompt": run.prompt} for run in found]
    return table(rows, flexible="prompt", right=("age",))


@click.command()
@click.argument("session")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only facts after this one.")
@click.option("--seq", type=click.IntRange(min=1), metavar="SEQ", help="Only this one, whole: with its long texts.")
@common
@pass_settings
def facts(settings: Settings, session: str, after: int, seq: int | None) -> None:
    """Show the log of a SESSION: what happened, for ever."""
    with looking(settings.path) as look:
        row = look.session(session)
        if seq is not None:
            _show_whole(settings, look, row, seq)
            return
        found = look.facts(row, after)
        if settings.form != "text":
            settings.tell((fact.to_dict() for fact in found), str)
            return
        kept = list(found)
    rows = [
        {"seq": fact.seq, "kind": fact.kind, "key": fact.key, "what": tell_fact(fact.kind, fact.payload)}
        for fact in kept
    ]
    settings.tell(
        rows, lambda: table(rows, flexible="what", right=("seq",)), none=f"no facts in session {session} after {after}"
    )
    if any(is_cut(fact.payload) for fact in kept):
        click.echo(f"\na long text in full: {settings.command('facts', session, '--seq')} SEQ")


def _show_whole(settings: Settings, look: Look, session: SessionRow, seq: int) -> None:
    fact = next((one for one in look.facts(session, seq - 1) if one.seq == seq), None)
    if fact is None:
        raise NotFound(f"session {session.session_id} has no fact {seq}")
    payload = whole(look, session, fact.payload)
    settings.tell([{**fact.to_dict(), "payload": payload}], lambda: fact_text(fact, payload))


@click.command()
@click.argument("run")
@click.option("--after", type=click.IntRange(min=0), metavar="SEQUENCE", help="Only events after this one.")
@common
@pass_settings
def events(settings: Settings, run: str, after: int | None) -> None:
    """Show the recorded events of a RUN that are kept."""
    with looking(settings.path) as look:
        known = look.run(run)
        pages = _pages(look, known, after)
        if settings.form == "nl":
            settings.tell((event.to_dict() for page in pages for event in page.events), str)
            return
        kept = list(pages)
    found = [event for page in kept for event in page.events]
    if kept and kept[0].retention_gap:
        first = kept[0].first_available_sequence
        here = f"the oldest here is {first}" if first is not None else "none is left"
        click.echo(f"earlier events are no longer kept; {here}", err=True)
    settings.tell(
        [event.to_dict() for event in found],
        lambda: _events_text(found),
        document=_whole(kept),
        none=f"no events of run {run} after {after}" if after is not None else f"no events of run {run}",
    )


def _pages(look: Look, run: Run, after: int | None) -> Iterator[EventPage]:
    while (page := look.event_page(run, after)) is not None:
        yield page
        if not page.has_more:
            return
        after = page.next_after_sequence


def _whole(pages: list[EventPage]) -> dict[str, Any] | None:
    """All pages as one."""
    if not pages:
        return None
    first, last = pages[0], pages[-1]
    found = tuple(event for page in pages for event in page.events)
    whole = EventPage(
        found,
        first.first_available_sequence,
        last.latest_sequence_exclusive,
        last.next_after_sequence,
        any(page.retention_gap for page in pages),
        False,
    )
    return whole.to_dict()


def _events_text(found: list[Event]) -> str:
    rows = [
        {
            "seq": event.metadata["sequence"],
            "at (UTC)": clock(event.metadata["timestamp_ms"]),
            "type": event.type,
            "what": "[cannot be read]" if event.damaged else tell_event(event.type, event.payload),
        }
        for event in found
    ]
    return table(rows, flexible="what", right=("seq",))


@click.command()
@click.argument("session")
@common
@pass_settings
def trace(settings: Settings, session: str) -> None:
    """Show what each tool run of a SESSION took."""
    with looking(settings.path) as look:
        found = look.traces(look.session(session))
    rows = [
        {
            "no": event.number,
            "at (UTC)": clock(event.timestamp_ms),
            "tool": one_line(str(event.payload.get("name", ""))),
            "ok": "yes" if event.payload.get("success") else "no",
            "ms": event.payload.get("duration_ms"),
            "bytes": event.payload.get("output_bytes"),
            "run": event.run_id,
        }
        for event in found
    ]
    settings.tell(
        (event.to_dict() for event in found),
        lambda: table(rows, flexible="run", right=("no", "ms", "bytes")),
        none=f"no traces in session {session}",
    )
