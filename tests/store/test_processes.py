"""Real processes on one file: creation, fairness, death, fork, exit."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest

from thence.errors import StoreError
from thence.store import locks
from thence.store.sqlite import SqliteStore


def test_eight_processes_make_one_file(say, tmp_path):
    code = """
while not os.path.exists(sys.argv[3]): time.sleep(0.001)
s = SqliteStore(db, "o" + sys.argv[2]); s.commit(add("n" + sys.argv[2])); s.close()
"""
    for turn in range(3):
        path, go = tmp_path / f"{turn}.db", tmp_path / f"go{turn}"
        children = [say.spawn(code, path, number, go) for number in range(8)]
        time.sleep(0.4)
        go.touch()
        say.finish(children)
        store = SqliteStore(path, "last")
        assert store.read(say.names) == [f"n{number}" for number in range(8)]
        store.close()


def test_four_writers_no_busy_and_nobody_starves(say, tmp_path):
    path = tmp_path / "a.db"
    SqliteStore(path, "maker").close()
    code = """
s = SqliteStore(db, "o" + sys.argv[2])
end = time.monotonic() + 1
n = 0; worst = 0
while time.monotonic() < end:
    t = time.monotonic(); s.commit(add(f"w{sys.argv[2]}-{n}")); worst = max(worst, time.monotonic() - t); n += 1
print(n, worst); s.close()
"""
    found = [line.split() for line in say.finish([say.spawn(code, path, number) for number in range(4)])]
    counts = [int(count) for count, _ in found]
    store = SqliteStore(path, "last")
    assert len(store.read(say.names)) == sum(counts)
    store.close()
    assert min(counts) * 10 > max(counts)
    assert max(float(worst) for _, worst in found) < 20
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


@pytest.mark.parametrize("noticed_by", ["commit", "close", "commit before"])
def test_a_shm_that_somebody_removes_costs_nobody_an_acknowledged_row(say, open_store, tmp_path, noticed_by):
    """With another -shm two processes do not see each other's locks: whoever had the old one must not write, and must
    not even close the file, which would fold its own idea of the -wal back and remove the other's."""
    path = tmp_path / "a.db"
    code = """
s = SqliteStore(db, "old")
for n in range(200): s.commit(add(f"old{n}"))
print("ready", flush=True); input()
if sys.argv[2] != "close":
    for durable in (False, True, True):
        try: s.commit(add("late", durable)); print("written")
        except FileReplaced as lost: print(str(lost).split()[0], flush=True)
if sys.argv[2] == "commit before": input()
s.close(); print("closed")
"""
    old = say.spawn("from thence.errors import FileReplaced\n" + code, path, noticed_by, stdin=subprocess.PIPE)
    assert old.stdout.readline() == "ready\n"
    (tmp_path / "a.db-shm").unlink()
    if noticed_by == "commit before":
        time.sleep(0.06)
        old.stdin.write("go\n")
        old.stdin.flush()
        assert [old.stdout.readline().strip() for _ in range(3)] == [f"{path}-shm"] * 3
    new = open_store(path)
    for number in range(300):
        new.commit(say.add(f"new{number}"))
    new.close()
    time.sleep(0.06)
    told, _ = old.communicate("go\n", timeout=60)
    assert (told.splitlines()[-1], old.returncode) == ("closed", 0)
    assert noticed_by != "commit" or told.split() == [f"{path}-shm"] * 3 + ["closed"]
    kept = set(open_store(path).read(say.names))
    assert {f"old{n}" for n in range(200)} | {f"new{n}" for n in range(300)} <= kept
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_a_killed_writer_loses_nothing_acknowledged(say, tmp_path):
    path = tmp_path / "a.db"
    code = """
s = SqliteStore(db, "o" + sys.argv[2])
for i in range(100000):
    name = f"k{sys.argv[2]}-{i}"
    s.commit(add(name, durable=i % 2 == 0)); sys.stdout.write(name + "\\n"); sys.stdout.flush()
"""
    acknowledged: set[str] = set()
    for number in range(5):
        child = say.spawn(code, path, number)
        seen = [child.stdout.readline() for _ in range(20 + 13 * number)]
        child.send_signal(signal.SIGKILL)
        # not communicate(): it does not know what readline() has read ahead
        rest = child.stdout.read()
        child.communicate()
        acknowledged |= {line.strip() for line in [*seen, *rest.splitlines(keepends=True)] if line.endswith("\n")}
        assert locks.probe(path, f"o{number}") == "dead"
        assert not locks.owner_path(path, f"o{number}").exists()
    store = SqliteStore(path, "last")
    names = {name for name in store.read(say.names) if name.startswith("k")}
    store.close()
    assert acknowledged <= names
    assert len(names - acknowledged) <= 5


