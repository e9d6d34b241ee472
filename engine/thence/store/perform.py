"""Performing one plan's statements on a cursor, inside somebody's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ..errors import StoreError, ThenceError
from ..plan import Op, Plan, Query, Returned, Rows, Select, T
from .faults import BAD_VALUES, READ_FAILURES, RESTORE, refusal, translate
from .sql import Schema, own

FAILURES = (sqlite3.Error, sqlite3.Warning, MemoryError, StoreError, *BAD_VALUES)
"""What a statement may raise; everything else is an interrupt or a fault of ours."""


def perform(cursor: sqlite3.Cursor, plan: Plan, schema: Schema, path: Path | None) -> Returned:
    """Perform all of ``plan``; on an error some of it may be done, and the caller rolls back.

    Raises:
        StoreError: with the statement's name; ``__cause__`` is what SQLite said.
    """
    returned: list[Rows] = []
    for op in plan.ops:
        statement = schema.statements.get(op.statement) or schema.statement(op.statement)
        rows = op.rows
        try:
            if op.returning:
                found: Rows = []
                for row in rows:
                    found.extend(cursor.execute(statement.sql, row))
                returned.append(found)
                changed = len(found)
            elif len(rows) == 1:
                changed = cursor.execute(statement.sql, rows[0]).rowcount
            elif statement.counts:
                changed = cursor.executemany(statement.sql, rows).rowcount
            else:
                changed = -1
                for row in rows:
                    cursor.execute(statement.sql, row)
        except FAILURES as error:
            raise translate(error, path, op.statement) from error
        if op.expect is not None and op.expect != changed:
            _check(cursor, op, changed)
    return tuple(returned)


def _check(cursor: sqlite3.Cursor, op: Op, changed: int) -> None:
    if changed < 0 and len(op.rows) == 1:
        # the driver counts only what starts with INSERT, UPDATE, DELETE or REPLACE
        changed = cursor.execute(own("row_changes")).fetchone()[0]
    if changed < 0:
        raise StoreError(f"'{op.statement}' cannot be counted over several rows")
    if changed != op.expect:
        raise refusal(op.refusal, f"'{op.statement}' changed {changed} row(s) where {op.expect} must change")


def decode(query: Query[T], rows: Sequence[Rows], path: Path | None) -> T:
    """The value that ``rows`` stand for.

    Raises:
        StoreError: rows that no version of ours can have written: the file is damaged.
    """
    try:
        return query.decode(rows)
    except ThenceError:
        raise
    except Exception as error:
        names = ", ".join(select.statement for select in query.selects)
        where = "the database in memory" if path is None else str(path)
        raise StoreError(
            f"{where}: what {names} found cannot be read ({error!r}); the file is damaged: {RESTORE}"
        ) from error


def read_snapshot(connection: sqlite3.Connection, query: Query[T], schema: Schema, path: Path | None) -> list[Rows]:
    """The rows of all of ``query``'s reads, from one snapshot.

    Raises:
        StoreError: a read failed; no transaction stays open.
    """
    selects = query.selects
    if len(selects) == 1:
        # one statement read to its end is a snapshot of its own
        return [_select(connection, selects[0], schema, path)]
    try:
        connection.execute("BEGIN")
        rows = [_select(connection, select, schema, path) for select in selects]
        connection.execute("COMMIT")
    except READ_FAILURES as error:
        raise translate(error, path, "reading") from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return rows


def _select(connection: sqlite3.Connection, select: Select, schema: Schema, path: Path | None) -> Rows:
    try:
        return connection.execute(schema.statement(select.statement).sql, select.params).fetchall()
    except FAILURES as error:
        raise translate(error, path, select.statement) from error
