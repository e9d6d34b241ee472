"""Sessions that had callables of their host, which no command line has (§2)."""

from __future__ import annotations

from collections.abc import Collection

from ..options import SessionOptions
from ..permissions import PermissionPolicy


class AllowAll:
    """The budget guard of a run that its user wants without one."""


def without_callables(requires: Collection[str]) -> SessionOptions:
    """Options that open a session which demands these: everything is allowed, nobody is asked."""
    options = SessionOptions()
    if "budget_guard" in requires:
        options.budget_guard = AllowAll()
    if "permission_policy" in requires:
        options.permission_policy = PermissionPolicy(default="allow")
    return options
