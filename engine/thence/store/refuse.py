"""What is refused, before anything is opened for writing (§8, Opening refuses).

A refused file keeps every byte and gets no file beside it. So the first look is with ``immutable=1`` where there is
no -wal: SQLite then takes no lock and makes no -shm.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

from ..errors import FileRefused
from .connect import connect_reader, split, uri
from .faults import READ_FAILURES, corrupt_message, is_corruption, translate
from .sql import APPLICATION_ID, Schema, own

State: TypeAlias = Literal["new", "current", "older"]
Objects: TypeAlias = dict[str, tuple[str, str, "str | None"]]
"""By lower-case name: type, lower-case table, and the SQL text."""

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "drvfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_place(path: Path, *, allow_network_fs: bool, write: bool = True) -> None:
    """Refuse by what the file system says of ``path`` (resolved), without opening anything.

    Raises:
        FileRefused: ``missing_folder``, ``not_a_file``, ``not_a_database``, ``corrupt``, ``read_only`` or
            ``network_file_system``.
    """
    folder = path.parent
    if not folder.is_dir():
        raise FileRefused("missing_folder", f"{path}: the folder {folder} does not exist; make it first")
    size = _size(path)
    if size is not None and 0 < size < 512:
        raise FileRefused("not_a_database", f"{path}: not a database ({size} bytes); name another path")
    if not size:
        _refuse_orphan_wal(path)
    if write:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FileRefused("read_only", f"{path}: cannot write in the folder {folder}; the -wal must live there")
        if size is not None and not os.access(path, os.R_OK | os.W_OK):
            raise FileRefused("read_only", f"{path}: cannot be read and written by this user; change its mode or owner")
    kind = network_kind(path)
    if kind is not None and not allow_network_fs:
        raise FileRefused(
            "network_file_system",
            f"{path}: on a network or pass-through file system ({kind}), where locks and the WAL cannot be relied on; "
            f"move it to a local disk, or pass allow_network_fs=True if one machine alone uses it",
        )


def _size(path: Path) -> int | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileRefused("not_a_file", f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused("not_a_file", f"{path}: not a regular file; name a file")
    return status.st_size


def _refuse_orphan_wal(path: Path) -> None:
    # SQLite would delete it, and it may be all that is left of somebody's sessions
    wal = path.with_name(path.name + "-wal")
    if wal_size(path) and not _size(path):
        raise FileRefused("corrupt", f"{path}: the database of {wal.name} is gone; bring it back or move {wal} away")


def wal_size(path: Path) -> int:
    """Bytes of the -wal beside ``path``, 0 where there is none."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def network_kind(path: Path, mountinfo: str | None = None) -> str | None:
    """The file system type under ``path`` if it is a network or pass-through one.

    Linux: the mount table (``mountinfo``, for tests). Windows: a UNC path. Elsewhere nobody tells us.
    """
    if sys.platform == "win32":
        return "unc" if str(path).startswith("\\\\") else None
    if mountinfo is None:
        if not sys.platform.startswith("linux"):
            return None
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    kind = _mount_kind(os.path.realpath(path), mountinfo)
    if kind is None or not (kind in _NETWORK or kind.startswith("fuse")):
        return None
    return kind


def _mount_kind(path: str, mountinfo: str) -> str | None:
    best, kind = -1, None
    for line in mountinfo.splitlines():
        mount, _, tail = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not tail:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # a later mount on the same point hides the earlier one
        if inside and len(point) >= best:
            best, kind = len(point), tail.split(" ")[0]
    return kind


def probe(path: Path, schema: Schema, keep: list[sqlite3.Connection] | None = None) -> State:
    """What kind of database ``path`` (of a place that passed) holds; looks without leaving a trace.

    ``keep`` gets the connection, one that cannot write, if it may go on reading a current file: SQLite has then parsed
    the schema, which takes as long as many reads.

    Raises:
        FileRefused: ``not_a_database``, ``foreign_database``, ``newer_schema``, ``corrupt`` or ``schema_mismatch``.
    """
    if not _size(path):
        return "new"
    if _size(path.with_name(path.name + "-journal")):
        # Somebody died while making or changing the file: only SQLite's own recovery can tell what it was before.
        return _look(path, schema, mode="rw")
    if wal_size(path):
        # enough to tell a stranger's file, whose -shm we should not make
        _refuse_stranger(path)
        return _look(path, schema, keep=keep)
    try:
        return _look(path, schema, immutable=True)
    except FileRefused:
        # without locks a look beside a writer may see half a change; a -wal since then means there is one
        if not wal_size(path):
            raise
    return _look(path, schema)


