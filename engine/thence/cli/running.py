"""``run``: one turn, printed as it happens; Ctrl-C interrupts it and says how to go on (§13)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import FrameType

import click
from click.core import ParameterSource

from ..agent import Agent
from ..chat import Model
from ..errors import ModelError, SessionNotFound
from ..host.workspace import workspace_tools
from ..models.resolve import resolve_model
from ..results import SendResult
from ..session import Session
from ..session_options import OnInterrupted, SessionOptions
from .errors import INTERRUPTED
from .options import Settings, common, pass_settings
from .printing import Printer
from .shown import Seen, Shown, new_run_id, nothing_started
from .text import json_text
from .unguarded import without_callables

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
    with second_interrupt_leaves(), ExitStack() as stack:
        with nothing_started(settings):
            agent = stack.enter_context(make_agent(settings.path, named_model(model), tools=tools))
            session = _session(agent, session_id, options, workspace)
        shown = Shown(settings, session, again, seen=Seen(new_run_id()))
        code = shown.until_end(
            lambda at: stream_turn(session, text, at.printer, at.seen, form=settings.form, on_interrupted=choice)
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
    """The model that ``--model`` names. Raises BadParameter, or ModelError in words of the command line."""
    try:
        return resolve_model(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None
    except ModelError as error:
        if name.startswith("openai:") and not os.environ.get("OPENAI_API_KEY", "").strip():
            words = "set the environment variable OPENAI_API_KEY (any text, for a server that asks for none)"
            raise ModelError(error.kind, f"no API key: {words}", retryable=False) from None
        raise


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
    with session.stream(prompt, run_id=seen.run_id, on_interrupted=on_interrupted) as stream:
        for event in stream:
            if form == "text":
                printer.event(event)
            elif form == "nl":
                click.echo(json_text(event.to_dict(), indent=None))
        return stream.result


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
