"""``steer``: say something to a live run, from whatever process (§1, §13)."""

from __future__ import annotations

import click

from .looking import looking
from .options import Settings, common, pass_settings
from .stopping import NotLive, find_target, is_live, telling, why_not
from .text import visible


@click.command()
@click.argument("target", metavar="RUN|SESSION")
@click.argument("text")
@click.option("--request-id", metavar="ID", help="Makes it safe to say it again: a known request is ignored.")
@common
@pass_settings
def steer(settings: Settings, target: str, text: str, request_id: str | None) -> None:
    """Say TEXT to a live run of any process: a message of its turn.

    Names the run, or its session. The model reads it with its next request, never between a call and its result; a turn
    that has its answer goes on instead of ending.
    """
    with looking(settings.path) as look:
        run, row = find_target(look, target)
    told = False
    works = is_live(run) and run.state != "parked"
    if works:
        with telling(settings, row) as session:
            try:
                told = session.steer(text, request_id)
            except (ValueError, TypeError) as error:
                raise click.BadParameter(str(error)) from None
    if not told:
        raise NotLive(why_not(settings, run, "steer") if not works else f"run {run.id} has just ended")
    said = {"session_id": run.session_id, "run_id": run.id, "request_id": request_id, "told": True}
    settings.tell([said], lambda: visible(f"{run.id}: told; it reads it at its next safe point"), document=said)
