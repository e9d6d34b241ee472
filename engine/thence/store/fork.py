"""What a forked child may do with its parent's stores: nothing (§8).

SQLite's handles must not be used in a child, not even closed, and a child that unlocked or closed the wrong thing
would do so in its parent's name. So the child closes what only borrows the parent's locks, marks the store dead, and
leaks the rest.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that must die in a forked child."""

    def die_in_child(self) -> None:
        """Called in the child: let go of borrowed locks and refuse everything from now on."""
        ...


_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(store: Forkable) -> None:
    """Have ``store`` marked dead in every child forked from now on."""
    _alive.add(store)


def _after_fork_in_child() -> None:
    stores = list(_alive)
    for store in stores:
        store.die_in_child()
    for store in stores:
        leak(store)


def leak(held: object) -> None:
    """Never free ``held`` and the SQLite handles in it, not even at exit: closing them would use SQLite."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
