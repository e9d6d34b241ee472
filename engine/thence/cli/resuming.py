"""``resume``: goes on with what was interrupted, here or by another process (§7, §8, §13)."""

from __future__ import annotations

from collections.abc import Set
from contextlib import ExitStack, suppress
from typing import Any

import click

from .. import reads
from ..chat import Model
from ..errors import ThenceError
from ..host.spawned import Recovered
from ..host.workspace import workspace_tools
from ..reads import SessionRow
from ..results import SendResult
from ..session_options import SessionOptions
from .calls import check_tools
from .configured import Here, check_configuration
from .errors import FAILED, INTERRUPTED, OK, complain, error_message, exit_code, result_code
from .following import follow
from .looking import looking
from .options import Settings, common, pass_settings
from .printing import Printer
from .running import (
    is_model_given,
    make_agent,
    named_model,
    second_interrupt_leaves,
    with_model,
    with_tools,
    words_again,
)
from .shown import Shown, new_run_id, nothing_started, tell_nothing_started
from .text import count, json_text, table, visible
from .unguarded import without_callables

_OWN_TOOLS = frozenset({"read_output"})
"""Tools that the engine itself offers, whatever the host has."""


class Declined(ThenceError):
    """The user did not want it, or could not be asked."""

    code = "DECLINED"


@click.command()
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every interrupted run of the file, one after the other.")
@click.option("--force", is_flag=True, help="Take the session from a process that lives; asks first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-w", "--workspace", metavar="DIR", help="Folder that tools work in.  [default: the session's]")
@with_model
@with_tools
@click.option("--unguarded", is_flag=True, help="Also sessions that had a guard, hooks or the like, without.")
@click.option(
    "--reconfigured", is_flag=True, help="Also runs that had another model, instructions or tools, with those here."
)
@common
@pass_settings
def resume(
    settings: Settings,
    run: str | None,
    everything: bool,
    force: bool,
    yes: bool,
    workspace: str | None,
    model: str,
    tools: bool,
    unguarded: bool,
    reconfigured: bool,
) -> None:
    """Go on with an interrupted or failed RUN, or with --all.

    What it had done is not done again: it goes on from the newest fact, as a new run. A call that had started and not
    finished runs once more. A run whose turn has ended gives its recorded answer. A run that a program began with
    another model, instructions or tools is left to it, unless -m names a model and --reconfigured says the rest.
    """
    if everything == (run is not None):
        raise click.UsageError("name a RUN, or give --all")
    if everything and (force or workspace is not None):
        raise click.UsageError("--force and --workspace are for one RUN")
    known = {tool.__name__ for tool in workspace_tools()} | _OWN_TOOLS if tools else _OWN_TOOLS
    with second_interrupt_leaves(), ExitStack() as stack:
        if run is None:
            code = _resume_all(settings, model, tools, known, unguarded, reconfigured)
        else:
            with nothing_started(settings):
                row, lives = _find(settings, run, known, force=force)
                chosen = named_model(model)
                here = Here(chosen.name, tools, is_model_given(), reconfigured, unguarded)
                if force or not lives:
                    with looking(settings.path) as look:
                        check_configuration(look, row, run, here)
                if lives and force and not yes:
                    _ask(settings, row)
                agent = stack.enter_context(make_agent(settings.path, chosen, tools=tools))
                session = agent.resume_session(row.session_id, _options(row, unguarded), workspace=workspace)
            if lives and force:
                session.takeover(force=True)
            words = words_again(model, tools=tools, unguarded=unguarded, reconfigured=reconfigured)
            shown = Shown(settings, session, words, resumes=run)
            code = shown.until_end(lambda at: _stream_resumed(at, chosen))
    click.get_current_context().exit(code)


def _find(settings: Settings, run_id: str, known: Set[str], *, force: bool) -> tuple[SessionRow, bool]:
    """The session of the run, and whether a process works on the run, or on the one that goes on from it."""
    with looking(settings.path) as look:
        # a run that is no longer kept has its session still
        row = look.session(look.session_of(run_id))
        run = look.newest(run_id)
        lives = run is not None and not run.is_terminal and run.state not in ("interrupted", "parked")
        if force or not lives:
            check_tools(look, row, known)
        return row, lives


def _options(row: SessionRow, unguarded: bool) -> SessionOptions:
    return without_callables() if unguarded else SessionOptions()


