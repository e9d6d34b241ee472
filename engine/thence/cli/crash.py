"""``demo --crash``: kill -9 inside a tool, another process goes on, and every claim is checked (§7, §13)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ..errors import ModelError, ThenceError
from ..models.resolve import resolve_model
from .calls import OpenCall, open_calls
from .crash_worker import DIES_IN, ENTRIES, PROMPT, Order
from .errors import FAILED, OK
from .looking import looking
from .options import Settings
from .summary import short_arguments, short_result
from .text import clip, columns, one_line, table, visible

_LIMIT_S = 300.0
_MODELS = ("scripted", "local")


class DemoFailed(ThenceError):
    """A process of the demo did something else than it was told to."""

    code = "DEMO_FAILED"


@dataclass(slots=True)
class _Story:
    """One performance: where things are, and what was checked so far."""

    db: str
    session_id: str
    folder: Path
    model: str
    checks: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])

    @property
    def control_id(self) -> str:
        """The session of the undisturbed turn."""
        return f"{self.session_id}-undisturbed"

    def ledger(self, session_id: str) -> Path:
        """The ledger that a session's tool writes."""
        return self.folder / f"{session_id}.ledger"

    def order(self, session_id: str, *, resumes: str | None = None, dies: bool = False) -> Order:
        """An order to a process."""
        return Order(self.db, session_id, str(self.ledger(session_id)), self.model, resumes, dies)

    def check(self, passed: bool, claim: str) -> None:
        """Note whether a claim held in this very run."""
        self.checks.append((passed, claim))


def perform_crash(settings: Settings, path: str, model: str) -> int:
    """Show it; 0 only if all that it claims was seen to be so.

    Raises:
        DemoFailed: a process that should have ended well did not.
    """
    if sys.platform == "win32":
        raise click.UsageError("--crash needs kill -9, which Windows does not have: it is not supported there")
    folder = Path(tempfile.mkdtemp(prefix="thence-crash-"))
    there = Path(path).exists()
    story = _Story(path, _free_id(path) if there else "crash-1", folder, _available(model))
    _introduce(story, there)
    _say("1. A process begins, and dies of kill -9 inside its second tool call")
    pid = _kill_one(story)
    _say("2. What is in the file, seen from this process")
    run_id, calls = _look(story)
    _say("3. Another process goes on, with session.resume_run(run)")
    resumed = _finish(story.order(story.session_id, resumes=run_id))
    _show_ledger(story, story.session_id)
    _show_answer(resumed)
    _say("4. The same turn in a process that nobody kills")
    control = _finish(story.order(story.control_id))
    _show_answer(control)
    _judge(story, pid, calls, resumed, control)
    return _conclude(settings, story)


def _say(text: str) -> None:
    click.secho(f"\n{text}:", bold=True)


def _free_id(path: str) -> str:
    with looking(path) as look:
        number = 1
        while look.find_session(f"crash-{number}") or look.find_session(f"crash-{number}-undisturbed"):
            number += 1
    return f"crash-{number}"


def _available(model: str) -> str:
    if model not in _MODELS:
        raise click.BadParameter(f"with --crash it must be one of {', '.join(_MODELS)}", param_hint="--model")
    if model == "local":
        try:
            resolve_model(model)
        except ModelError as error:
            missing = str(error).partition(";")[0]
            click.echo(f"No local model here: {missing}. Going on with a script in its place.", err=True)
            return "scripted"
    return model


def _introduce(story: _Story, there: bool) -> None:
    added = "was there: two sessions are added" if there else "new"
    click.echo(f"file    {visible(story.db)} ({added}); session {story.session_id}")
    click.echo(f"ledger  {story.ledger(story.session_id)}")
    click.echo("        The tool 'book' adds a line when a call begins and one when it is done.")
    if story.model == "local":
        click.echo("model   a real one, of 135M parameters, writes the answer, in poor prose;")
        click.echo("        a script makes the three calls: they are too much for it")
    else:
        click.echo("model   NO MODEL, a script: its calls were written beforehand")
    click.echo(f"prompt  {PROMPT}")


