"""What runs wait for, and answering it: ``waits``, ``approve``, ``reject``, ``answer`` (§10, §13)."""

from __future__ import annotations

import getpass
from typing import Any

import click

from .. import waits as asked
from ..agent import Agent
from ..answers import YES_OR_NO
from ..canonical import NotJson, loads
from ..errors import WaitError
from ..reads import SessionRow
from ..waits import Wait
from .asking import asked_text, wait_text, waits_text
from .configured import way_on
from .errors import NotFound
from .looking import looking
from .options import Settings, common, pass_settings
from .text import count, visible
from .unguarded import without_callables

with_session = click.option("-s", "--session", "session_id", metavar="SESSION", help="The wait's session.")
with_name = click.option("--by", metavar="NAME", help="Who answers, for the log.  [default: your user name]")


@click.command()
@click.argument("name", metavar="[SESSION|RUN|WAIT]", required=False)
@with_session
@common
@pass_settings
def waits(settings: Settings, name: str | None, session_id: str | None) -> None:
    """List what runs wait for: approvals, questions, results.

    Of a RUN or a WAIT everything is shown, each argument of the call as it is.
    """
    with looking(settings.path) as look:
        whole = name is not None and look.find_session(name) is None
        only = session_id if whole or name is None else name
        found = look.ask(asked.waits(None if only is None else look.session(only).session_pk))
        if whole:
            found = [wait for wait in found if name in (wait.id, wait.run_id)]
            if not found and look.find_run(name or "") is None:
                raise NotFound(f"no session, no run and no open wait is called {name}")
    settings.tell(
        (wait.to_dict() for wait in found),
        lambda: "\n\n".join(wait_text(settings, wait) for wait in found) if whole else waits_text(settings, found),
        none="nothing waits for an answer",
    )


@click.command()
@click.argument("wait", metavar="WAIT|RUN")
@with_session
@click.option("--reason", metavar="TEXT", help="Why, for the log.")
@with_name
@common
@pass_settings
def approve(settings: Settings, wait: str, session_id: str | None, reason: str | None, by: str | None) -> None:
    """Say yes to what a run waits for, which 'thence waits WAIT' shows.

    Nothing runs by this: the program that has the tool goes on with the run, and this says how.
    """
    _say(settings, wait, session_id, _approval(approved=True, reason=reason), by, only=_YES_OR_NO)


@click.command()
@click.argument("wait", metavar="WAIT|RUN")
@with_session
@click.option("--reason", metavar="TEXT", help="Why; the model is told.")
@with_name
@common
@pass_settings
def reject(settings: Settings, wait: str, session_id: str | None, reason: str | None, by: str | None) -> None:
    """Say no to what a run waits for, which 'thence waits WAIT' shows.

    Nothing runs by this: the program that has the tools goes on with the run, and this says how.
    """
    _say(settings, wait, session_id, _approval(approved=False, reason=reason), by, only=_YES_OR_NO)


@click.command()
@click.argument("wait", metavar="WAIT|RUN")
@click.argument("value")
@with_session
@click.option("--json-value", is_flag=True, help="VALUE is JSON, not text.")
@with_name
@common
@pass_settings
def answer(settings: Settings, wait: str, value: str, session_id: str | None, json_value: bool, by: str | None) -> None:
    """Give a question or a deferred call its answer.

    After a crash, a call that must not run twice asks what came of it: give --json-value and '{"outcome": "run"}',
    '{"outcome": "done", "result": ...}' or '{"outcome": "failed", "error": "..."}'.
    """
    given: Any = value
    if json_value:
        try:
            given = loads(value)
        except NotJson as error:
            raise click.BadParameter(f"is not JSON: {error}", param_hint="VALUE") from None
    _say(settings, wait, session_id, given, by)


_YES_OR_NO = ("approved or rejected", YES_OR_NO)


def _approval(*, approved: bool, reason: str | None) -> dict[str, Any]:
    return {"approved": approved} if reason is None else {"approved": approved, "reason": reason}


def _say(
    settings: Settings,
    name: str,
    session_id: str | None,
    value: Any,
    by: str | None,
    *,
    only: tuple[str, frozenset[Any]] | None = None,
) -> None:
    with looking(settings.path) as look:
        key = None if session_id is None else look.session(session_id).session_pk
        found = look.ask(asked.waits(key))
    wait = _chosen(found, name)
    if only is not None and wait.kind not in only[1]:
        raise click.UsageError(
            f"{wait.id} is a {wait.kind.replace('_', ' ')}, not to be {only[0]}: use 'thence answer'"
        )
    with looking(settings.path) as look:
        row = look.session(wait.session_id)
    with Agent(settings.path) as agent:
        session = agent.resume_session(row.session_id, without_callables())
        try:
            session.answer(wait.id, value, digest=wait.digest, by=by or _user())
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"{wait.kind.replace('_', ' ')} {wait.id}: {error}") from None
    told = {
        "wait_id": wait.id,
        "session_id": wait.session_id,
        "run_id": wait.run_id,
        "tool": wait.tool,
        "arguments": wait.arguments,
        "question": wait.question,
        "value": value,
    }
    others = [one for one in found if one.run_id == wait.run_id and one.state == "open" and one.id != wait.id]
    settings.tell([told], lambda: _said_text(settings, row, wait, value, others), document=told)


def _said_text(settings: Settings, row: SessionRow, wait: Wait, value: Any, others: list[Wait]) -> str:
    """What was said, and to what: also whoever did not look before sees it now."""
    word = {True: "approved", False: "rejected"}[value["approved"]] if wait.kind in YES_OR_NO else "answered"
    if others:
        further = f"it still waits for {count(len(others), 'answer')}:  {settings.command('waits', wait.run_id)}"
    else:
        with looking(settings.path) as look:
            further = f"go on:  {way_on(settings, look, row, wait.run_id)}"
    return f"{visible(wait.id)}: {word}\n{asked_text(wait)}\n\n{further}"


def _chosen(found: list[Wait], name: str) -> Wait:
    """The wait of that id, or the only open one of the run of that id.

    Raises:
        WaitError: there is none.
        UsageError: there are several.
    """
    by_id = [wait for wait in found if wait.id == name]
    of_run = [wait for wait in found if wait.run_id == name]
    chosen = by_id or [wait for wait in of_run if wait.state == "open"] or of_run
    if not chosen:
        raise WaitError("WAIT_NOT_FOUND", f"nobody waits for '{name}'; 'thence waits' lists who waits for what")
    if len(chosen) > 1:
        several = ", ".join(f"{wait.id} (-s {wait.session_id})" for wait in chosen)
        raise click.UsageError(f"'{name}' is not clear: {several}")
    return chosen[0]


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None
