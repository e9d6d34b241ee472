"""Bringing an older file to this version (§8): one transaction, one backup, nobody else at work."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ..errors import MigrationBlocked, StoreError
from .connect import connect_reader, split, stamp, sync_directory, uri
from .faults import translate
from .locks import living_owners, open_private
from .sql import Migration, own


def backup_path(path: Path, version: int) -> Path:
    """Where the copy of a file of schema ``version`` is kept when it is migrated."""
    return path.with_name(f"{path.name}-backup-v{version}")


def migrate(
    connection: sqlite3.Connection, path: Path, *, owner: str, migrations: Sequence[Migration], version: int
) -> bool:
    """Take the file to schema ``version``; False if another process did it meanwhile.

    ``connection`` writes and is in no transaction; afterwards too, whatever happened.

    Raises:
        MigrationBlocked: other processes run sessions on the file; their names are in the message.
        StoreError: there is no way from the file's version, or a statement failed; the file is as it was.
    """
    copy: Path | None = None
    try:
        # the write lock first: whoever opens the file from here on waits, then finds it done
        connection.execute("BEGIN IMMEDIATE")
        (old,) = connection.execute("PRAGMA user_version").fetchone()
        if old == version:
            return False
        steps = sorted((step for step in migrations if old < step.version <= version), key=lambda step: step.version)
        if [step.version for step in steps] != list(range(old + 1, version + 1)):
            raise StoreError(f"{path}: no migration from schema {old} to {version}")
        others = living_owners(path, besides=owner)
        if others:
            raise MigrationBlocked(
                f"{path}: schema {old} must become {version}, but others use it: {', '.join(others)}; stop them",
                retryable=True,
            )
        copy = backup_path(path, old)
        _backup(path, copy)
        for step in steps:
            for statement in split(step.script):
                connection.execute(statement)
        stamp(connection, version)
        connection.execute("COMMIT")
        return True
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if copy is not None:
            # nothing was migrated, so there is nothing to go back from
            copy.unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error | OSError):
            raise translate(error, path, "migrating") from error
        raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _backup(path: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    # SQLite fills an empty file and keeps its mode
    os.close(open_private(copy))
    # a second connection: the first one is inside its transaction, where VACUUM cannot run
    reader = connect_reader(uri(path, mode="rw"))
    try:
        # VACUUM INTO counts as a write to this connection, though not to its file
        reader.execute("PRAGMA query_only=OFF")
        reader.execute("VACUUM INTO ?", (str(copy),))
    finally:
        reader.close()
    descriptor = os.open(copy, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def schema_text(connection: sqlite3.Connection) -> list[tuple[str, str, str | None]]:
    """Type, name and SQL of every object, in one order: a migrated file and a fresh one must agree."""
    return connection.execute(own("object_text")).fetchall()
