"""``doctor``: whether something about the file wants looking after (§13)."""

from __future__ import annotations

import os

import click

from ..diagnosis import Diagnosis
from ..host.doctor import diagnose
from .errors import PROBLEM
from .looking import looking
from .options import Settings, common, pass_settings
from .text import count, fields, visible


@click.command()
@common
@pass_settings
def doctor(settings: Settings) -> None:
    """Look for what wants looking after; exit code 6 if there is something.

    Looks at the file's mode and sizes, at the processes that run sessions in it, and at what waits. Changes nothing;
    does not read the logs themselves.
    """
    with looking(settings.path) as look:
        writable = os.access(look.path.parent, os.W_OK) and os.access(look.path, os.W_OK)
        found = look.follow(diagnose(look.path, None, mode_known=writable))
    settings.tell([found.to_dict()], lambda: _text(found), document=found.to_dict())
    if found.problems:
        click.get_current_context().exit(PROBLEM)


def _text(found: Diagnosis) -> str:
    lives = [one.life for one in found.owners]
    bug = "has the WAL-reset bug; our checkpoints are guarded" if found.wal_reset_bug else "ok"
    shown = {
        "path": found.path,
        "sqlite": f"{found.sqlite_version} ({bug})",
        "journal mode": found.journal_mode,
        "file bytes": found.file_bytes,
        "wal bytes": found.wal_bytes,
        "owners": ", ".join(f"{lives.count(life)} {life}" for life in sorted(set(lives))) or "none",
        "interrupted runs": found.interrupted_runs,
        "waits open": found.waits_open,
        "inbox": found.inbox,
    }
    ends = [f"Problem: {problem}" for problem in found.problems]
    words = "\n".join(ends) if ends else "No problem found."
    return f"{fields(shown)}\n\n{visible(words)}" + (f"\n{count(len(ends), 'problem')}" if len(ends) > 1 else "")
