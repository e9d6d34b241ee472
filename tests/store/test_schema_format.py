"""The format travels: dumps load again, and SQLite 3.37 understands all of it."""

from __future__ import annotations

import re
import sqlite3

from .schema_kit import SCHEMA, SchemaFile, schema_sql

# What came after 3.37 (JSON arrows, functions, joins, number separators), with the release that brought it.
TOO_NEW = {
    r"->": "3.38", r"\bunixepoch\s*\(": "3.38", r"\bformat\s*\(": "3.38", r"\bIS (NOT )?DISTINCT FROM\b": "3.39",
    r"\b(RIGHT|FULL)\s+(OUTER\s+)?JOIN\b": "3.39", r"\bunhex\s*\(": "3.41", r"\bjson_error_position\s*\(": "3.42",
    r"\bsubsec\b": "3.42", r"\boctet_length\s*\(": "3.43", r"\btimediff\s*\(": "3.43", r"\bconcat(_ws)?\s*\(": "3.44",
    r"\bstring_agg\s*\(": "3.44", r"\bjsonb": "3.45", r"\d_\d": "3.46", r"\bjson_pretty\s*\(": "3.46",
    r"\bif\s*\(": "3.48", r"\bunistr": "3.50",
}  # fmt: skip


def filled(file: SchemaFile) -> None:
    pk = file.session("s", max_events_per_run=2)
    root = file.live_branch(pk)
    file.fact(root, "k1", '{"text":"it\'s \u00e9\\u0000"}')
    file.fact(file.branch_from(root, 1), "k2")
    run = file.run(pk, "r")
    file.insert("blob", sha256="aa", size=3, bytes=b"\0'x")
    file.insert("blob_ref", session_pk=pk, sha256="aa")
    for _ in range(3):
        file.event(pk, run)
        file.trace(pk)
    file.delta(run)
    file.task(pk, "t", status="completed", finished_ms=1)
    file.event_in(run_id="r", request_id="q", ts_ms=5)


def objects(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY 1, 2").fetchall()


def test_a_dump_of_the_schema_loads_again() -> None:
    file, copy = SchemaFile(), sqlite3.connect(":memory:")
    copy.executescript("\n".join(file.db.iterdump()))
    assert objects(copy) == objects(file.db)
    assert len(objects(copy)) > 80
    copy.close()
    file.db.close()


def test_a_dump_with_rows_is_the_same_each_time_and_its_rows_load_again() -> None:
    """Tables come before triggers in a dump, so rows go in as they are; generated columns are not part of it."""
    first, second = SchemaFile(), SchemaFile()
    filled(first)
    filled(second)
    dump = list(first.db.iterdump())
    assert dump == list(second.db.iterdump())
    copy = sqlite3.connect(":memory:", isolation_level=None)
    copy.executescript("\n".join(dump))
    assert objects(copy) == objects(first.db)
    for table in first.tables:
        rows = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert copy.execute(rows).fetchall() == first.all(rows), table
    for db in (first.db, second.db, copy):
        db.close()


def test_no_syntax_is_newer_than_the_floor() -> None:
    files = [*SCHEMA.glob("*.sql"), *SCHEMA.glob("statements/*.sql"), *SCHEMA.glob("migrations/*.sql")]
    assert len(files) >= 3
    for path in files:
        text = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
        code = re.sub(r"'(''|[^'])*'", "''", text)
        found = {f"{pattern} ({release})" for pattern, release in TOO_NEW.items() if re.search(pattern, code, re.I)}
        assert not found, path.name


def test_the_check_of_the_syntax_bites() -> None:
    for sample in ("a ->> '$.x'", "unixepoch()", "octet_length(x)", "a IS NOT DISTINCT FROM b", "1_000", "FULL JOIN t"):
        assert any(re.search(pattern, sample, re.I) for pattern in TOO_NEW), sample


def test_every_table_is_strict_and_every_trigger_comes_from_triggers_sql() -> None:
    file = SchemaFile(schema_sql(triggers=""))
    tables = file.all("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    assert tables and all(re.search(r"\) STRICT(, WITHOUT ROWID)?$", sql) for (sql,) in tables)
    assert file.one("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'") == 0
    assert all(re.search(r"WITHOUT ROWID$", sql) is None or "payload" not in sql for (sql,) in tables)
    file.db.close()
