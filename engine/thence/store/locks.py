"""Kernel locks beside the database: who is alive, and whose turn it is (§8).

Whole-file locks of the kernel's (flock, LockFileEx), which end with the process and with nothing else, and which a
stray ``close()`` elsewhere in the process cannot drop as it drops POSIX record locks. Never on the database itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Literal

from ..errors import FileRefused

if sys.platform != "win32":
    import fcntl

_portable: bool = sys.platform == "win32"

GATE_WAIT_S = 1.0
"""Longest wait for a turn: the gate is for fairness, a stopped process must not stop the others."""

GATE_REST_S = 10.0
"""After a wait in vain, so long nobody waits for the gate again: a process that was stopped with it in its hand costs
the others a moment, not a moment for each commit."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock on an open file, or return False when somebody else has it. Never waits.

    Raises:
        OSError: locks do not work on this file.
    """
    if _portable:
        return _try_portable(descriptor, shared=shared)
    # the standard library where it can: the portable one costs 24 µs a commit here, this 4
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give the lock back.

    Raises:
        OSError: the descriptor is not open.
    """
    if _portable:
        import portalocker

        portalocker.unlock(descriptor)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _try_portable(descriptor: int, *, shared: bool) -> bool:
    import portalocker
    from portalocker.exceptions import AlreadyLocked, LockException

    kind = portalocker.LockFlags.SHARED if shared else portalocker.LockFlags.EXCLUSIVE
    try:
        portalocker.lock(descriptor, kind | portalocker.LockFlags.NON_BLOCKING)
    except AlreadyLocked:
        return False
    except LockException as error:
        raise OSError(str(error)) from error
    return True


def open_private(path: Path) -> int:
    """Open a side file of ours, made 0600 whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    if sys.platform != "win32" and os.fstat(descriptor).st_mode & 0o777 != 0o600:
        # only bits that the umask took; a file of somebody else's stays as it is
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o600)
    return descriptor


def owner_path(path: Path, owner: str) -> Path:
    """The owner file of ``owner`` beside the database ``path``."""
    return path.with_name(f"{path.name}-owner-{owner}")


def gate_paths(path: Path) -> tuple[Path, Path]:
    """The two files of the gate beside the database ``path``."""
    return path.with_name(path.name + "-gate-next"), path.with_name(path.name + "-gate")


def probe(path: Path, owner: str) -> Literal["alive", "dead"]:
    """Whether the process called ``owner`` lives. The file of a dead one is removed.

    A shared lock, so that two that ask at once do not take each other for the owner.

    Raises:
        OSError: the file cannot be examined; nothing is known then.
    """
    file = owner_path(path, owner)
    try:
        descriptor = os.open(file, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return "dead"
    except PermissionError:
        # another user's: it exists, and taking over from the living is the worse mistake
        return "alive"
    try:
        if not try_lock(descriptor, shared=True):
            return "alive"
        with contextlib.suppress(OSError):  # gone already, or not ours to remove: dead all the same
            file.unlink()
        return "dead"
    finally:
        os.close(descriptor)


def look(path: Path, owner: str) -> Literal["alive", "dead", "unknown"]:
    """As :func:`probe`, for whoever only looks: this removes nothing, and says when it cannot tell."""
    try:
        descriptor = os.open(owner_path(path, owner), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return "dead"
    except (OSError, ValueError):
        return "unknown"
    try:
        return "dead" if try_lock(descriptor, shared=True) else "alive"
    except OSError:
        return "unknown"
    finally:
        os.close(descriptor)


def living_owners(path: Path, *, besides: str) -> list[str]:
    """Names of the other processes that hold an owner file beside ``path``."""
    prefix = owner_path(path, "").name
    names = [entry.name.removeprefix(prefix) for entry in os.scandir(path.parent) if entry.name.startswith(prefix)]
    return sorted(name for name in names if name != besides and probe(path, name) == "alive")


def _try_record_lock(descriptor: int) -> None:
    # SQLite takes record locks and waits 30 s where there are none; so ask first, on a file of ours
    if sys.platform != "win32":
        # held elsewhere: they work
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 30)


class OwnerFile:
    """The lock that says this process lives, held from construction to :meth:`release`.

    Raises:
        FileRefused: ``locking``: the lock cannot be had.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = owner_path(path, owner)
        self._descriptor = -1
        try:
            # whoever probes in the moment before the lock takes the file for a dead one's and removes it
            for _ in range(100):
                self._descriptor = open_private(self.path)
                if try_lock(self._descriptor) and self._is_at_its_path():
                    _try_record_lock(self._descriptor)
                    return
                self.forget()
                time.sleep(0.001)
        except OSError as error:
            self.release()
            raise FileRefused("locking", f"{self.path}: file locks do not work here: {error}") from error
        raise FileRefused("locking", f"{self.path}: another process has the owner name '{owner}'")

    def _is_at_its_path(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        here = os.fstat(self._descriptor)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        """Remove the file and give the lock back. May be called again."""
        if self._descriptor < 0:
            return
        if sys.platform == "win32":
            self.forget()
        # already removed by somebody, or the folder is gone: nothing left that could call us alive
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close the descriptor only: in a forked child the lock stays with the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Gate:
    """A fair queue between processes, for one transaction at a time; correctness never depends on it.

    Two locks make a turnstile: take the first, wait for the second, let the first go. Whoever just had the second
    finds the first one taken by the process that waits, so it cannot overtake.
    """

    def __init__(self, path: Path) -> None:
        following, turn = gate_paths(path)
        self.held = self._following = False
        self._next = self._turn = -1
        self._resting_until = 0.0
        try:
            self._next, self._turn = open_private(following), open_private(turn)
        except OSError:
            # no gate can be made here: go on without
            self.forget()

    def enter(self) -> None:
        """Wait for our turn, at most :data:`GATE_WAIT_S` for each lock, then go on whatever came of it."""
        if self._turn < 0 or self.held:
            return
        # said before it is so: an interrupt may come between, and giving back what we do not hold does no harm
        self.held = self._following = True
        try:
            if try_lock(self._next) or self._wait(self._next, 0.0005):
                if not try_lock(self._turn):
                    self._wait(self._turn, 0.0001)
                unlock(self._next)
                self._following = False
        except OSError:
            self.forget()

    def _wait(self, descriptor: int, pause_s: float) -> bool:
        now = time.monotonic()
        if now < self._resting_until:
            return False
        while time.monotonic() < now + GATE_WAIT_S:
            time.sleep(pause_s)
            if try_lock(descriptor):
                return True
            pause_s = min(pause_s * 1.5, 0.005)
        self._resting_until = time.monotonic() + GATE_REST_S
        return False

    def leave(self) -> None:
        """Let the next one in. Does nothing when the gate is not held."""
        if not self.held:
            return
        try:
            unlock(self._turn)
            if self._following:
                unlock(self._next)
        except OSError:
            self.forget()
        self.held = False

    def forget(self) -> None:
        """Close the descriptors without unlocking: in a forked child the turn stays the parent's."""
        self.held = False
        descriptors, self._next, self._turn = (self._next, self._turn), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
