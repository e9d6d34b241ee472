"""Every connection of ours, and how a new file comes to be (§8).

All connections share one set of rules: 30 s busy timeout before anything else, manual transactions, no automatic
WAL checkpoint (see `checkpoint`), as little trust in the file as can be.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlencode

from ..errors import FileRefused
from .faults import READ_FAILURES, translate
from .sql import APPLICATION_ID, Schema, own

BUSY_TIMEOUT_S = 30.0
"""How long one statement waits for another process before it fails."""

READER_PRAGMAS = ("PRAGMA query_only=ON", "PRAGMA wal_autocheckpoint=0", "PRAGMA cache_size=-400")
"""What makes a connection one that cannot write. It reads pages once or keeps them in the file system's cache: making
room for 2 MB of its own took a fifth of the time of reading a long log."""

MIB = 1024 * 1024


def uri(path: Path, **options: str) -> str:
    """SQLite's URI for ``path``, every special character quoted."""
    return f"{path.as_uri()}?{urlencode(options, quote_via=quote)}"


def connect(target: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """A connection in manual transaction mode, that trusts the schema as little as its SQLite lets it.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    connection = sqlite3.connect(
        target,
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        cached_statements=512,
        check_same_thread=False,
    )
    connection.execute("PRAGMA cell_size_check=ON")
    if _can_distrust():
        connection.execute("PRAGMA trusted_schema=OFF")
    return connection


@cache
def _can_distrust() -> bool:
    # some builds of SQLite call the json_valid in our own CHECKs unsafe and then cannot even parse our schema; what
    # trusted_schema stops, and more, is stopped by comparing the schema's text before the first statement
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute(own("json_probe"))
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def connect_writer(path: Path, *, mode_of: Path | None, create: bool, wal_limit_bytes: int) -> sqlite3.Connection:
    """A writing connection on a file in WAL mode.

    ``mode_of`` names a file of mode 0600: SQLite gives a new database that mode from its first instant, whatever the
    umask, and -wal and -shm take the database's.

    Raises:
        StoreError: the file cannot be opened or has no working locks.
    """
    options = {"mode": "rwc" if create else "rw"}
    if mode_of is not None:
        options["modeof"] = str(mode_of)
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(uri(path, **options))
        enter_wal(connection, path)
        _writer_pragmas(connection, wal_limit_bytes)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, READ_FAILURES):
            raise translate(error, path, "opening") from error
        raise
    return connection


def connect_memory() -> sqlite3.Connection:
    """A private database in memory."""
    connection = connect("file::memory:")
    _writer_pragmas(connection, -1)
    return connection


def connect_reader(target: str) -> sqlite3.Connection:
    """A connection that cannot write.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    connection = connect(target)
    for pragma in READER_PRAGMAS:
        connection.execute(pragma)
    return connection


def enter_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL. The switch needs the file alone and does not wait by itself, so this waits.

    Raises:
        FileRefused: the file system cannot do it.
        sqlite3.Error: still locked after the busy timeout.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.002)
            continue
        if mode != "wal":
            raise FileRefused("locking", f"{path}: this file system cannot hold a WAL database (mode '{mode}')")
        return


def _writer_pragmas(connection: sqlite3.Connection, wal_limit_bytes: int) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    # builds differ in these defaults; each of ours is what was measured or what the triggers rely on
    connection.execute("PRAGMA secure_delete=OFF")
    connection.execute("PRAGMA recursive_triggers=OFF")
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("PRAGMA cache_size=-8000")
    if wal_limit_bytes == 4 * MIB:
        connection.execute("PRAGMA journal_size_limit=4194304")
    else:
        connection.execute("PRAGMA journal_size_limit=67108864")
    if sys.platform == "darwin":
        # there fsync leaves the data in the drive's cache
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA checkpoint_fullfsync=ON")


def create_schema(connection: sqlite3.Connection, schema: Schema) -> bool:
    """Write our schema into an empty file, in one transaction; True if this call did it.

    Any number of processes may call it at once: the first one creates, the others find it done.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,):
            connection.execute("ROLLBACK")
            return False
        for statement in split(schema.script):
            connection.execute(statement)
        stamp(connection, schema.version)
        connection.execute("COMMIT")
        return True
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def stamp(connection: sqlite3.Connection, version: int) -> None:
    """Mark the file as ours, of schema ``version``, inside the caller's transaction."""
    # PRAGMA takes no parameters; both are integers of our own code
    connection.execute("PRAGMA application_id=%d" % APPLICATION_ID)  # noqa: UP031
    connection.execute("PRAGMA user_version=%d" % version)  # noqa: UP031


def split(script: str) -> list[str]:
    """The statements of a script, one by one: ``executescript`` would commit our transaction first."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    return statements


def sync_directory(folder: Path) -> None:
    """Make the names in ``folder`` durable: a new file survives a power cut only after this.

    Raises:
        OSError: the sync failed.
    """
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
