"""What goes wrong, as exit codes and as text or JSON on stderr (§13)."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from ..errors import SessionConfiguration, ThenceError
from ..results import SendResult
from ..session_options import CALLABLES
from .text import json_text, visible

OK, FAILED, USAGE, NOT_FOUND, BUSY, DENIED, PROBLEM, PARKED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 8, 130

_CODES = {
    "NOT_FOUND": NOT_FOUND,
    "SESSION_NOT_FOUND": NOT_FOUND,
    "SESSION_BUSY": BUSY,
    "OWNERSHIP_LOST": BUSY,
    "MIGRATION_BLOCKED": BUSY,
    "WAIT_NOT_FOUND": NOT_FOUND,
    "WAIT_ALREADY_ANSWERED": BUSY,
    "WAIT_CLOSED": BUSY,
    "BUDGET_EXHAUSTED": DENIED,
    "SESSION_CONFIGURATION_ERROR": USAGE,
}


CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What writing to stdout may fail with, beside a reader that has left."""


class NotFound(ThenceError):
    """No such database, session or run."""

    code = "NOT_FOUND"


def result_code(result: SendResult) -> int:
    """The exit code for how a turn came out."""
    return {"completed": OK, "parked": PARKED}.get(result.status, FAILED)


def exit_code(error: ThenceError) -> int:
    """The exit code for an error of the library."""
    return _CODES.get(error.code, FAILED)


def complain(
    code: str, message: str, *, as_json: bool, hint: str = "", session_id: str | None = None, run_id: str | None = None
) -> None:
    """Tell what went wrong on stderr. ``hint`` says what to type next; JSON has it too, and the ids that are known."""
    if as_json:
        known = {"session_id": session_id, "run_id": run_id, "hint": hint or None}
        error = {"code": code, "message": message, **{name: value for name, value in known.items() if value}}
        click.echo(json_text({"error": error}, indent=None), err=True)
        return
    click.echo(f"Error: {visible(message)}", err=True)
    if hint:
        click.echo(visible(hint), err=True)


@contextmanager
def reported(ctx: click.Context, *, as_json: bool) -> Generator[None]:
    """Turn whatever ends a command into an exit code and a message; click's own errors too when JSON is asked for."""
    try:
        yield
    except ThenceError as error:
        session_id: str | None = getattr(error, "session_id", None)
        complain(error.code, error_message(error), as_json=as_json, session_id=session_id, run_id=error.run_id)
        ctx.exit(exit_code(error))
    except click.ClickException as error:
        if not as_json:
            raise
        complain("USAGE" if isinstance(error, click.UsageError) else "FAILED", error.format_message(), as_json=True)
        ctx.exit(error.exit_code)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)
    except BrokenPipeError:
        # whoever read our output has left: what follows goes nowhere, the flush at exit included
        abandon_stdout()
        ctx.exit(OK)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        abandon_stdout()
        complain("OUTPUT_FAILED", f"the output could not be written: {error.strerror}", as_json=as_json)
        ctx.exit(FAILED)


def abandon_stdout() -> None:
    """Let what is still written to stdout go nowhere, without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def error_message(error: ThenceError) -> str:
    """The error's text, and the option that gets around it if there is one."""
    if isinstance(error, SessionConfiguration) and error.field in CALLABLES:
        return f"{error} (or go on without it: --unguarded)"
    return str(error)