def _ask(settings: Settings, row: SessionRow) -> None:
    """Whether the living owner shall be displaced.

    Raises:
        Declined: no, or nobody is there to be asked.
    """
    with looking(settings.path) as look:
        who = look.owner(row.owner or "")
    click.echo(
        f"Session '{row.session_id}' belongs to a living process ({who}). It is not ended by this:\n"
        "what it writes there is refused from now on, but a tool that it runs now goes on,\n"
        "and that call is made again here.",
        err=True,
    )
    try:
        click.confirm("Take the session over?", abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise Declined(f"session '{row.session_id}' was left to its process; -y takes it unasked") from None


def _stream_resumed(shown: Shown, model: Model) -> SendResult:
    """Resume and print the events, as they get into the file; however it is left, the session is free then."""
    session, settings, printer = shown.session, shown.settings, shown.printer
    with looking(settings.path) as look:
        parked = look.newest(shown.resumes or "")
    # a parked run goes on as itself, behind what it has told already
    parked = parked if parked is not None and parked.status == "parked" else None
    run_id = new_run_id() if parked is None else parked.id
    shown.seen.run_id = run_id
    after = None if parked is None or not parked.event_count else parked.event_count - 1
    spawned = session.spawn_recovery_with_run_id(run_id if parked is not None else shown.resumes or "", run_id)
    ended = False
    try:
        if session.run_snapshot(run_id) is not None:
            if settings.form == "text":
                printer.note(f"goes on as {run_id}, model {model.name}", cut=False)
            with looking(settings.path) as look:
                for event in follow(look, run_id, after, parked_is_over=True):
                    ended = ended or event.type == "agent_end"
                    if settings.form == "text":
                        printer.event(event)
                    elif settings.form == "nl":
                        click.echo(json_text(event.to_dict(), indent=None))
        result = spawned.wait()
    except (KeyboardInterrupt, OSError):
        session.interrupt("keyboard interrupt")
        with suppress(ThenceError):
            spawned.wait()
        raise
    if settings.form == "text" and not ended and result.status != "parked":
        # it had ended before, or its events are not kept: nobody has shown the answer yet
        printer.answer(result.text)
        if result.replayed:
            printer.note("its turn had ended before: the recorded answer, nothing was called")
    elif settings.form == "nl" and result.replayed:
        click.echo(json_text({"session_id": session.session_id, **result.to_dict()}, indent=None))
    return result


def _resume_all(
    settings: Settings, model: str, tools: bool, known: Set[str], unguarded: bool, reconfigured: bool
) -> int:
    printer = Printer()
    began: list[str] = []

    def options_of(session_id: str) -> SessionOptions:
        """Called just before a session is resumed: the place to refuse, and to say where we are."""
        began.append(session_id)
        if settings.form == "text":
            printer.note(f"resuming in session {session_id}, model {here.model} ...")
        with looking(settings.path) as look:
            row = look.session(session_id)
            check_tools(look, row, known)
            last = look.ask(reads.last_run(row.session_pk))
            check_configuration(look, row, last.run_id if last else session_id, here)
        return _options(row, unguarded)

    with looking(settings.path):
        """A missing file is not to be made."""
    chosen = named_model(model)
    here = Here(chosen.name, tools, is_model_given(), reconfigured, unguarded)
    try:
        with make_agent(settings.path, chosen, tools=tools) as agent:
            found = agent.recover(options_of)
    except KeyboardInterrupt:
        words = words_again(model, tools=tools, unguarded=unguarded, reconfigured=reconfigured)
        hint = f"go on: {settings.command('resume', '--all', *words)}"
        if began:
            told, as_json = f"interrupted in session {began[-1]}", settings.form != "text"
            complain("RUN_INTERRUPTED", told, as_json=as_json, hint=hint, session_id=began[-1])
        else:
            tell_nothing_started(settings, hint=hint)
        return INTERRUPTED
    settings.tell(
        (_value(one) for one in found), lambda: _all_text(found), none=f"nothing to resume in {settings.path}"
    )
    if settings.form == "text":
        for one in found:
            if one.error is not None:
                click.echo(visible(f"{one.run_id}: {_said(one.error)}"), err=True)
    codes = {_code(one) for one in found} - {OK}
    return OK if not codes else codes.pop() if len(codes) == 1 else FAILED


def _code(one: Recovered) -> int:
    if isinstance(one.error, ThenceError):
        return exit_code(one.error)
    return FAILED if one.result is None else result_code(one.result)


def _value(one: Recovered) -> dict[str, Any]:
    error = None
    if one.error is not None:
        error = {"code": getattr(one.error, "code", "FAILED"), "message": _said(one.error)}
    return {
        "session_id": one.session_id,
        "run_id": one.run_id,
        "result": None if one.result is None else one.result.to_dict(),
        "error": error,
    }


def _said(error: Exception) -> str:
    return error_message(error) if isinstance(error, ThenceError) else str(error)


def _all_text(found: list[Recovered]) -> str:
    rows = [
        {
            "run": one.run_id,
            "came to": one.result.status if one.result is not None else "stopped",
            "answer, or why": one.result.text if one.result is not None else _said(one.error or Exception()),
        }
        for one in found
    ]
    done = sum(_code(one) == OK for one in found)
    rest = "" if done == len(found) else f", {len(found) - done} not"
    return f"{table(rows, flexible='answer, or why')}\n\n{count(len(found), 'interrupted run')}: {done} completed{rest}"
