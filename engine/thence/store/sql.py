"""The file format as text: DDL, named statements and migrations, read once from ``schema/`` (§8).

A statement file holds blocks: a line ``-- name: fact_append``, comment lines that give the reason, then one SQL
statement with ``:named`` parameters. ``schema/`` is data that other languages read too, so nothing in it is Python.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import StoreError

SCHEMA_VERSION = 1
"""``PRAGMA user_version`` of a file of this version."""

APPLICATION_ID = 0x54484E43
"""``PRAGMA application_id`` of our files: the letters THNC."""

_NAME = re.compile(r"^-- name:\s*(\S+)\s*$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")
_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named SQL statement. ``counts`` says that the driver reports how many rows it changed."""

    name: str
    sql: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Migration:
    """The script that takes a file from ``version - 1`` to ``version``."""

    version: int
    name: str
    script: str


@dataclass(frozen=True, slots=True)
class Schema:
    """Everything that ``schema/`` says to a store of one version. ``fingerprint`` is that of the objects which
    ``script`` makes (see `refuse`), if somebody has made them with just this script and written it down."""

    script: str
    statements: Mapping[str, Statement]
    migrations: tuple[Migration, ...] = ()
    version: int = SCHEMA_VERSION
    fingerprint: str | None = None

    def statement(self, name: str) -> Statement:
        """The statement called ``name``.

        Raises:
            StoreError: there is none.
        """
        found = self.statements.get(name)
        if found is None:
            raise StoreError(f"schema/statements has no statement named '{name}'")
        return found


def load(directory: Path | None = None) -> Schema:
    """Read a schema: ours, or the one in ``directory`` (tests).

    Raises:
        StoreError: a file is missing, a name is there twice, or a block has no statement.
    """
    return _ours() if directory is None else _read(directory)


@cache
def _ours() -> Schema:
    # Plain paths: importlib.resources alone takes longer to import than all of this to read.
    package = Path(__file__).resolve().parents[1]
    packaged = package / "schema"
    return _read(packaged if packaged.is_dir() else package.parents[1] / "schema")


def own(name: str) -> str:
    """The text of a statement in ``store.sql``: what the store asks for itself.

    Raises:
        StoreError: there is none.
    """
    found = _own().get(name)
    if found is None:
        raise StoreError(f"store.sql has no statement named '{name}'")
    return found


@cache
def _own() -> Mapping[str, str]:
    text = Path(__file__).with_name("store.sql").read_text("utf-8")
    return {statement.name: statement.sql for statement in parse(text, "store.sql")}


def _read(folder: Path) -> Schema:
    try:
        script = "".join((folder / name).read_text("utf-8") for name in ("tables.sql", "views.sql", "triggers.sql"))
    except OSError as error:
        raise StoreError(f"the schema is incomplete: {error}") from error
    statements: dict[str, Statement] = {}
    for file in _files(folder / "statements"):
        for statement in parse(file.read_text("utf-8"), file.name):
            if statement.name in statements:
                raise StoreError(f"{file.name}: the name '{statement.name}' is taken")
            statements[statement.name] = statement
    migrations = tuple(
        Migration(int(match[1]), file.name, file.read_text("utf-8"))
        for file in _files(folder / "migrations")
        if (match := _MIGRATION.match(file.name))
    )
    return Schema(script, statements, migrations, fingerprint=_fingerprint(folder, script))


def _fingerprint(folder: Path, script: str) -> str | None:
    file = folder / "fingerprint.txt"
    of_script, _, of_objects = file.read_text("utf-8").strip().partition(" ") if file.is_file() else ("", "", "")
    return of_objects if of_script == hashlib.sha256(script.encode()).hexdigest() else None


def parse(text: str, source: str) -> list[Statement]:
    """The statements of one file, in its order; ``source`` is its name, for messages.

    Raises:
        StoreError: text before the first name, or a name without a statement.
    """
    before, *parts = _NAME.split(text)
    if _code(before):
        raise StoreError(f"{source}: SQL before the first '-- name:'")
    found: list[Statement] = []
    for name, block in zip(parts[::2], parts[1::2], strict=True):
        sql = _code(block)
        if not sql:
            raise StoreError(f"{source}: '{name}' has no statement")
        found.append(Statement(name, sql, sql.upper().startswith(_CHANGES)))
    return found


def _code(block: str) -> str:
    # the driver looks at the first word to know whether a statement changes rows, so comments go
    lines = [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";").rstrip()


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
