"""Every refusal: its own reason, the path in its message, not one byte changed and no file left beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sqlite3
import tempfile
from pathlib import Path

import pytest

from thence.errors import FileRefused, StoreError
from thence.plan import Query, Select
from thence.store import refuse
from thence.store.readonly import ReadOnlyStore
from thence.store.sql import load
from thence.store.sqlite import SqliteStore


def photograph(folder: Path) -> dict[str, str]:
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else "special"
        for entry in folder.iterdir()
    }


def ours(path: Path) -> None:
    SqliteStore(path, "maker").close()
    for name in path.parent.glob("*-gate*"):
        name.unlink()


def edited(sql: str):
    def make(path: Path) -> None:
        ours(path)
        connection = sqlite3.connect(path)
        connection.executescript(sql)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.close()

    return make


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(x)")
    connection.close()


def left_in_wal(path: Path) -> None:
    """Another program's database as a crash leaves it."""
    live = path.with_name("live")
    connection = sqlite3.connect(live)
    connection.execute("PRAGMA application_id=7")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    connection.commit()
    shutil.copy(live, path)
    shutil.copy(f"{live}-wal", f"{path}-wal")
    connection.close()
    live.unlink()


def broken_schema(path: Path) -> None:
    ours(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_schema SET sql='CREATE TABLE nonsense(' WHERE name='owner'")
    connection.commit()
    connection.close()


def gone_beside_its_wal(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(b"x" * 5000)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sock(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)
    listener.bind(path.name)
    os.chdir(here)
    listener.close()


CASES = {
    "directory": ("not_a_file", Path.mkdir),
    "fifo": ("not_a_file", fifo),
    "socket": ("not_a_file", sock),
    "one byte": ("not_a_database", lambda path: path.write_bytes(b"x")),
    "511 bytes": ("not_a_database", lambda path: path.write_bytes(b"SQLite format 3\0" + b"x" * 495)),
    "text": ("not_a_database", lambda path: path.write_text("hello\n" * 1000)),
    "png": ("not_a_database", lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))),
    "random": ("not_a_database", lambda path: path.write_bytes(os.urandom(9000))),
    "foreign": ("foreign_database", foreign),
    "foreign, crashed": ("foreign_database", left_in_wal),
    "our tables, no id": ("foreign_database", edited("PRAGMA application_id=0")),
    "another id": ("foreign_database", edited("PRAGMA application_id=12345")),
    "newer": ("newer_schema", edited("PRAGMA user_version=2")),
    "corrupt schema": ("corrupt", broken_schema),
    "wal without database": ("corrupt", gone_beside_its_wal),
    "missing table": ("schema_mismatch", edited("DROP TABLE trace")),
    "missing trigger": ("schema_mismatch", edited("DROP TRIGGER fact_no_update")),
    "changed trigger": (
        "schema_mismatch",
        edited("DROP TRIGGER blob_no_update; CREATE TRIGGER blob_no_update BEFORE UPDATE ON blob BEGIN SELECT 1; END"),
    ),
    "added column": ("schema_mismatch", edited("ALTER TABLE owner ADD COLUMN x TEXT")),
    "foreign trigger": ("schema_mismatch", edited("CREATE TRIGGER evil AFTER INSERT ON OWNER BEGIN SELECT 1; END")),
    "trigger on our view": (
        "schema_mismatch",
        edited("CREATE TRIGGER evil INSTEAD OF INSERT ON sessions BEGIN SELECT 1; END"),
    ),
    "view for table": (
        "schema_mismatch",
        edited("DROP TABLE owner; CREATE VIEW owner AS SELECT 1 AS owner, 2 AS pid, 3 AS program, 4 AS since_ms"),
    ),
}


@pytest.mark.parametrize("face", ["write", "read"])
@pytest.mark.parametrize("case", CASES)
def test_refused_and_untouched(tmp_path, case, face):
    reason, make = CASES[case]
    path = tmp_path / "x.db"
    make(path)
    before = photograph(tmp_path)
    with pytest.raises(FileRefused, match=r"x\.db") as refused:
        SqliteStore(path, "me") if face == "write" else ReadOnlyStore(path)
    assert refused.value.reason == reason
    assert photograph(tmp_path) == before


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/proc/self/mem"])
def test_devices(device):
    with pytest.raises(FileRefused, match=device.rpartition("/")[2]) as refused:
        SqliteStore(device, "me")
    assert refused.value.reason in ("not_a_file", "network_file_system", "read_only")


def test_the_object_is_named(tmp_path):
    path = tmp_path / "x.db"
    edited("DROP TRIGGER fact_no_update")(path)
    with pytest.raises(FileRefused, match="fact_no_update"):
        SqliteStore(path, "me")


def test_missing_folder(tmp_path):
    with pytest.raises(FileRefused, match="nowhere") as refused:
        SqliteStore(tmp_path / "nowhere" / "a.db", "me")
    assert refused.value.reason == "missing_folder"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", [False, True])
def test_missing_and_not_to_be_made(tmp_path, there):
    if there:
        (tmp_path / "a.db").touch()
    before = photograph(tmp_path)
    with pytest.raises(FileRefused):
        SqliteStore(tmp_path / "a.db", "me", create=False)
    with pytest.raises(FileRefused):
        ReadOnlyStore(tmp_path / "a.db")
    assert photograph(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user")
@pytest.mark.parametrize(("mode", "file_mode"), [(0o555, None), (0o777, 0o400), (0o555, 0o666)])
def test_what_this_user_cannot_write(say, mode, file_mode):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "f"
        folder.mkdir()
        os.chmod(name, 0o755)
        if file_mode is not None:
            ours(folder / "a.db")
            os.chmod(folder / "a.db", file_mode)
        os.chmod(folder, mode)
        before = photograph(folder)
        code = "\ntry: SqliteStore(db, 'me')\nexcept FileRefused as error: print(error.reason, error)"
        out = say.run(
            code, folder / "a.db", under=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], cwd="/"
        )
        assert out.startswith("read_only ")
        assert str(folder) in out
        assert photograph(folder) == before