def _start(order: Order) -> tuple[int, subprocess.CompletedProcess[str]]:
    """Run a process to its end, however it ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "thence.cli.crash_worker", order.to_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
    finally:
        process.kill()
    return process.pid, subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _finish(order: Order) -> dict[str, Any]:
    pid, done = _start(order)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DemoFailed(f"process {pid} ended with {done.returncode}: {last}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _kill_one(story: _Story) -> int:
    pid, done = _start(story.order(story.session_id, dies=True))
    killed = done.returncode == -signal.SIGKILL
    click.echo(f"  process {pid} ended: {'SIGKILL' if killed else done.returncode}")
    _show_ledger(story, story.session_id)
    story.check(killed, f"process {pid} died of SIGKILL, and could clean up nothing")
    return pid


def _ledger_lines(story: _Story, session_id: str) -> list[str]:
    ledger = story.ledger(session_id)
    return ledger.read_text("utf-8").splitlines() if ledger.exists() else []


def _show_ledger(story: _Story, session_id: str) -> None:
    for line in _ledger_lines(story, session_id):
        click.echo(f"  ledger  {line}")


def _show_answer(told: dict[str, Any]) -> None:
    click.echo(clip(f"  answer  {one_line(told['text'])}", columns()))


def _look(story: _Story) -> tuple[str, list[OpenCall]]:
    with looking(story.db) as look:
        row = look.session(story.session_id)
        run = look.runs(row)[-1]
        calls = open_calls(look, row)
    click.echo(f"  run    {run.id}")
    click.echo(f"  state  {run.state} (its row says {run.status}; its process is gone)")
    rows = [
        {
            "call": call.key,
            "tool": f"{call.tool} {short_arguments(call.arguments, 40)}",
            "state": call.state,
            "result": short_result(call.result, True, 40) if call.state == "landed" else "-",
        }
        for call in calls
    ]
    if rows:
        click.echo("\n".join(f"  {line}" for line in table(rows).splitlines()))
    story.check(run.state == "interrupted", "its run shows as interrupted")
    states = [call.state for call in calls]
    known = states == ["landed", "started", "not started"]
    story.check(known, "the file knew: one call done, one begun, one not begun")
    return run.id, calls


def _judge(story: _Story, killed: int, calls: list[OpenCall], resumed: dict[str, Any], control: dict[str, Any]) -> None:
    lines = _ledger_lines(story, story.session_id)
    begins = {entry: [line for line in lines if line.endswith(f" begins {entry}")] for entry, _ in ENTRIES}
    booked = {entry: [line for line in lines if f" booked {entry} " in line] for entry, _ in ENTRIES}
    landed = [entry for (entry, _), call in zip(ENTRIES, calls, strict=False) if call.state == "landed"]
    by_killed = all(line.startswith(f"process {killed} ") for entry in landed for line in begins[entry])
    once = by_killed and all(len(begins[entry]) == len(booked[entry]) == 1 for entry in landed)
    story.check(bool(landed) and once, f"the finished call ({', '.join(landed)}) was not run again")
    again = len(begins[DIES_IN]) == 2 and len(booked[DIES_IN]) == 1
    story.check(again, f"the call in flight ({DIES_IN}) ran once more, and is booked once")
    rest = [entry for entry, _ in ENTRIES if entry != DIES_IN and entry not in landed]
    ran = all(len(begins[entry]) == len(booked[entry]) == 1 for entry in rest)
    story.check(bool(rest) and ran, f"the call that had not begun ({', '.join(rest)}) ran once")
    story.check(resumed["text"] == control["text"], "same answer as the undisturbed turn")
    same = resumed["head"] == control["head"]
    short = f"{control['head'][:16]}..., {control['facts']} facts"
    other = "" if same else f", not {resumed['head'][:16]}..."
    story.check(same, f"same head hash of the log: {short}{other}")


def _conclude(settings: Settings, story: _Story) -> int:
    _say("Checked in this run")
    for passed, claim in story.checks:
        click.echo(f"  {'ok' if passed else 'NO'}  {claim}")
    click.echo(
        f"\nOne gap no library can close: had the kill come after '{DIES_IN}' was in the\n"
        "ledger and before its result was in the file, it would be in the ledger twice.\n"
        'Where that matters: ToolContext.idempotency_key, or @tool(effect="once").'
    )
    click.secho("\nLook yourself:", bold=True)
    for words in (("show", story.session_id), ("runs", story.session_id), ("show", story.control_id)):
        click.echo(f"  {settings.command(*words)}")
    return OK if all(passed for passed, _ in story.checks) else FAILED
