"""``cancel``: ends a run for ever, from whatever process (§1, §13)."""

from __future__ import annotations

import time

import click

from ..agent import Agent
from ..errors import ThenceError
from ..reads import SessionRow
from ..runs import Run
from .errors import BUSY, complain
from .looking import looking
from .options import Settings, common, pass_settings
from .text import visible
from .unguarded import without_callables

_ANSWER_WAIT_S = 10.0
_LOOK_S = 0.05


class NotLive(ThenceError):
    """There is nothing to cancel: the run has ended, or nobody works on it."""

    code = "RUN_NOT_LIVE"


@click.command()
@click.argument("run")
@common
@pass_settings
def cancel(settings: Settings, run: str) -> None:
    """End a live RUN of any process, for ever.

    What it did so far stays; the session goes on with the next prompt. A run that shall go on later is interrupted
    instead: Ctrl-C where it runs.
    """
    with looking(settings.path) as look:
        found = look.run(run)
        row = look.session(found.session_id)
    seen = found if found.state != found.status or found.is_terminal else _cancel(settings, row, run)
    if seen.status == "cancelled":
        settings.tell([seen.to_dict()], lambda: visible(f"{run}: cancelled"), document=seen.to_dict())
        return
    if seen.state == seen.status and not seen.is_terminal:
        complain(
            "SESSION_BUSY",
            f"run {run} was asked to end, and its process has not answered for {_ANSWER_WAIT_S:.0f} s",
            as_json=settings.form != "text",
            hint=f"it will when it can; look: {settings.command('show', run)}",
        )
        click.get_current_context().exit(BUSY)
    raise NotLive(_why_not(settings, seen))


def _cancel(settings: Settings, row: SessionRow, run_id: str) -> Run:
    deadline = time.monotonic() + _ANSWER_WAIT_S
    with Agent(settings.path) as agent:
        # nothing is asked of a model here
        session = agent.resume_session(row.session_id, without_callables())
        asked = session.cancel_run(run_id)
        while True:
            run = session.run_snapshot(run_id)
            if run is None:
                raise NotLive(f"run {run_id} has ended, and is no longer kept")
            if not asked or run.is_terminal or run.state != run.status or time.monotonic() > deadline:
                return run
            time.sleep(_LOOK_S)


def _why_not(settings: Settings, run: Run) -> str:
    if run.state == "superseded":
        return f"run {run.id} went on as {run.superseded_by}: cancel that one"
    if run.state == "interrupted":
        closing = settings.command("run", "-s", run.session_id, "--settle", "Go on.")
        return f"nobody works on run {run.id} (interrupted); to close its turn and go on: {closing}"
    return f"run {run.id} has ended already ({run.state})"