def test_the_users_own_objects_are_tolerated(tmp_path, say):
    path = tmp_path / "x.db"
    edited(
        "CREATE TABLE mine(x); CREATE VIEW mine_too AS SELECT * FROM owner; CREATE INDEX i ON owner(pid); ANALYZE;"
        "CREATE TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END"
    )(path)
    store = SqliteStore(path, "me")
    store.commit(say.add("a"))
    store.close()


def test_an_empty_file_is_new_and_becomes_private(tmp_path, say):
    path = tmp_path / "a.db"
    path.touch(0o644)
    store = SqliteStore(path, "me")
    store.commit(say.add("a"))
    store.close()
    assert path.stat().st_size > 0


def test_probing_a_live_file_does_not_disturb_it(tmp_path, open_store, say):
    store = open_store(tmp_path / "a.db")
    store.commit(say.add("a"))
    for _ in range(20):
        assert refuse.probe(tmp_path / "a.db", load()) == "current"
        store.commit(say.add(os.urandom(4).hex()))


MOUNTS = """22 1 8:1 / / rw,relatime - ext4 /dev/root rw
23 22 0:20 / /mnt/nfs rw - nfs4 host:/x rw
24 22 0:21 / /mnt/nfs/local rw - tmpfs tmpfs rw
25 22 0:22 / /mnt/with\\040space rw shared:1 - fuse.sshfs a: rw
26 22 0:23 / /mnt/share rw - cifs //a/b rw
27 22 0:24 / /mnt/twice rw - ext4 /dev/x rw
28 22 0:25 / /mnt/twice rw - 9p x rw
29 22 0:26 / /wsl rw - drvfs C: rw
30 22 0:27 / /vm rw - virtiofs x rw
31 22 0:28 / /o rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a.db", None), ("/mnt/nfs/a.db", "nfs4"), ("/mnt/nfsx/a.db", None), ("/mnt/nfs/local/a.db", None),
        ("/mnt/with space/a.db", "fuse.sshfs"), ("/mnt/share/d/a.db", "cifs"), ("/mnt/twice/a.db", "9p"),
        ("/wsl/a.db", "drvfs"), ("/vm/a.db", "virtiofs"), ("/o/a.db", None),
    ],
)  # fmt: skip
def test_network_file_systems(path, kind):
    assert refuse.network_kind(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused_unless_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(refuse, "network_kind", lambda path: "nfs4")
    with pytest.raises(FileRefused, match="nfs4") as refused:
        SqliteStore(tmp_path / "a.db", "me")
    assert refused.value.reason == "network_file_system"
    assert not list(tmp_path.iterdir())
    SqliteStore(tmp_path / "a.db", "me", allow_network_fs=True).close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_every_file_is_private(say, tmp_path, umask):
    code = (
        f"\nos.umask({umask})\ns = SqliteStore(db, 'me'); s.commit(add('a'))\n"
        "d = os.path.dirname(db)\nprint({n: oct(os.stat(d + '/' + n).st_mode & 0o777) for n in os.listdir(d)})"
    )
    modes = eval(say.run(code, tmp_path / "a.db"))
    assert set(modes) >= {"a.db", "a.db-wal", "a.db-shm", "a.db-gate", "a.db-owner-me"}
    assert set(modes.values()) == {"0o600"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_file_is_ever_wider(say, tmp_path):
    log = tmp_path / "trace"
    say.run(
        "\nos.umask(0)\ns = SqliteStore(db, 'me'); s.commit(add('a')); s.close()",
        tmp_path / "a.db",
        under=["strace", "-f", "-o", str(log), "-e", "trace=openat,open,creat"],
    )
    made = [line for line in log.read_text().splitlines() if "O_CREAT" in line and "a.db" in line]
    assert len(made) >= 5
    assert all(line.split("O_C", 1)[1].split(")")[0].endswith(("0600", "0640", "0400")) for line in made), made


def test_read_only_leaves_nothing(tmp_path, open_store, say):
    path = tmp_path / "a.db"
    store = open_store(path)
    store.commit(say.add("a"))
    live = ReadOnlyStore(path)
    assert "a" in live.read(say.names)
    store.commit(say.add("b"))
    assert "b" in live.read(say.names)
    live.close()
    store.close()
    before = photograph(tmp_path)
    closed = ReadOnlyStore(path)
    assert closed.read(say.twice)
    with pytest.raises(StoreError):
        closed.read(Query((Select("owner_remove", {"owner": "a"}),), len))
    closed.close()
    assert photograph(tmp_path) == before


@pytest.mark.parametrize("wal", [False, True])
def test_damage_that_sqlite_cannot_even_quote(tmp_path, wal):
    """A schema with a byte that is no text: Python's sqlite3 then fails to decode SQLite's message."""
    path = tmp_path / "a.db"
    SqliteStore(path, "me").close()
    data = path.read_bytes()
    at = data.index(b"ts_ms      INTEGER") + len("ts_ms      INTE")
    path.write_bytes(data[:at] + b"\xc5" + data[at + 1 :])
    if wal:
        (tmp_path / "a.db-wal").write_bytes(bytes(4096))
    with pytest.raises(FileRefused) as refused:
        SqliteStore(path, "you")
    assert refused.value.reason == "corrupt"
