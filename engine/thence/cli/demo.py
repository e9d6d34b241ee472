"""``demo``: a real model reads a real folder, and plain SQL shows what that left in the file (§13)."""

from __future__ import annotations

import shlex
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import cast

import click

from ..agent import Agent
from ..chat import Delta, Reply, Request, SyncModel, ToolMessage
from ..errors import ModelError, ThenceError
from ..host.workspace import workspace_tools
from ..models.resolve import resolve_model
from ..models.scripted import Answer, Item, ScriptedModel, call, reply
from ..session_options import SessionOptions
from .crash import perform_crash
from .errors import INTERRUPTED
from .options import Settings, pass_settings, with_db
from .printing import Printer
from .running import second_interrupt_leaves, stream_turn
from .shown import Seen
from .text import clip, columns, one_line, table, visible

FILES = {
    "docs/garden.txt": "Ten roses for 30 euros.\n",
    "docs/letter.txt": "Dear Ann, the roses arrived. Thank you!\n",
    "invoice.txt": "Invoice 17 of the garden shop.\nThe invoice is due on Friday.\n",
    "notes.txt": "Pay the invoice.\nWater the roses.\n",
}
QUESTIONS = ("What is in the folder docs?", "Read the file notes.txt.", "Which files mention 'invoice'?")

_LOCAL_NOTE = "135M parameters, poor prose: it only shows that the machinery is real"
_SCRIPTED_NOTE = "NO MODEL, a script: its calls were written beforehand"


@dataclass
class Watched:
    """A model that keeps the requests it was sent."""

    inner: SyncModel
    note: str
    requests: list[Request] = field(default_factory=list[Request])

    @property
    def name(self) -> str:
        """The name of the model inside."""
        return self.inner.name

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """As the model inside."""
        self.requests.append(request)
        return self.inner.stream(request)

    def close(self) -> None:
        """As the model inside, if it can be closed."""
        closing = getattr(self.inner, "close", None)
        if closing is not None:
            closing()


@click.command()
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="local, openai:NAME, or scripted (no model at all).  [default: local; with --crash: scripted]",
)
@click.option("--crash", is_flag=True, help="Kill a process in the middle of its work, and let another one go on.")
@with_db
@pass_settings
@click.pass_context
def demo(ctx: click.Context, settings: Settings, model: str | None, crash: bool) -> None:
    """Try it: a model, three questions, and the file in SQL.

    The model is asked about a small folder; then plain SQL shows what that left in the file.

    With --crash, a process is killed with kill -9 in the middle of a tool call instead; another process goes on, and
    what came of it is compared with a turn that nobody disturbed. (Not on Windows.)

    Makes ./demo.db, or adds a session to it, unless --db names another file; and a folder among the temporary files.
    """
    path = settings.db or "demo.db"
    settings.db = path
    if crash:
        ctx.exit(perform_crash(settings, path, model or "scripted"))
    watched = _choose(model or "local")
    there = Path(path).exists()
    with second_interrupt_leaves(), Agent(path, model=watched, tools=workspace_tools()) as agent:
        folder = _make_folder()
        taken = {session.session_id for session in agent.list_sessions()}
        session_id = next(name for number in range(1, len(taken) + 2) if (name := f"demo-{number}") not in taken)
        _introduce(path, there, session_id, folder, watched)
        session = agent.session(folder, SessionOptions(session_id=session_id))
        for question in QUESTIONS:
            click.secho(f"\n> {question}", bold=True)
            try:
                stream_turn(session, question, Printer(aside=False), Seen())
            except KeyboardInterrupt:
                click.echo(f"interrupted; what happened so far: {settings.command('show', session_id)}", err=True)
                ctx.exit(INTERRUPTED)
    _show_requests(watched.requests)
    _show_file(path, session_id)
    click.secho("\nGo on, in another process:", bold=True)
    for words in (
        ("show", session_id),
        ("run", "-s", session_id, "Read the file docs/garden.txt."),
        ("facts", session_id),
    ):
        click.echo(f"  {settings.command(*words)}")


def _choose(model: str) -> Watched:
    if model == "scripted":
        return Watched(_scripted(), _SCRIPTED_NOTE)
    try:
        note = _LOCAL_NOTE if model == "local" else "a provider's"
        return Watched(cast("SyncModel", resolve_model(model)), note)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or 'scripted'", param_hint="--model") from None
    except ModelError as error:
        if model != "local":
            raise
        missing = str(error).partition(";")[0]
        click.echo(f"No local model here: {missing}. Going on with a script in its place.", err=True)
        return Watched(_scripted(), _SCRIPTED_NOTE)


def _scripted() -> ScriptedModel:
    calls = (call("ls", {"path": "docs"}), call("read", {"path": "notes.txt"}), call("grep", {"pattern": "invoice"}))
    script: list[Item] = []
    for one in calls:
        script += [reply(calls=[one]), _repeat_result]
    return ScriptedModel(script)


def _repeat_result(request: Request) -> Answer:
    """The one thing a script can do with a result that it does not know: say it again."""
    return reply(f"(script) The tool said: {one_line(request.messages[-1].text)}")


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="thence-demo-"))
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


def _introduce(path: str, there: bool, session_id: str, folder: Path, model: Watched) -> None:
    state = f"was there: session {session_id} is added" if there else f"new; session {session_id}"
    click.echo(f"file    {visible(path)} ({state})")
    click.echo(f"folder  {folder}")
    click.echo(f"        {', '.join(FILES)}")
    click.echo(f"model   {visible(model.name)}")
    click.echo(f"        {model.note}")


def _show_requests(requests: list[Request]) -> None:
    click.secho("\nDid what the tools found reach the model? The ends of its requests:", bold=True)
    for number, request in enumerate(requests, 1):
        last = request.messages[-1]
        by = f"tool {last.name}" if isinstance(last, ToolMessage) else last.role
        click.echo(f"  request {number}, message {len(request.messages)}, from {visible(by)}:")
        for line in last.text.splitlines():
            click.echo(clip(f"      {visible(line)}", columns()))


def _show_file(path: str, session_id: str) -> None:
    """Run the queries of ``demo_queries.sql`` with Python's own sqlite3, and show them so that they can be pasted."""
    text = resources.files(__package__ or "").joinpath("demo_queries.sql").read_text("utf-8")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA query_only=ON")
        for block in text.split("-- ")[1:]:
            title, _, sql = block.strip().partition("\n")
            sql = sql.replace(":session", f"'{session_id}'")
            click.secho(f"\n{title}:", bold=True)
            click.echo(f'sqlite3 {visible(shlex.quote(path))} "\n{sql}"\n'.replace("$", "\\$"))
            try:
                found = connection.execute(sql)
            except sqlite3.Error as error:
                raise ThenceError(f"{path}: {error}") from error
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found]
            click.echo(table(rows, flexible=names[-1]) if rows else "(nothing)")
