"""What every command understands: where the database is, and in which form to answer (§13)."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from .text import json_text, visible

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The common options of one call, as they were given before or after the command's name."""

    db: str | None = None
    form: Literal["text", "json", "nl"] = "text"

    @property
    def path(self) -> str:
        """The database: ``--db``, else ``THENCE_DB``, else ``./thence.db``."""
        return self.db or os.environ.get("THENCE_DB") or "thence.db"

    def command(self, *words: str) -> str:
        """A command line that a person can paste to go on with the same database."""
        chosen = ("--db", self.db) if self.db else ()
        return visible(shlex.join([*_program(), *chosen, *words]))

    def tell(
        self, values: Iterable[Mapping[str, Any]], text: Callable[[], str], *, document: Any = None, none: str = ""
    ) -> None:
        """Print values in the form that was asked for.

        Args:
            values: one JSON object each.
            text: makes what people read; not called when there are no values.
            document: the ``--json`` document, when it is not the list of values.
            none: what to tell people when there are no values.
        """
        if self.form == "nl":
            for value in values:
                click.echo(json_text(value, indent=None))
            return
        found = list(values)
        if self.form == "json":
            click.echo(json_text(found if document is None else document))
        elif found:
            click.echo(text())
        else:
            click.echo(visible(none), err=True)


def _program() -> tuple[str, ...]:
    """How this command line can be called again from here: it need not be on the PATH."""
    if shutil.which("thence"):
        return ("thence",)
    python = Path(sys.executable)
    return (str(python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python), "-m", "thence")


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _set_db(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Settings).db = value


def _set_form(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        settings = ctx.ensure_object(Settings)
        form: Literal["json", "nl"] = "json" if parameter.name == "json" else "nl"
        if settings.form not in ("text", form):
            raise click.UsageError("--json and --nl exclude each other", ctx)
        settings.form = form


def with_db(command: F) -> F:
    """Add ``--db``."""
    option = click.option(
        "--db",
        metavar="FILE",
        expose_value=False,
        callback=_set_db,
        help="The database.  [default: $THENCE_DB, else ./thence.db]",
    )
    return option(command)


def with_forms(command: F) -> F:
    """Add ``--json`` and ``--nl``."""
    for name, words in (("nl", "Print JSON lines, one object each."), ("json", "Print one JSON document.")):
        command = click.option(f"--{name}", is_flag=True, expose_value=False, callback=_set_form, help=words)(command)
    return command


def common(command: F) -> F:
    """Add all that a command which prints values understands."""
    return with_db(with_forms(command))
