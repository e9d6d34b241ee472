"""The command line (§13): ``thence``, or ``python -m thence``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code (§13)."""
    try:
        # a name in another encoding than the terminal's must not end the command
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        from .app import cli

        cli.main(prog_name="thence")
    except KeyboardInterrupt:
        sys.exit(130)
