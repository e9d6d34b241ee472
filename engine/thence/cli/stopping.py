"""``cancel`` and ``interrupt``: end a live run for ever, or until it is resumed, from whatever process (§1, §13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

from ..agent import Agent
from ..errors import ThenceError
from ..reads import SessionRow
from ..runs import Run
from ..session import Session
from .configured import way_on
from .errors import BUSY, NotFound, complain
from .looking import Look, looking
from .options import Settings, common, pass_settings
from .text import visible
from .unguarded import without_callables

_ANSWER_WAIT_S = 10.0
_LOOK_S = 0.05


class NotLive(ThenceError):
    """There is nobody to tell: the run has ended, or nobody works on it."""

    code = "RUN_NOT_LIVE"


@click.command()
@click.argument("run")
@common
@pass_settings
def cancel(settings: Settings, run: str) -> None:
    """End a live RUN of any process, for ever.

    What it did so far stays; the session goes on with the next prompt. A run that shall go on later is interrupted
    instead: 'thence interrupt', or Ctrl-C where it runs.
    """
    with looking(settings.path) as look:
        found = look.run(run)
        row = look.session(found.session_id)
    seen = _stop(settings, row, found, lambda session: session.cancel_run(run))
    if seen.status != "cancelled":
        raise _not_stopped(settings, seen, "cancel")
    settings.tell([seen.to_dict()], lambda: visible(f"{run}: cancelled"), document=seen.to_dict())


@click.command()
@click.argument("target", metavar="RUN|SESSION")
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever looks at the run.")
@common
@pass_settings
def interrupt(settings: Settings, target: str, reason: str) -> None:
    """Stop a live run of any process; it can be resumed.

    Names the run, or its session; it stops at its next safe point. What has not ended within a few seconds is left
    behind.
    """
    with looking(settings.path) as look:
        found, row = find_target(look, target)
    if found.state == "parked":
        raise NotLive(why_not(settings, found, "interrupt"))
    seen = _stop(settings, row, found, lambda session: session.interrupt(reason))
    if seen.state != "interrupted" or found.state == "interrupted":
        raise _not_stopped(settings, seen, "interrupt")
    settings.tell([seen.to_dict()], lambda: _interrupted_text(settings, row, seen), document=seen.to_dict())


def _interrupted_text(settings: Settings, row: SessionRow, run: Run) -> str:
    with looking(settings.path) as look:
        return f"{visible(run.id)}: interrupted; to go on: {way_on(settings, look, row, run.id)}"


def find_target(look: Look, name: str) -> tuple[Run, SessionRow]:
    """The run of that id, or the newest run of the session of that id.

    Raises:
        NotFound: neither is there.
        NotLive: the session has no run that is kept.
    """
    run = look.find_run(name)
    if run is not None:
        return run, look.session(run.session_id)
    row = look.find_session(name)
    if row is None:
        raise NotFound(f"no run and no session is called {name}")
    kept = look.runs(row)
    if not kept:
        raise NotLive(f"no run of session {name} is live")
    return kept[-1], row


def is_live(run: Run) -> bool:
    """Whether somebody works on the run, or may."""
    return run.state == run.status and not run.is_terminal


@contextmanager
def telling(settings: Settings, row: SessionRow) -> Generator[Session]:
    """The session, for as long as it takes to say something to its live run."""
    with Agent(settings.path) as agent:
        # nothing is asked of a model here
        yield agent.resume_session(row.session_id, without_callables())


def _stop(settings: Settings, row: SessionRow, run: Run, ask: Callable[[Session], bool]) -> Run:
    """Ask a live run to stop, and wait until it has; a run that is not live is given back as it is."""
    if not is_live(run):
        return run
    deadline = time.monotonic() + _ANSWER_WAIT_S
    with telling(settings, row) as session:
        asked = ask(session)
        while True:
            seen = session.run_snapshot(run.id)
            if seen is None:
                raise NotLive(f"run {run.id} has ended, and is no longer kept")
            if not asked or not is_live(seen) or time.monotonic() > deadline:
                return seen
            time.sleep(_LOOK_S)


def _not_stopped(settings: Settings, run: Run, verb: str) -> NotLive:
    """Why it was not: an error, or the command ends here when its process does not answer."""
    if not is_live(run):
        return NotLive(why_not(settings, run, verb))
    complain(
        "SESSION_BUSY",
        f"run {run.id} was asked to end, and its process has not answered for {_ANSWER_WAIT_S:.0f} s",
        as_json=settings.form != "text",
        hint=f"it will when it can; look: {settings.command('show', run.id)}",
        session_id=run.session_id,
        run_id=run.id,
    )
    click.get_current_context().exit(BUSY)


def why_not(settings: Settings, run: Run, verb: str) -> str:
    """Why a run cannot be told anything, and what can be done instead."""
    if run.state == "superseded":
        return f"run {run.id} went on as {run.superseded_by}: {verb} that one"
    if run.state == "parked":
        return f"run {run.id} is parked until it is answered: {settings.command('waits', run.id)}"
    if run.state == "interrupted":
        closing = settings.command("run", "-s", run.session_id, "--settle", "Go on.")
        return f"nobody works on run {run.id} (interrupted); to close its turn and go on: {closing}"
    return f"run {run.id} has ended already ({run.state})"
