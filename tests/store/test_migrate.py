"""An older file: one transaction, one backup, nobody else at work."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from thence.errors import FileRefused, MigrationBlocked, SchemaChanged, StoreError
from thence.store.migrate import backup_path, schema_text
from thence.store.readonly import ReadOnlyStore
from thence.store.sql import Migration, load
from thence.store.sqlite import SqliteStore

OLD = load()
TABLE = "CREATE TABLE extra(x INTEGER NOT NULL) STRICT;\n"
INDEX = "CREATE INDEX extra_x ON extra(x);\n"
STEPS = (
    Migration(2, "0002_extra.sql", TABLE + "INSERT INTO extra VALUES(7);\n"),
    Migration(3, "0003_index.sql", INDEX),
)
NEW = replace(OLD, script=OLD.script + TABLE + INDEX, migrations=STEPS, version=3)


@pytest.fixture
def old(tmp_path, say):
    store = SqliteStore(tmp_path / "a.db", "old")
    store.commit(say.add("kept"))
    store.close()
    return tmp_path / "a.db"


def text(path):
    connection = sqlite3.connect(path)
    try:
        return schema_text(connection)
    finally:
        connection.close()


def test_migrated_is_fresh(old, say, open_store, tmp_path):
    store = open_store(old, schema=NEW)
    assert "kept" in store.read(say.names)
    store.commit(say.add("after"))
    open_store(tmp_path / "fresh.db", schema=NEW).close()
    store.close()
    assert text(old) == text(tmp_path / "fresh.db")
    assert sqlite3.connect(old).execute("PRAGMA user_version").fetchone() == (3,)
    assert sqlite3.connect(old).execute("SELECT x FROM extra").fetchall() == [(7,)]


def test_one_private_backup_that_is_a_whole_old_file(old, say, open_store):
    open_store(old, schema=NEW)
    copy = backup_path(old, 1)
    assert [entry.name for entry in old.parent.glob("*backup*")] == [copy.name]
    assert copy.stat().st_mode & 0o777 == 0o600
    store = open_store(copy)
    assert "kept" in store.read(say.names)


def test_others_at_work_are_named(old, say, open_store):
    busy = open_store(old, owner="the-other-one")
    before = text(old)
    with pytest.raises(MigrationBlocked, match="the-other-one") as blocked:
        SqliteStore(old, "me", schema=NEW)
    assert blocked.value.retryable
    assert text(old) == before
    assert not list(old.parent.glob("*backup*"))
    busy.commit(say.add("goes on"))
    busy.close()
    assert "goes on" in open_store(old, schema=NEW).read(say.names)


def test_a_failing_step_changes_nothing(old, say, open_store):
    before = text(old)
    bad = replace(NEW, migrations=(STEPS[0], Migration(3, "0003_bad.sql", INDEX + "INSERT INTO nowhere VALUES(1);\n")))
    with pytest.raises(StoreError, match="nowhere"):
        SqliteStore(old, "me", schema=bad)
    assert text(old) == before
    assert not list(old.parent.glob("*backup*"))
    assert "kept" in open_store(old).read(say.names)


def test_a_gap_in_the_migrations(old):
    with pytest.raises(StoreError, match="no migration"):
        SqliteStore(old, "me", schema=replace(NEW, migrations=STEPS[1:]))


def test_readers_do_not_migrate_and_old_code_refuses(old, open_store):
    with pytest.raises(StoreError, match="opening it with an Agent"):
        ReadOnlyStore(old, schema=NEW)
    open_store(old, schema=NEW).close()
    with pytest.raises(FileRefused, match="schema 3 > 1"):
        SqliteStore(old, "me")


def test_migrated_behind_our_back(old, say, open_store):
    """Somebody whose owner file we cannot see: the next write notices."""
    store = open_store(old)
    store.commit(say.add("a"))
    other = sqlite3.connect(old)
    other.executescript(TABLE + "PRAGMA user_version=3;")
    other.close()
    with pytest.raises(SchemaChanged, match="version 3"):
        store.commit(say.add("b"))
