"""The command line (§13): ``thence``, or ``python -m thence``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import Group


def main() -> None:
    """Run the command line and leave with its exit code (§13)."""
    try:
        # a name in another encoding than the terminal's must not end the command
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        cli = _load()
        cli.main(prog_name="thence")
    except KeyboardInterrupt:
        sys.exit(130)


def _load() -> Group:
    try:
        from .app import cli
    except KeyboardInterrupt:
        # the modules take a moment to load, and whoever is faster wants to know that no run began
        sys.stderr.write("\ninterrupted: nothing was started\n")
        raise
    return cli
