"""The completion gate on the command line: what a verification said, and ``waive`` (§5, §13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import click

from .. import reads
from ..agent import Agent
from ..canonical import NotJson, dumps_checked, loads
from ..errors import GateClosed, ThenceError
from ..host.resuming import recorded_error
from ..runs import Run
from .configured import way_on
from .looking import Look, looking
from .options import Settings, common, pass_settings
from .text import visible
from .unguarded import without_callables


class NotAtGate(ThenceError):
    """The run does not wait at the completion gate."""

    code = "RUN_NOT_AT_GATE"


@click.command()
@click.argument("run")
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept in the log.")
@common
@pass_settings
def waive(settings: Settings, run: str, reason: str) -> None:
    """Let a RUN that the completion gate stopped end unverified.

    What is waived are the workspace changes that the run has made, and no later ones. Resume it then.
    """
    if not reason.strip():
        raise click.BadParameter("must not be empty", param_hint="--reason")
    with looking(settings.path) as look:
        found = look.run(run)
    closed = closed_gate(found)
    if closed is None or found.superseded_by is not None:
        raise NotAtGate(f"run {run} does not wait at the completion gate ({found.state}): nothing to waive")
    with Agent(settings.path) as agent:
        agent.resume_session(found.session_id, without_callables()).waive(closed.digest, reason)
    value = {"run_id": run, "session_id": found.session_id, "digest": closed.digest, "reason": reason}
    settings.tell([value], lambda: _waived_text(settings, found, closed.digest), document=value)


def _waived_text(settings: Settings, run: Run, digest: str) -> str:
    with looking(settings.path) as look:
        further = way_on(settings, look, look.session(run.session_id), run.id)
    return f"waived {visible(digest)}\nresume it: {further}"


def closed_gate(run: Run) -> GateClosed | None:
    """What the completion gate stopped a run with, if it did."""
    if run.error_code is None or run.error_message is None:
        return None
    error = recorded_error(run.error_code, run.error_message, run.id)
    return error if isinstance(error, GateClosed) else None


def report_of(look: Look, run: Run) -> Mapping[str, Any] | None:
    """The verification report of a run that the gate stopped, as the log holds it; None when there is none."""
    if closed_gate(run) is None:
        return None
    session = look.session(run.session_id)
    found: Mapping[str, Any] | None = None
    for fact in look.facts(session):
        if fact.kind == "verification.reported" and fact.run_id == run.id:
            found = fact.value
    if found is None or "report_sha256" not in found:
        return found
    stored = look.ask(reads.blob(session.session_pk, str(found["report_sha256"])))
    try:
        report = loads((stored or b"null").decode())
    except (NotJson, UnicodeDecodeError):
        report = None
    return {"digest": found.get("digest"), "passed": found.get("passed"), "report": report}


def report_text(found: Mapping[str, Any]) -> str:
    """A report for people: commands with their outputs, then what the verifier said."""
    report = found.get("report")
    if not isinstance(report, dict):
        return visible(dumps_checked(report))
    value = cast("dict[str, Any]", report)
    lines: list[str] = []
    for one in cast("list[dict[str, Any]]", value.get("commands", [])):
        command = one.get("command")
        words = command if isinstance(command, str) else " ".join(map(str, cast("list[Any]", command)))
        lines += [f"$ {words}", *([str(one["output"]).rstrip("\n")] if one.get("output") else []), f"[{_end(one)}]"]
    rest = {name: other for name, other in value.items() if name != "commands"}
    return visible("\n".join([*lines, *([dumps_checked(rest)] if rest else [])]))


def _end(one: Mapping[str, Any]) -> str:
    if "error" in one:
        return f"could not be run: {one['error']}"
    return "timed out" if one.get("timed_out") else f"exit {one.get('exit_code')}"