def _refuse_stranger(path: Path) -> None:
    try:
        connection = connect_reader(uri(path, mode="ro", immutable="1"))
        try:
            (found,) = connection.execute("PRAGMA application_id").fetchone()
        finally:
            connection.close()
    except READ_FAILURES as error:
        refused = _refused(error, path)
        if refused.reason == "corrupt":
            return  # a kill in the middle of a checkpoint looks so, until the -wal is read with it
        raise refused from error
    if found not in (0, APPLICATION_ID):
        raise _foreign(path, found)


def _look(
    path: Path,
    schema: Schema,
    *,
    mode: str = "ro",
    immutable: bool = False,
    keep: list[sqlite3.Connection] | None = None,
) -> State:
    try:
        connection = connect_reader(uri(path, mode=mode, **({"immutable": "1"} if immutable else {})))
        kept = False
        try:
            # One snapshot for all that is asked: somebody may be making the file at this very moment.
            connection.execute("BEGIN")
            state = examine(connection, path, schema)
            connection.execute("ROLLBACK")
            if keep is not None and state == "current":
                keep.append(connection)
                kept = True
            return state
        finally:
            if not kept:
                connection.close()
    except READ_FAILURES as error:
        raise _refused(error, path) from error


def _refused(error: Exception, path: Path) -> FileRefused:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
        return FileRefused("not_a_database", f"{path}: not a database; name another path")
    if is_corruption(error) or "malformed" in str(error) or isinstance(error, UnicodeDecodeError):
        return FileRefused("corrupt", corrupt_message(path, error))
    known = translate(error, path, "opening")
    return known if isinstance(known, FileRefused) else FileRefused("read_only", f"{path}: cannot be read: {error}")


def _foreign(path: Path, application: int) -> FileRefused:
    what = f"another application's (id {application:#x})" if application else "another program's"
    return FileRefused("foreign_database", f"{path}: {what} database; name another path")


def examine(connection: sqlite3.Connection, path: Path, schema: Schema) -> State:
    """The same judgement on an open connection, in the caller's transaction if there is one.

    Raises:
        FileRefused: as :func:`probe`.
        sqlite3.Error: the file cannot be read.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    found = read_objects(connection, path)
    if application != APPLICATION_ID:
        if application or found or version:
            raise _foreign(path, application)
        return "new"
    if version > schema.version:
        raise FileRefused(
            "newer_schema",
            f"{path}: made by a newer version of thence (schema {version} > {schema.version}); upgrade thence",
        )
    if version < schema.version:
        return "older"
    fault = fault_in(found, schema)
    if fault is not None:
        raise FileRefused("schema_mismatch", f"{path}: {fault}; undo that, or restore a copy of the file")
    return "current"


def read_objects(connection: sqlite3.Connection, path: Path | None) -> Objects:
    """The whole ``sqlite_schema``.

    Raises:
        FileRefused: one name is there twice, which no SQL statement can do.
    """
    found: Objects = {}
    rows: Iterable[tuple[str, str, str, str | None]] = connection.execute(own("object_list"))
    for kind, name, table, text in rows:
        if name.lower() in found:
            raise FileRefused("schema_mismatch", f"{path}: '{name}' is in its schema twice")
        found[name.lower()] = (kind, table.lower(), text)
    return found


_known: dict[str, Objects] = {}
"""Objects by their fingerprint: a file is looked at several times while it is opened."""


def fault_in(found: Objects, schema: Schema) -> str | None:
    """What is wrong with our objects among ``found``, or None.

    Making all our objects, to compare with them, takes longer than reading a long log; a file that holds exactly them
    is known by its fingerprint. One that holds more, or anything else, is compared.
    """
    if schema.fingerprint is not None:
        if found == _known.get(schema.fingerprint):
            return None
        if fingerprint(found) == schema.fingerprint:
            _known[schema.fingerprint] = found
            return None
    return compare(found, expected_objects(schema.script))


def fingerprint(objects: Objects) -> str:
    """SHA-256 over all of ``objects``, in lower-case hexadecimal."""
    return hashlib.sha256(orjson.dumps(sorted(objects.items()))).hexdigest()


@cache
def expected_objects(script: str) -> Objects:
    """The objects that ``script`` makes in an empty database."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statement in split(script):
            connection.execute(statement)
        return read_objects(connection, None)
    finally:
        connection.close()


def compare(found: Objects, expected: Objects) -> str | None:
    """What is wrong with our objects among ``found``, or None. Other tables, indexes and views are the user's."""
    for name, ours in expected.items():
        there = found.get(name)
        if there is None:
            return f"the {ours[0]} '{name}' is missing"
        if there != ours:
            return f"the {ours[0]} '{name}' was changed, or is a {there[0]} of somebody else's"
    for name, (kind, table, _) in found.items():
        if kind == "trigger" and table in expected and name not in expected:
            return f"a foreign trigger '{name}' is on our {expected[table][0]} '{table}'"
    return None
