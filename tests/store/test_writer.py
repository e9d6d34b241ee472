"""Group commit, syncs, interrupts, the WAL, and what a write does when the file changes under it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import threading

import pytest

from thence.errors import DiskFull, FileReplaced, SchemaChanged, StoreError
from thence.plan import PlanRefused, Store
from thence.store.samefiles import SameFiles
from thence.store.sqlite import SqliteStore


def a_store(store: SqliteStore) -> Store:
    """For the type checkers: it is one."""
    return store


def traced(store: SqliteStore) -> list[str]:
    seen: list[str] = []
    assert store._writer.connection is not None
    store._writer.connection.set_trace_callback(seen.append)
    return seen


async def test_one_bad_plan_in_a_group_fails_alone(open_store, say):
    store = open_store()
    store.commit(say.add("taken"))
    before = store.stats()
    with store._writer.lock:  # so that all of them queue up
        tasks = [asyncio.ensure_future(store.acommit(say.add(f"g{number}"))) for number in range(20)]
        tasks.insert(10, asyncio.ensure_future(store.acommit(say.add("taken"))))
        await asyncio.sleep(0.05)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(10), PlanRefused)
    assert results == [()] * 20
    assert store.stats().commits - before.commits == 20
    assert {f"g{number}" for number in range(20)} < set(store.read(say.names))


async def test_a_group_is_one_transaction(open_store, say):
    store = open_store()
    store.commit(say.add("first"))
    seen = traced(store)
    with store._writer.lock:
        tasks = [asyncio.ensure_future(store.acommit(say.add(f"g{number}"))) for number in range(50)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)
    assert 1 <= seen.count("COMMIT") <= 3  # the thread may have taken the first plan before the rest came


def test_every_writing_transaction_begins_immediate(open_store, say):
    store = open_store()
    seen = traced(store)
    for number in range(5):
        store.commit(say.add(f"a{number}", durable=number % 2 == 0))
    with pytest.raises(PlanRefused):
        store.commit(say.add("a1"))
    begun = [text for text in seen if text.upper().startswith("BEGIN")]
    assert begun == ["BEGIN IMMEDIATE"] * 6
    inside = False
    for text in seen:
        if text.startswith("BEGIN"):
            inside = True
        elif text in ("COMMIT", "ROLLBACK"):
            inside = False
        elif text.startswith(("INSERT", "UPDATE", "DELETE")):
            assert inside, text


@pytest.mark.parametrize(("durability", "syncs"), [("power", 3), ("process", 0)])
def test_only_durable_plans_are_synced(open_store, say, durability, syncs):
    store = open_store(durability=durability)
    for number in range(3):
        store.commit(say.add(f"d{number}", durable=True))
        store.commit(say.add(f"n{number}", durable=False))
    assert store.stats().syncs == syncs
    level = store._writer.connection.execute("PRAGMA synchronous").fetchone()[0]
    assert level == 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_syncs_reach_the_kernel(say, tmp_path):
    code = """