def test_a_fork_takes_nothing_along(say, tmp_path):
    code = """
s = SqliteStore(db, "parent"); s.commit(add("a")); s.read(NAMES)
import asyncio
asyncio.run(s.aread(NAMES))
for n in range(3):
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (lambda: s.commit(add("child")), lambda: s.read(NAMES), lambda: s.owner_alive("x"),
                     lambda: asyncio.run(s.acommit(add("child"))), lambda: asyncio.run(s.aread(NAMES))):
            try: call()
            except StoreError as error: refused += "parent" in str(error)
        s.close()
        sys.exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert s.owner_alive("parent")
for n in range(10): s.commit(add(f"p{n}"))
# a child that lives on must not keep the owner's lock
pid = os.fork()
if pid == 0:
    os.close(1); os.close(2); time.sleep(30); os._exit(0)
print(pid, len(s.read(NAMES)), flush=True)
os._exit(0)
"""
    path = tmp_path / "a.db"
    pid, count = say.run(code, path).split()
    try:
        assert count == "12"
        assert locks.probe(path, "parent") == "dead"
    finally:
        os.kill(int(pid), signal.SIGKILL)
    store = SqliteStore(path, "last")
    assert "child" not in store.read(say.names)
    store.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_forked_child_leaves_the_files_alone(say, tmp_path):
    log = tmp_path / "trace"
    code = """
s = SqliteStore(db, "parent"); s.commit(add("a")); s.read(NAMES)
pid = os.fork()
if pid == 0:
    try: s.commit(add("child"))
    except StoreError: pass
    del s
    import gc; gc.collect()
    sys.exit(0)
os.waitpid(pid, 0); print(pid); s.commit(add("b")); s.close()
"""
    calls = "trace=pread64,pwrite64,fcntl,close,unlink,ftruncate,fdatasync,fsync"
    pid = say.run(code, tmp_path / "a.db", under=["strace", "-f", "-y", "-o", str(log), "-e", calls]).strip()
    own = [line for line in log.read_text().splitlines() if line.startswith(f"{pid} ") and "a.db" in line]
    assert own
    assert all("close(" in line and ("-gate" in line or "-owner" in line) for line in own), own


@pytest.mark.parametrize(
    "work",
    [
        "s.commit(add('a')); s.read(NAMES)",
        "import asyncio\nasync def main():\n    await s.acommit(add('a')); await s.aread(NAMES)\nasyncio.run(main())",
        "import asyncio\nasync def main():\n    await s.acommit(add('a'))\n"
        "    global t; t = [asyncio.ensure_future(s.aread(NAMES)) for _ in range(9)]; await asyncio.sleep(0)\n"
        "asyncio.run(main())",
    ],
    ids=["sync", "async", "async, reads cut off"],
)
def test_an_open_store_does_not_keep_the_interpreter(say, tmp_path, work):
    path = tmp_path / "a.db"
    child = say.spawn("\ns = SqliteStore(db, 'me')\n" + work + "\nprint(time.time(), flush=True)", path)
    out, err = child.communicate(timeout=60)
    took = time.time() - float(out)
    assert child.returncode == 0, err
    assert "Traceback" not in err
    assert took < 2
    store = SqliteStore(path, "last")
    assert "a" in store.read(say.names)
    store.close()


def test_owner_alive(open_store, say, tmp_path):
    store, other = open_store(owner="one"), open_store(owner="two")
    assert store.owner_alive("one")
    assert store.owner_alive("two")
    other.close()
    assert not store.owner_alive("two")
    assert not store.owner_alive("never")
    memory = open_store(None, owner="m")
    assert memory.owner_alive("m")
    assert not memory.owner_alive("one")


def test_forbidden_files(open_store, say, tmp_path):
    store = open_store()
    store.commit(say.add("a"))
    found = store.forbidden_files()
    for entry in tmp_path.iterdir():
        status = entry.stat()
        assert (status.st_dev, status.st_ino) in found, entry
    assert open_store(None).forbidden_files() == frozenset()


def test_the_owners_row_goes_with_it(open_store, say, tmp_path):
    store = open_store(owner="one")
    assert store.read(say.names) == []
    store.commit(say.add("a"))
    assert store.read(say.names) == ["a", "one"]
    store.close()
    assert open_store(owner="two").read(say.names) == ["a"]


@pytest.mark.parametrize("bad", ["", "a/b", "..", "a b"])
def test_owner_names(tmp_path, bad):
    with pytest.raises(ValueError, match="owner"):
        SqliteStore(tmp_path / "a.db", bad)
    with pytest.raises(ValueError, match="durability"):
        SqliteStore(tmp_path / "a.db", "me", durability="none")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_writer_that_holds_the_file_too_long(open_store, say, tmp_path):
    store = open_store()
    store.commit(say.add("a"))
    store._writer.connection.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked") as busy:
        store.commit(say.add("b"))
    assert busy.value.retryable
    assert "a" in store.read(say.names)
    other.execute("ROLLBACK")
    other.close()
    store.commit(say.add("b"))


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("error", ["ENOLCK", "EDEADLK"])
def test_a_file_system_without_locks(say, tmp_path, error):
    """D07."""
    code = """
started = time.monotonic()
try: SqliteStore(db, "me")
except FileRefused as error: print(error.reason, time.monotonic() - started < 5, error)
"""
    watched = [part for suffix in ("", "-wal", "-shm", "-owner-me") for part in ("-P", f"{tmp_path}/a.db{suffix}")]
    trace = ["strace", "-f", "-o", "/dev/null", *watched, "-e", f"inject=fcntl:error={error}"]
    out = say.run(code, tmp_path / "a.db", under=trace)
    assert out.startswith("locking True")
    assert "a.db" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_failed_sync_is_not_acknowledged(say, tmp_path):
    code = """
s = SqliteStore(db, "me"); s.commit(add("warm"))
failed = 0; good = []; first = s._writer.connection
for n in range(30):
    try: s.commit(add(f"n{n}")); good.append(f"n{n}")
    except StoreError as error: failed += 1
names = s.read(NAMES)
print(failed, set(good) <= set(names), len(names) == len(good) + 2, s._writer.connection is not first)
"""
    trace = ["strace", "-f", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO:when=20..24"]
    failed, kept, exact, reopened = say.run(code, tmp_path / "a.db", under=trace).split()
    assert int(failed) > 0
    assert (kept, exact, reopened) == ("True", "True", "True")
