"""``tail``: a run from another process, as it happens (§10, §13)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from ..events import Event
from ..host.tailing import Tail
from .errors import PARKED
from .looking import Look, looking
from .options import Settings, common, pass_settings
from .printing import Printer
from .text import json_text

_ALIVE_CHECK_S = 1.0


@click.command()
@click.argument("run")
@click.option("--after", type=click.IntRange(min=0), metavar="SEQUENCE", help="Only events after this one.")
@common
@pass_settings
def tail(settings: Settings, run: str, after: int | None) -> None:
    """Follow a RUN of any process until it is over or parked.

    Of a parked one it says what it waits for, and how to follow it when it goes on; exit code 8.
    """
    printer = Printer(whole=True, aside=False)
    with looking(settings.path) as look:
        followed = follow(look, run, after, parked_is_over=True)
        if settings.form == "text":
            for event in followed:
                printer.event(event)
            printer.end_line()
        elif settings.form == "nl":
            for event in followed:
                click.echo(json_text(event.to_dict(), indent=None))
        else:
            click.echo(json_text([event.to_dict() for event in followed]))
        found = look.run(run)
    if settings.form == "text":
        printer.note(f"{run}: {found.state}")
    if found.status == "parked":
        if settings.form == "text":
            printer.note(f"it waits:        {settings.command('waits', run)}", cut=False)
            behind = ("--after", str(found.event_count - 1)) if found.event_count else ()
            printer.note(f"when it goes on: {settings.command('tail', run, *behind)}", cut=False)
        click.get_current_context().exit(PARKED)


def follow(look: Look, run_id: str, after: int | None, *, parked_is_over: bool = False) -> Iterator[Event]:
    """Events of a run until it is over, or until its process has gone; or, if so told, until it is parked."""
    run = look.run(run_id)
    tags = look.session(run.session_id).tags.given()
    tail = Tail(run.session_id, run_id, tags, lambda owner: look.life(owner) != "dead", after)
    checked = time.monotonic()
    gone = run.state == "interrupted"
    while not tail.done:
        parked = parked_is_over and look.run(run_id).status == "parked"
        found = look.follow(tail.read_on())
        yield from found
        if parked and not found:
            return
        if found or tail.done:
            continue
        if gone:
            return
        time.sleep(tail.wait_s)
        if time.monotonic() - checked > _ALIVE_CHECK_S:
            checked = time.monotonic()
            # read on once more after the process has gone: what it wrote last is then seen too
            gone = look.run(run_id).state == "interrupted"