store = SqliteStore(db, "child")
store.commit(add("warm"))
for i in range(10): store.commit(add(f"n{i}", durable=False))
os.stat("/middle") if os.path.exists("/middle") else None
for i in range(10): store.commit(add(f"d{i}"))
os._exit(0)
"""
    log = tmp_path / "trace"
    watched = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=fsync,fdatasync,stat,newfstatat"]
    say.run(code, tmp_path / "a.db", under=watched)
    before, after = log.read_text().split('"/middle"', 1)
    syncs = [line for line in before.splitlines() if "sync(" in line and "a.db-wal" in line]
    # the schema, and one plan that was durable; ten that were not
    assert 2 <= len(syncs) <= 5  # SQLite also syncs the header of a new -wal
    assert len([line for line in after.splitlines() if "sync(" in line and "a.db-wal" in line]) == 10
    # the directory, before anything was acknowledged
    folder = [line for line in before.splitlines() if " fsync(" in line and f"<{tmp_path}>" in line]
    assert folder


async def test_a_cancelled_commit_is_awaited(open_store, say):
    store = open_store()
    await store.acommit(say.add("first"))
    store._writer.lock.acquire()
    task = asyncio.ensure_future(store.acommit(say.add("mine")))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    store._writer.lock.release()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "mine" in store.read(say.names)


async def test_cancelled_reads_leave_nothing_behind(open_store, say):
    store = open_store()
    await store.acommit(say.add("first"))
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        task = asyncio.ensure_future(store.aread(say.twice))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await store.aread(say.twice)
    await store.aclose()
    for _ in range(500):
        if threading.active_count() > threads:
            await asyncio.sleep(0.01)
    assert threading.active_count() <= threads + 1  # the loop's own executor
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.parametrize("what", ["rename", "unlink", "replace", "wal", "shm"])
def test_a_replaced_file_is_not_acknowledged(open_store, say, tmp_path, what):
    path = tmp_path / "a.db"
    store = open_store(path)
    store.commit(say.add("before"))
    if what == "rename":
        path.rename(tmp_path / "b.db")
    elif what == "unlink":
        path.unlink()
    elif what == "replace":
        (tmp_path / "other").write_bytes(b"x" * 4096)
        (tmp_path / "other").replace(path)
    else:
        (tmp_path / f"a.db-{what}").unlink()
    for number in range(3):
        with pytest.raises(FileReplaced, match=r"a\.db"):
            store.commit(say.add(f"after{number}"))
    assert what in ("replace", "wal", "shm") or not path.exists()


@pytest.mark.parametrize(("later_s", "durable"), [(0.06, False), (0, True)])
def test_what_nobody_is_told_of_goes_without_a_look_for_a_moment(
    open_store, say, tmp_path, monkeypatch, later_s, durable
):
    """Twenty looks a second are enough for commits that a run makes for itself; an acknowledgement has its own."""
    path, now = tmp_path / "a.db", [100.0]
    monkeypatch.setattr("thence.store.samefiles.time.monotonic", lambda: now[0])
    store = open_store(path)
    store.commit(say.add("before", durable=False))
    path.rename(tmp_path / "b.db")
    store.commit(say.add("unseen", durable=False))
    now[0] += later_s
    with pytest.raises(FileReplaced):
        store.commit(say.add("seen", durable=durable))


def test_a_file_that_goes_during_the_commit_is_not_acknowledged(open_store, say, tmp_path, monkeypatch):
    path, looks = tmp_path / "a.db", list[bool]()
    store = open_store(path)
    store.commit(say.add("before"))
    look = SameFiles.look

    def look_and_lose(files: SameFiles, acknowledged: bool) -> None:
        look(files, acknowledged)
        looks.append(acknowledged)
        path.rename(tmp_path / "b.db")

    monkeypatch.setattr(SameFiles, "look", look_and_lose)
    with pytest.raises(FileReplaced):
        store.commit(say.add("after"))
    assert looks == [True]


@pytest.mark.parametrize("then", ["nothing", "somebody tries to open"])
def test_a_wal_that_somebody_removes_takes_no_acknowledged_row_along(open_store, say, tmp_path, then):
    """It lives on while it is open, and closing the database folds it back."""
    store = open_store(tmp_path / "a.db")
    store.commit(say.add("before"))
    (tmp_path / "a.db-wal").unlink()
    if then != "nothing":
        assert "SHORT_READ" in say.run(
            "try: SqliteStore(db, 'other')\nexcept Exception as error: print(error)", tmp_path / "a.db"
        )
        assert (tmp_path / "a.db-wal").stat().st_size == 0
    with pytest.raises(FileReplaced):
        store.commit(say.add("after"))
    store.close()
    assert "before" in open_store(tmp_path / "a.db").read(say.names)


def test_a_stray_open_in_our_process_is_noticed(open_store, say, tmp_path):
    """E03: closing any descriptor of the file drops our locks; another process then removes the -wal."""
    path = tmp_path / "a.db"
    store = open_store(path)
    for number in range(5):
        store.commit(say.add(f"a{number}"))
    open(path).close()
    say.run("SqliteStore(db, 'b').close() ; s = SqliteStore(db, 'c'); s.commit(add('b0')); s.close()", path)
    acknowledged = [f"a{number}" for number in range(5)]
    try:
        for number in range(20):
            store.commit(say.add(f"late{number}"))
            acknowledged.append(f"late{number}")
    except FileReplaced:
        pass
    else:
        pytest.fail("twenty commits went into a file that is no more")
    assert set(acknowledged) <= set(eval(say.run("print(SqliteStore(db, 'd').read(NAMES))", path)))


def test_our_schema_changed_under_us(open_store, say, tmp_path):
    store = open_store()
    store.commit(say.add("a"))
    other = sqlite3.connect(tmp_path / "a.db")
    other.execute("CREATE TABLE users_own(x)")
    other.execute("CREATE VIEW users_view AS SELECT * FROM owner")
    store.commit(say.add("b"))
    other.execute("CREATE TRIGGER evil AFTER INSERT ON owner BEGIN DELETE FROM owner; END")
    for _ in range(2):
        with pytest.raises(SchemaChanged, match="evil"):
            store.commit(say.add("c"))
    assert {"a", "b"} < set(store.read(say.names))
    other.execute("DROP TRIGGER evil")
    store.commit(say.add("d"))
    other.close()
    assert "c" not in store.read(say.names)


def test_a_full_disk_then_space_again(open_store, say):
    store = open_store()
    store.commit(say.add("a"))
    connection = store._writer.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(DiskFull, match=r"a\.db"):
        store.commit(say.add("large", program="x" * 100_000))
    assert "a" in store.read(say.names)
    connection.execute("PRAGMA max_page_count=1000000")
    store.commit(say.add("large", program="x" * 100_000))
    assert not connection.in_transaction


def test_damage_is_logged_once_and_fails_fast(open_store, say, tmp_path, caplog):
    """E17."""
    path = tmp_path / "a.db"
    store = open_store(path)
    store.commit(say.add(*(f"n{number}" for number in range(2000))))
    store.close()
    size = path.stat().st_size
    (root,) = sqlite3.connect(path).execute("SELECT rootpage FROM sqlite_schema WHERE name='owner'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    assert path.stat().st_size == size
    store = open_store(path)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            with pytest.raises(StoreError, match=r"a\.db.*restore a copy"):
                store.commit(say.add(f"x{number}"))
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
