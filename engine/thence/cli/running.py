"""``run``: one turn, printed as it happens; Ctrl-C interrupts it and says how to go on (§13)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import click

from ..agent import Agent
from ..chat import Model
from ..errors import RunInterrupted, SessionNotFound, ThenceError
from ..events import Event
from ..host.workspace import workspace_tools
from ..models.resolve import resolve_model
from ..options import OnInterrupted, SessionOptions
from ..results import SendResult
from ..session import Session
from .errors import FAILED, INTERRUPTED, abandon_stdout, complain, exit_code
from .options import Settings, common, pass_settings
from .printing import Printer
from .text import count, json_text


class AllowAll:
    """The budget guard of a run that its user wants without one."""


@dataclass(slots=True)
class Seen:
    """What is known of the run so far."""

    run_id: str | None = None


@click.command()
@click.argument("prompt")
@click.option("-w", "--workspace", metavar="DIR", help="Folder that tools work in.  [default: the session's, else .]")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar="THENCE_MODEL",
    default="local",
    help="openai:NAME, or local (a small real model).  [default: $THENCE_MODEL, else local]",
)
@click.option(
    "-s", "--session", "session_id", metavar="SESSION", help="Go on with this session, or make one of this id."
)
@click.option("--tools/--no-tools", default=True, help="Let the model look at the workspace.  [default: --tools]")
@click.option("--settle", is_flag=True, help="If the last run was interrupted: close its turn and go on.")
@click.option("--unguarded", is_flag=True, help="Go on with a session that had a budget guard, without one.")
@common
@pass_settings
def run(
    settings: Settings,
    prompt: str,
    workspace: str | None,
    model: str,
    session_id: str | None,
    tools: bool,
    settle: bool,
    unguarded: bool,
) -> None:
    """Send PROMPT and print the answer as it comes.

    PROMPT - reads standard input. Tool calls are shown on stderr. Ctrl-C interrupts the run and says how to go on; a
    second one leaves at once.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise click.BadParameter("must not be empty", param_hint="PROMPT")
    options = SessionOptions()
    if unguarded:
        options.budget_guard = AllowAll()
    with second_interrupt_leaves(), _agent(settings.path, _resolved(model), tools) as agent:
        session = _session(agent, session_id, options, workspace)
        code = _turn(settings, session, text, "settle" if settle else None)
    click.get_current_context().exit(code)


def _resolved(model: str) -> Model:
    try:
        return resolve_model(model)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None


def _agent(path: str, model: Model, tools: bool) -> Agent:
    return Agent(path, model=model, tools=workspace_tools() if tools else ())


def _session(agent: Agent, session_id: str | None, options: SessionOptions, workspace: str | None) -> Session:
    if session_id is not None:
        try:
            # a session keeps its folder unless another one is named
            return agent.resume_session(session_id, options, workspace=workspace)
        except SessionNotFound:
            options.session_id = session_id
    return agent.session("." if workspace is None else workspace, options)


def _turn(settings: Settings, session: Session, prompt: str, on_interrupted: OnInterrupted | None) -> int:
    """Run it and print it; the exit code."""
    seen, printer = Seen(), Printer()
    as_json = settings.form != "text"
    try:
        result = stream_turn(session, prompt, printer, seen, form=settings.form, on_interrupted=on_interrupted)
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if isinstance(error, BrokenPipeError):
            abandon_stdout()
        _tell_interrupted(settings, session, seen)
        return INTERRUPTED
    except RunInterrupted as error:
        # ours, interrupted by somebody else; or an earlier one, and ours never began
        ours = error.run_id == seen.run_id
        printer.end_line()
        whose = "the run" if ours else "the session's last run"
        complain(
            error.code, f"{whose}, {error.run_id}, was interrupted", as_json=as_json, hint=_go_on(settings, session)
        )
        return INTERRUPTED if ours else FAILED
    except ThenceError as error:
        printer.end_line()
        hint = f"look at it: {settings.command('show', error.run_id)}" if error.run_id else ""
        complain(error.code, str(error), as_json=as_json, hint=hint)
        return exit_code(error)
    _tell_end(settings, session, result, printer)
    return 0 if result.status == "completed" else FAILED


def stream_turn(
    session: Session,
    prompt: str,
    printer: Printer,
    seen: Seen,
    *,
    form: str = "text",
    on_interrupted: OnInterrupted | None = None,
) -> SendResult:
    """Run one turn and print its events. However it is left, the run has let go of the session then."""
    with session.stream(prompt, on_interrupted=on_interrupted) as stream:
        for event in stream:
            _note_id(event, seen)
            if form == "text":
                printer.event(event)
            elif form == "nl":
                click.echo(json_text(event.to_dict(), indent=None))
        return stream.result


def _note_id(event: Event, seen: Seen) -> None:
    if seen.run_id is None:
        seen.run_id = event.metadata.get("run_id")


def _tell_end(settings: Settings, session: Session, result: SendResult, printer: Printer) -> None:
    if settings.form == "json":
        click.echo(json_text({"session_id": session.session_id, **result.to_dict()}))
    elif settings.form == "text":
        work = f"{count(result.tool_calls_count, 'call')}, {count(result.usage.total_tokens, 'token')}"
        printer.note(f"{result.status}: {work}")
        printer.note(f"go on: {settings.command('run', '-s', session.session_id)} PROMPT", cut=False)


def _tell_interrupted(settings: Settings, session: Session, seen: Seen) -> None:
    found = session.run_snapshot(seen.run_id) if seen.run_id else None
    ended = found is not None and found.is_terminal
    what = f"run {seen.run_id}" if seen.run_id else "the run"
    state = f"has ended ({found.status})" if found is not None and ended else "was interrupted"
    hint = _go_on(settings, session, settle=not ended)
    if seen.run_id:
        hint = f"look at it: {settings.command('show', seen.run_id)}\n{hint}"
    complain("RUN_INTERRUPTED", f"{what} {state}", as_json=settings.form != "text", hint=hint)


def _go_on(settings: Settings, session: Session, *, settle: bool = True) -> str:
    words = ("run", "-s", session.session_id, *(("--settle",) if settle else ()), "Go on.")
    return f"go on:      {settings.command(*words)}"


@contextmanager
def second_interrupt_leaves() -> Generator[None]:
    """The first Ctrl-C is a KeyboardInterrupt; the second leaves the process at once, wherever it is.

    Nothing is lost by that: what was acknowledged is in the file, and the kernel ends our claim on the session.
    """
    before = signal.getsignal(signal.SIGINT)
    pressed = False

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        del number, frame
        if pressed:
            os._exit(INTERRUPTED)
        pressed = True
        os.write(2, b"\ninterrupting; once more leaves at once\n")
        raise KeyboardInterrupt

    # a shell that starts us in the background makes us ignore Ctrl-C: so it shall be
    ours = threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN
    if ours:
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
