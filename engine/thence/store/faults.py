"""What SQLite says, in our words (§1, §8): no caller ever sees a bare sqlite3 error."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ..errors import DiskFull, FactConflict, FileRefused, FileReplaced, OwnershipLost, StoreError
from ..plan import PlanRefused

_MARK = "thence:"
_LOCK_ERRORS = frozenset(
    {
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMLOCK,
        sqlite3.SQLITE_IOERR_SHMMAP,
    }
)
_REFUSALS: dict[str, type[StoreError]] = {"OWNERSHIP_LOST": OwnershipLost, "FACT_CONFLICT": FactConflict}

BAD_VALUES = (OverflowError, UnicodeError, ValueError, TypeError)
"""What sqlite3 raises, beside its own errors, when a value cannot be bound."""


READ_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises: the second when SQLite's own message quotes bytes that are no text."""


def primary(error: sqlite3.Error) -> int:
    """The primary result code, 0 where SQLite was never asked."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corruption(error: BaseException) -> bool:
    """The file itself is damaged: asking again cannot help."""
    return isinstance(error, sqlite3.Error) and primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def breaks_connection(error: BaseException) -> bool:
    """After an I/O error nobody knows what the kernel still holds: the connection is given up."""
    return isinstance(error, sqlite3.Error) and primary(error) == sqlite3.SQLITE_IOERR


RESTORE = "restore a copy, or read what is left of it with sqlite3"
"""The way out of damage, in the same words everywhere."""


def corrupt_message(path: Path | None, detail: object) -> str:
    """Names the file and the way out, once and the same everywhere."""
    return f"{path or 'the database in memory'} is damaged ({detail}). Stop every process that uses it, then {RESTORE}"


def refusal(code: str, message: str) -> StoreError:
    """The error for a refusal inside SQLite: ``code`` as in ``thence:CODE message``."""
    kind = _REFUSALS.get(code)
    return PlanRefused(code, message) if kind is None else kind(message)


def translate(error: BaseException, path: Path | None, doing: str) -> StoreError:
    """The typed error for ``error``, raised while ``doing`` something (a statement's name, mostly)."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, MemoryError):
        return StoreError(f"out of memory ({doing})", retryable=True)
    if isinstance(error, UnicodeDecodeError):
        return StoreError(corrupt_message(path, error))
    if not isinstance(error, sqlite3.Error):
        return StoreError(f"'{doing}' was given a value that SQLite cannot hold: {error}")
    return _from_sqlite(error, path, doing)


def _from_sqlite(error: sqlite3.Error, path: Path | None, doing: str) -> StoreError:
    code, extended, text = primary(error), getattr(error, "sqlite_errorcode", 0), str(error)
    where = path or "memory"
    if code == sqlite3.SQLITE_CONSTRAINT:
        if text.startswith(_MARK):
            name, _, message = text.removeprefix(_MARK).partition(" ")
            return refusal(name, f"{message} ('{doing}')")
        return PlanRefused("CONSTRAINT", f"{text} ('{doing}')")
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"no space left for {where}: free some and go on ('{doing}')", retryable=True)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"{where} stayed locked by another process: {text} ('{doing}')", retryable=True)
    if is_corruption(error):
        return StoreError(corrupt_message(path, text))
    if extended == sqlite3.SQLITE_READONLY_DBMOVED:
        return FileReplaced(f"{where} was moved or replaced while open")
    if extended in _LOCK_ERRORS:
        return FileRefused("locking", f"{where}: file locks do not work here: {text} ({error.sqlite_errorname})")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM):
        return StoreError(f"{where}: {text} ({error.sqlite_errorname}, '{doing}')", retryable=True)
    if code == sqlite3.SQLITE_READONLY:
        return StoreError(f"{where} is read-only for this process: {text} ('{doing}')")
    return StoreError(f"{where}: {text} ('{doing}')")
