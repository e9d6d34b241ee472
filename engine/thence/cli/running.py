"""``run``: one turn, printed as it happens; Ctrl-C interrupts it and says how to go on (§13)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import click
from click.core import ParameterSource

from ..agent import Agent
from ..answers import YES_OR_NO
from ..chat import Model
from ..errors import GateClosed, RunInterrupted, SessionBusy, SessionNotFound, ThenceError
from ..events import Event
from ..host.workspace import workspace_tools
from ..models.resolve import resolve_model
from ..options import OnInterrupted, SessionOptions
from ..results import SendResult
from ..session import Session
from .asking import say_lines
from .errors import FAILED, INTERRUPTED, abandon_stdout, complain, exit_code, result_code
from .options import Settings, common, pass_settings
from .printing import Printer
from .summary import about
from .text import count, json_text
from .unguarded import without_callables


@dataclass(slots=True)
class Seen:
    """What is known of the run so far."""

    run_id: str | None = None


@dataclass(slots=True)
class Shown:
    """A turn as its user sees it, from the first event to how it ended and what to do then.

    Attributes:
        again: options that a resume needs too, because they were given.
        resumes: the run that this one goes on from.
    """

    settings: Settings
    session: Session
    again: tuple[str, ...] = ()
    resumes: str | None = None
    printer: Printer = field(default_factory=Printer)
    seen: Seen = field(default_factory=Seen)

    def until_end(self, work: Callable[[Shown], SendResult]) -> int:
        """Do it, and tell how it ended; the exit code."""
        as_json = self.settings.form != "text"
        try:
            result = work(self)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            if isinstance(error, BrokenPipeError):
                abandon_stdout()
            self._tell_interrupted()
            return INTERRUPTED
        except RunInterrupted as error:
            # ours, interrupted by somebody else; or an earlier one, and ours never began
            ours = error.run_id == self.seen.run_id
            self.printer.end_line()
            whose = "the run" if ours else "the session's last run"
            said = f"{whose}, {error.run_id}, was interrupted"
            complain(error.code, said, as_json=as_json, hint=self._hints(resume=error.run_id))
            return INTERRUPTED if ours else FAILED
        except ThenceError as error:
            self.printer.end_line()
            hint = self._hints(show=error.run_id, resume=error.run_id if error.resumable else None)
            if isinstance(error, SessionBusy) and self.resumes is not None:
                hint = self._busy_hint(self.resumes)
            if isinstance(error, GateClosed) and error.run_id is not None:
                hint += f"\nor waive it: {self.settings.command('waive', error.run_id, '--reason')} TEXT"
            complain(error.code, str(error), as_json=as_json, hint=hint)
            return exit_code(error)
        self._tell_end(result)
        return result_code(result)

    def _tell_end(self, result: SendResult) -> None:
        settings, printer = self.settings, self.printer
        if settings.form == "json":
            click.echo(json_text({"session_id": self.session.session_id, **result.to_dict()}))
        elif settings.form == "text":
            work = f"{count(result.tool_calls_count, 'call')}, {count(result.usage.total_tokens, 'token')}"
            printer.note(f"{result.status}: {work}")
            if result.status == "parked":
                self._tell_parked(result)
                return
            further = settings.command("run", "-s", self.session.session_id, *self.again)
            printer.note(f"go on: {further} PROMPT", cut=False)

    def _tell_parked(self, result: SendResult) -> None:
        command = self.settings.command
        for wait in result.waits:
            self.printer.note(f"waits for {wait.kind.replace('_', ' ')} {wait.id}: {about(wait)}")
            self.printer.note(f"  see:  {command('waits', wait.id, '-s', wait.session_id)}", cut=False)
            for line in say_lines(self.settings, wait):
                self.printer.note(f"  {line}", cut=False)
        self.printer.note(f"go on:  {command('resume', result.run_id, *self.again)}", cut=False)

    def _tell_interrupted(self) -> None:
        run_id = self.seen.run_id
        found = self.session.run_snapshot(run_id) if run_id else None
        ended = found is not None and found.is_terminal
        what = f"run {run_id}" if run_id else "the run"
        state = f"has ended ({found.status})" if found is not None and ended else "was interrupted"
        hint = self._hints(show=run_id) if ended else self._hints(show=run_id, resume=run_id or self.resumes)
        complain("RUN_INTERRUPTED", f"{what} {state}", as_json=self.settings.form != "text", hint=hint)

    def _hints(self, *, show: str | None = None, resume: str | None = None) -> str:
        """What to type next."""
        command = self.settings.command
        lines = [f"look at it:  {command('show', show)}"] if show else []
        if resume:
            lines.append(f"resume it:   {command('resume', resume, *self.again)}")
            closing = command("run", "-s", self.session.session_id, "--settle", *self.again, "Go on.")
            lines.append(f"or close it: {closing}")
        return "\n".join(lines)

    def _busy_hint(self, run_id: str) -> str:
        command = self.settings.command
        return f"follow it:   {command('tail', run_id)}\nif stuck:    {command('resume', run_id, '--force')}"


with_model = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar="THENCE_MODEL",
    default="local",
    help="openai:NAME, or local (a small real model).  [default: $THENCE_MODEL, else local]",
)
with_tools = click.option(
    "--tools/--no-tools", default=True, help="Let the model look at the workspace.  [default: --tools]"
)


@click.command()
@click.argument("prompt")
@click.option("-w", "--workspace", metavar="DIR", help="Folder that tools work in.  [default: the session's, else .]")
@with_model
@click.option(
    "-s", "--session", "session_id", metavar="SESSION", help="Go on with this session, or make one of this id."
)
@with_tools
@click.option("--settle", is_flag=True, help="If the last run was interrupted: close its turn and go on.")
@click.option("--unguarded", is_flag=True, help="Go on without the guard, hooks, policy or verifier it had.")
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
    options = without_callables() if unguarded else SessionOptions()
    again = words_again(model, tools=tools, unguarded=unguarded)
    choice: OnInterrupted | None = "settle" if settle else None
    with second_interrupt_leaves(), make_agent(settings.path, named_model(model), tools=tools) as agent:
        shown = Shown(settings, _session(agent, session_id, options, workspace), again)
        code = shown.until_end(
            lambda at: stream_turn(at.session, text, at.printer, at.seen, form=settings.form, on_interrupted=choice)
        )
    click.get_current_context().exit(code)


def is_model_given() -> bool:
    """Whether the user named the model on this command line."""
    return click.get_current_context().get_parameter_source("model") is ParameterSource.COMMANDLINE


def words_again(model: str, *, tools: bool, unguarded: bool, reconfigured: bool = False) -> tuple[str, ...]:
    """The options of this command that a resume must be given too."""
    flags = {"--no-tools": not tools, "--unguarded": unguarded, "--reconfigured": reconfigured}
    return (*(("-m", model) if is_model_given() else ()), *(flag for flag, given in flags.items() if given))


def named_model(name: str) -> Model:
    """The model that ``--model`` names. Raises BadParameter."""
    try:
        return resolve_model(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None


def make_agent(path: str, model: Model, *, tools: bool) -> Agent:
    """An agent with a model, and the tools that the options name."""
    return Agent(path, model=model, tools=workspace_tools() if tools else ())


def _session(agent: Agent, session_id: str | None, options: SessionOptions, workspace: str | None) -> Session:
    if session_id is not None:
        try:
            # a session keeps its folder unless another one is named
            return agent.resume_session(session_id, options, workspace=workspace)
        except SessionNotFound:
            options.session_id = session_id
    return agent.session("." if workspace is None else workspace, options)


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
