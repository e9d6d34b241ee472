"""Sessions that had callables of their host, which no command line has (§2)."""

from __future__ import annotations

from ..session_options import CALLABLES, WITHOUT, SessionOptions


def without_callables() -> SessionOptions:
    """Options that open a session without what it had and no file can hold: its guard, its policy, its verifier."""
    return SessionOptions(**dict.fromkeys(CALLABLES, WITHOUT))
