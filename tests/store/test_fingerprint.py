"""A file that holds exactly our objects is known without making them; every other one is compared (§8)."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from thence.errors import FileRefused
from thence.store import refuse
from thence.store.sql import load
from thence.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[2]


def current() -> str:
    """What schema/fingerprint.txt must hold."""
    script = load().script
    return f"{hashlib.sha256(script.encode()).hexdigest()} {refuse.fingerprint(refuse.expected_objects(script))}\n"


def test_the_fingerprint_is_that_of_the_schema() -> None:
    written = (ROOT / "schema" / "fingerprint.txt").read_text()
    assert written == current(), "the schema changed: put the second line of this comparison there"


def test_it_is_what_opening_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(tmp_path / "a.db", "me").close()

    def never(script: str) -> None:
        raise AssertionError("made all objects")

    monkeypatch.setattr(refuse, "expected_objects", never)
    SqliteStore(tmp_path / "a.db", "me").close()


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine(x)",
        "CREATE INDEX mine ON fact(ts_ms)",
        "CREATE VIEW mine AS SELECT 1",
    ],
)
def test_a_users_own_objects_are_compared_and_allowed(tmp_path: Path, change: str) -> None:
    SqliteStore(tmp_path / "a.db", "me").close()
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute(change)
    db.close()
    SqliteStore(tmp_path / "a.db", "me").close()


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER fact_no_update",
        "DROP INDEX fact_key",
        "ALTER TABLE trace ADD COLUMN x TEXT",
        "CREATE TRIGGER mine AFTER INSERT ON fact BEGIN SELECT 1; END",
    ],
)
def test_a_change_to_ours_is_refused(tmp_path: Path, change: str) -> None:
    SqliteStore(tmp_path / "a.db", "me").close()
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute(change)
    db.close()
    with pytest.raises(FileRefused) as refused:
        SqliteStore(tmp_path / "a.db", "me")
    assert refused.value.reason == "schema_mismatch"


def test_a_fingerprint_of_another_script_counts_for_nothing(tmp_path: Path) -> None:
    for name in ("tables.sql", "views.sql", "triggers.sql"):
        (tmp_path / name).write_text((ROOT / "schema" / name).read_text())
    (tmp_path / "fingerprint.txt").write_text(current())
    (tmp_path / "statements").mkdir()
    assert load(tmp_path).fingerprint == current().split()[1]
    with (tmp_path / "views.sql").open("a") as views:
        views.write("-- one more line\n")
    assert load(tmp_path).fingerprint is None
    (tmp_path / "fingerprint.txt").unlink()
    assert load(tmp_path).fingerprint is None
    objects = refuse.expected_objects(load().script)
    assert refuse.fault_in(objects, replace(load(), fingerprint="another")) is None
