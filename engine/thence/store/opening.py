"""From a path that passed to a connection that may write: made, brought up to date, verified (§8)."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path

from ..errors import FileRefused, SchemaChanged
from ..plan import Op, Plan
from . import refuse
from .checkpoint import wal_limit_bytes
from .connect import connect_writer, create_schema, sync_directory
from .faults import READ_FAILURES, translate
from .migrate import migrate
from .sql import Schema


def prepare(path: Path, state: refuse.State, schema: Schema, *, owner: str, mode_of: Path) -> sqlite3.Connection:
    """Make the schema of a new file, or migrate an older one; the connection that did it is open still.

    Raises:
        StoreError: it could not be done; the file is as it was, or a new file is still empty.
    """
    connection = _connect(path, mode_of, create=True)
    try:
        if state == "new":
            create_schema(connection, schema)
            # without it a power cut may take the file's name, and everything acknowledged with it
            sync_directory(path.parent)
        else:
            migrate(connection, path, owner=owner, migrations=schema.migrations, version=schema.version)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error | OSError):
            raise translate(error, path, "opening") from error
        raise
    return connection


def connect_verified(
    path: Path, schema: Schema, *, mode_of: Path, connection: sqlite3.Connection | None = None
) -> sqlite3.Connection:
    """A writing connection to a file whose schema is ours: at opening, and again after an I/O error.

    ``connection`` is one that is open already and still to be verified.

    Raises:
        FileRefused: it is not, any more.
        StoreError: it cannot be opened.
    """
    if connection is None:
        connection = _connect(path, mode_of, create=False)
    try:
        if refuse.examine(connection, path, schema) != "current":
            raise SchemaChanged(f"{path}: another schema than a moment ago")
    except BaseException as error:
        connection.close()
        if isinstance(error, READ_FAILURES):
            raise translate(error, path, "opening") from error
        raise
    return connection


def _connect(path: Path, mode_of: Path, *, create: bool) -> sqlite3.Connection:
    limit = wal_limit_bytes(sqlite3.sqlite_version_info)
    return connect_writer(path, mode_of=mode_of, create=create, wal_limit_bytes=limit)


def verify(connection: sqlite3.Connection, path: Path | None, schema: Schema) -> None:
    """The schema's cookie moved: by a user's own table, or by a change to ours?

    Raises:
        SchemaChanged: ours are not what they were.
    """
    try:
        found = refuse.read_objects(connection, path)
    except FileRefused as error:
        raise SchemaChanged(str(error)) from error
    fault = refuse.fault_in(found, schema)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if fault is None and version != schema.version:
        fault = f"its schema is version {version} now"
    if fault is not None:
        raise SchemaChanged(f"{path}: changed while open: {fault}; nothing was written")


def introduction(owner: str, schema: Schema) -> Plan:
    """The owner's row, for people: it goes in with the first thing that the store writes."""
    if "owner_add" not in schema.statements:
        return Plan(())
    program = os.path.basename((getattr(sys, "argv", None) or [""])[0]) or "python"
    row = {"owner": owner, "pid": os.getpid(), "program": program, "since_ms": time.time_ns() // 1_000_000}
    return Plan((Op("owner_add", (row,)),))
