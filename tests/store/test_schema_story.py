"""schema/README.md is true: it names what there is, and its code runs on a file made here."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .schema_kit import SCHEMA, SchemaFile, schema_sql

README = (SCHEMA / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return re.split(r"^## ", README.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def first_cells(text: str) -> set[str]:
    """The names in back-ticks in the first column of a table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a session ``s``: a forked log, a finished run ``r`` with events, an open wait."""
    made = SchemaFile(schema_sql(), tmp_path / "thence.db")
    for pragma in ("journal_mode = WAL", "synchronous = OFF"):
        made.sql(f"PRAGMA {pragma}")
    pk = made.session("s")
    root = made.live_branch(pk)
    for number, text in enumerate(('{"a":"é"}', '{"b":[1,2]}', "{}")):
        made.fact(root, f"k{number}", text)
    report = '{"digest":"d","passed":true,"report":null}'
    branch = made.branch_from(root, 2)
    made.fact(branch, "other", report, kind="verification.reported")
    made.fact(branch, "short", '{"trigger":"request","summary":"what was said"}', kind="compaction.done")
    run = made.run(pk, "r")
    made.wait(pk, run, "w1")
    made.event(pk, run, '{"n":0}')
    made.end_run(run)
    made.claim(pk, None)
    made.db.close()
    return tmp_path / "thence.db"


@pytest.mark.parametrize(("kind", "title"), [("table", "Tables"), ("view", "Look inside"), ("trigger", "Triggers")])
def test_each_object_is_named_and_nothing_else(kind: str, title: str) -> None:
    file = SchemaFile()
    rows = file.all("SELECT name FROM sqlite_schema WHERE type = ? AND name NOT LIKE 'sqlite%'", kind)
    file.db.close()
    assert first_cells(section(title)) == {name for (name,) in rows}


def test_the_packed_ids_are_unpacked_by_the_columns_named(path: Path) -> None:
    db = sqlite3.connect(path)
    named = re.findall(r"`(\w+)\.(\w+)`\s+and\s+`(\w+)`", section("Tables"))
    assert {table for table, *_ in named} == {"fact", "event", "delta", "trace"}
    for table, *columns in named:
        generated = [row[1] for row in db.execute(f"PRAGMA table_xinfo({table})") if row[6] == 2]
        assert generated == columns
        wrong = db.execute(f"SELECT count(*) FROM {table} WHERE id <> {columns[0]} << 32 | {columns[1]}").fetchone()
        assert wrong == (0,)
    db.close()


def test_its_sql_runs_and_finds_what_is_there(path: Path) -> None:
    db = sqlite3.connect(path)
    for block in code("sql"):
        for statement in filter(str.strip, block.split(";\n")):
            rows = db.execute(statement).fetchall()
            assert rows or statement.startswith("INSERT INTO event_in"), statement
    db.commit()
    assert db.execute("SELECT run_id, sequence FROM events ORDER BY 1, 2").fetchall() == [(None, 0), ("r", 0), ("r", 1)]
    db.close()


def verifier() -> Callable[..., None]:
    (text,) = code("python")
    scope: dict[str, Any] = {}
    exec(compile(text, "schema/README.md", "exec"), scope)
    assert text.count("\n") <= 13  # ten lines, and what they need
    verify: Callable[..., None] = scope["verify"]
    return verify


def damaged(path: Path, trigger: str, statement: str) -> None:
    """Change the file as a damaged disk would: past the trigger that refuses it."""
    db = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError, match="thence:FACT_CONFLICT"):
        db.execute(statement)
    db.execute(f"DROP TRIGGER {trigger}")
    assert db.execute(statement).rowcount == 1
    db.close()


def test_the_chain_is_verified_by_the_lines_shown(path: Path) -> None:
    verifier()(path, "s")


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
@pytest.mark.parametrize(
    ("trigger", "statement", "message"),
    [
        ("fact_no_update", "UPDATE fact SET payload = '{\"b\":[1,3]}' WHERE key = 'k1'", "fact 2 is not"),
        ("fact_no_update", "UPDATE fact SET kind = 'tool.result' WHERE key = 'other'", "fact 3 is not"),
        ("fact_no_update", "UPDATE fact SET cause = 'k0' WHERE key = 'k0'", "fact 1 is not"),
        ("fact_no_delete", "DELETE FROM fact WHERE key = 'k1'", "fact 2 is not"),
        ("fact_no_delete", "DELETE FROM fact WHERE key = 'short'", "the log ends at 3"),
    ],
)
def test_damage_is_found_by_the_lines_shown(path: Path, trigger: str, statement: str, message: str) -> None:
    damaged(path, trigger, statement)
    with pytest.raises(AssertionError, match=message):
        verifier()(path, "s")


def test_a_pruned_log_is_verified_from_its_tombstone(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO tombstone SELECT branch_pk, seq, hash, 'compacted', 1 FROM fact WHERE key = 'k0'")
    db.execute("UPDATE branch SET pruned_to = 1 WHERE parent_pk IS NULL")
    db.execute("DELETE FROM fact WHERE key = 'k0'")
    seq, digest = db.execute("SELECT seq, hash FROM tombstone").fetchone()
    db.close()
    verifier()(path, "s", seq, digest)


def test_reading_as_shown_leaves_nothing_behind(path: Path) -> None:
    script = """import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=rw", uri=True)
db.execute("PRAGMA query_only = ON")
print(db.execute("SELECT count(*) FROM facts").fetchone()[0])
db.close()"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "4\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["thence.db"]
