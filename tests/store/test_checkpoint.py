"""The WAL: folded back in time, under the guard where SQLite needs one, and never for nothing."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from thence.store.checkpoint import SOFT_BYTES, Checkpointer, has_wal_reset_bug
from thence.store.connect import MIB
from thence.store.sqlite import SqliteStore


def test_the_wal_stays_bounded(open_store, say):
    store = open_store(durability="process")
    largest = 0
    for number in range(20_000):
        store.commit(say.add(f"w{number}", durable=False))
        largest = max(largest, store.stats().wal_bytes)
    assert largest < 32 * 1024 * 1024
    assert store.stats().checkpoints > 3


def test_a_reader_in_the_way_of_checkpoints(open_store, say, tmp_path):
    store = open_store(durability="process")
    store.commit(say.add("a"))
    reader = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM owner").fetchone()
    for number in range(300):
        store.commit(say.add(f"r{number}", program="x" * 20_000))
    pinned = store.stats()
    reader.execute("COMMIT")
    reader.close()
    for number in range(1500):
        store.commit(say.add(f"s{number}", durable=False))
    assert pinned.checkpoints < 30  # it does not press on in vain
    assert store.stats().wal_bytes < pinned.wal_bytes


def test_a_large_wal_is_said_once(caplog):
    checkpointer = Checkpointer("file::memory:")
    with caplog.at_level(logging.WARNING):
        for mib in (10, 63, 64, 70, 80, 10, 65):
            checkpointer.wrote(1, mib * MIB)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("version", "guard"), [((3, 40, 1), True), ((3, 51, 2), True), ((3, 51, 3), False)])
def test_the_guard_is_the_write_lock(tmp_path, version, guard):
    path = tmp_path / "a.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t(x)")
    seen: list[str] = []
    writer.set_trace_callback(seen.append)

    def rollback() -> None:
        if guard:
            writer.execute("ROLLBACK")

    checkpointer = Checkpointer(path.as_uri(), version)
    folded = checkpointer.run(writer, rollback)
    assert folded.complete
    assert folded.frames > 0
    assert seen == (["BEGIN IMMEDIATE", "ROLLBACK"] if guard else [])
    # a reader's snapshot in the way: said so, and tried again after as much as makes one due
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM t").fetchall()
    writer.execute("INSERT INTO t VALUES(1)")
    checkpointer.wrote(0, 20 * MIB)
    assert not checkpointer.run(writer, rollback).complete
    assert not checkpointer.due(idle=True)
    checkpointer.wrote(1024, 20 * MIB)
    assert checkpointer.due(idle=False)
    connection = checkpointer.take()
    assert connection is not None
    for one in (connection, reader, writer):
        one.close()


def test_when_a_checkpoint_is_due():
    checkpointer = Checkpointer("file::memory:")
    checkpointer.wrote(1000, 4 * MIB - 1)
    assert not checkpointer.due(idle=True)
    checkpointer.wrote(1, 4 * MIB)
    checkpointer.wrote(100, 4 * MIB)
    assert checkpointer.due(idle=True)
    assert not checkpointer.due(idle=False)
    checkpointer.wrote(1, 17 * MIB)
    assert checkpointer.due(idle=False)


def test_what_a_dead_process_left_waits_for_what_we_write():
    checkpointer = Checkpointer("file::memory:")
    checkpointer.found(15 * MIB)
    checkpointer.wrote(1, 15 * MIB + 4096)
    assert not checkpointer.due(idle=True), "nothing to do before the first commits of a resumed run"
    checkpointer.wrote(1, 19 * MIB)
    assert checkpointer.due(idle=True)
    large = Checkpointer("file::memory:")
    large.found(16 * MIB)
    large.wrote(1, 16 * MIB)
    assert large.due(idle=False), "a chain of deaths does not let the -wal grow for ever"


@pytest.mark.parametrize(
    ("version", "bug"),
    [
        ((3, 37, 0), True), ((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 44, 7), False),
        ((3, 45, 0), True), ((3, 50, 6), True), ((3, 50, 7), False), ((3, 51, 0), True), ((3, 51, 2), True),
        ((3, 51, 3), False), ((3, 52, 0), False), ((4, 0, 0), False),
    ],
)  # fmt: skip
def test_which_sqlite_needs_the_guard(version, bug):
    assert has_wal_reset_bug(version) is bug


@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_checkpoints_beside_writers_lose_nothing(say, tmp_path, seconds):
    """Each process folds the WAL back after every commit: where SQLite has the WAL-reset bug, the guard must hold."""
    path = tmp_path / "a.db"
    SqliteStore(path, "maker").close()
    code = """
import thence.store.checkpoint as checkpoint
checkpoint.SOFT_BYTES = 1
s = SqliteStore(db, "o" + sys.argv[2], durability="process")
end = time.monotonic() + float(sys.argv[3])
n = 0
while time.monotonic() < end:
    s.commit(add(f"w{sys.argv[2]}-{n}")); n += 1
print(n, s.stats().checkpoints); s.close()
"""
    found = [line.split() for line in say.finish([say.spawn(code, path, number, seconds) for number in range(3)])]
    store = SqliteStore(path, "last")
    assert len(store.read(say.names)) == sum(int(count) for count, _ in found)
    store.close()
    assert sum(int(checkpoints) for _, checkpoints in found) > 100


def test_what_was_written_is_estimated_once_however_seldom_the_wal_is_looked_at():
    """A -wal that grew says what was written since the last look; where it is used again, the statements must do."""
    page = 4096
    checkpointer = Checkpointer("never opened")
    for wal_pages in (0, 0, 0, 500):
        checkpointer.wrote(10, wal_pages * page)
    assert checkpointer._written == 500 * page
    for _ in range(2):
        checkpointer.wrote(10, 500 * page)
    assert checkpointer._written == 520 * page
    checkpointer.wrote(10, 501 * page)
    assert checkpointer._written == 530 * page
    assert not checkpointer.due(idle=True)
    checkpointer.wrote(SOFT_BYTES // page, 501 * page)
    assert checkpointer.due(idle=True) and not checkpointer.due(idle=False)
