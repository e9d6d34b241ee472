"""What is given as the file and is none of ours: refused by name, every byte kept (§8): E17, G01, G02, G06, G07."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thence import FileRefused, SessionNotFound, SessionOptions, StoreError, ThenceError
from thence.testing import ScriptedModel, reply

from .kit import Face, photograph, photograph_folder

ENGINE = Path(__file__).resolve().parents[2] / "engine"


def edit(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()


def version(path: Path, number: int) -> None:
    edit(path, f"PRAGMA user_version={number}")


def current_version(path: Path) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


def text_file(path: Path) -> None:
    path.write_text("dear diary\n" * 500)


def short_text(path: Path) -> None:
    path.write_text("hello")


def another_application(path: Path) -> None:
    path.unlink()
    edit(path, "CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x'); PRAGMA application_id=252006675;")


def nameless_application(path: Path) -> None:
    path.unlink()
    edit(path, "CREATE TABLE session(id, title); INSERT INTO session VALUES(1, 'x');")


def ours_without_its_mark(path: Path) -> None:
    edit(path, "PRAGMA application_id=0")


def header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 4096 * 3 + 77])


def garbled_header(path: Path) -> None:
    path.write_bytes(b"garbage!" * 12 + path.read_bytes()[96:])


def garbled_schema(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:4096] = os.urandom(3996)
    path.write_bytes(bytes(data))


FILES: dict[str, tuple[Any, str, str]] = {
    "text": (text_file, "not_a_database", "not a database"),
    "a few bytes": (short_text, "not_a_database", "not a database"),
    "another application": (another_application, "foreign_database", "another application"),
    "no application": (nameless_application, "foreign_database", "another"),
    "g06 our names, no mark": (ours_without_its_mark, "foreign_database", "another"),
    "g01 newer": (lambda path: version(path, current_version(path) + 1), "newer_schema", r"newer version.*\d+ > \d+"),
    "much newer": (lambda path: version(path, 2_000_000_000), "newer_schema", "newer version"),
    "g07 a column dropped": (
        lambda path: edit(path, "ALTER TABLE tombstone DROP COLUMN ts_ms"), "schema_mismatch", "tombstone",
    ),
    "g07 a table dropped": (lambda path: edit(path, "DROP TABLE trace"), "schema_mismatch", "trace"),
    "a trigger dropped": (lambda path: edit(path, "DROP TRIGGER fact_no_update"), "schema_mismatch", "fact_no_update"),
    "a foreign trigger": (
        lambda path: edit(path, "CREATE TRIGGER spy AFTER INSERT ON fact BEGIN SELECT 1; END"),
        "schema_mismatch", "spy",
    ),
    "a view in a table's place": (
        lambda path: edit(path, "DROP TABLE trace; CREATE VIEW trace AS SELECT 1 AS id"), "schema_mismatch", "trace",
    ),
    "the header only": (header_only, "not_a_database|corrupt", "."),
    "cut": (cut, "corrupt|schema_mismatch", "."),
    "a garbled header": (garbled_header, "not_a_database|corrupt", "."),
    "a garbled schema": (garbled_schema, "corrupt|schema_mismatch|not_a_database", "."),
}  # fmt: skip


def is_refused(face: Face, path: Any, reason: str, words: str) -> FileRefused:
    with pytest.raises(FileRefused, match=words) as refused:
        face.agent(path, model=ScriptedModel([reply("x")]))
    error = refused.value
    assert error.reason in reason.split("|")
    assert error.code == "FILE_REFUSED"
    assert str(path) in str(error)
    return error


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_not_ours_is_refused_and_untouched(face: Face, used, what):
    spoil, reason, words = FILES[what]
    spoil(used)
    before = photograph_folder(used.parent)
    for _ in range(3):
        is_refused(face, used, reason, words)
        assert photograph_folder(used.parent) == before


def test_g02_a_newer_file_keeps_its_version_however_often_it_is_tried(face: Face, used):
    newer = current_version(used) + 1
    version(used, newer)
    for _ in range(3):
        with pytest.raises(FileRefused):
            face.agent(used)
    assert current_version(used) == newer


def test_user_tables_indexes_and_views_are_tolerated(face: Face, used):
    """§8: what the user added beside ours is the user's business."""
    edit(used, "CREATE TABLE my_notes(x); CREATE INDEX my_index ON my_notes(x); CREATE VIEW my_view AS SELECT 1;")
    agent = face.agent(used, model=ScriptedModel([reply("Fine.")]))
    session = face.do(lambda: agent.resume_session("s"))
    assert face.do(lambda: session.send("Go.")).text == "Fine."


def test_a_directory(face: Face, tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    is_refused(face, place, "not_a_file", "not a regular file")
    assert list(place.iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs devices")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device(face: Face, device):
    with pytest.raises(FileRefused, match=device):
        face.agent(device)


def test_a_missing_parent(face: Face, tmp_path):
    path = tmp_path / "no" / "such" / "a.db"
    is_refused(face, path, "missing_folder", "does not exist")
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file(face: Face, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileRefused, match="file"):
        face.agent(tmp_path / "file" / "a.db")
    assert (tmp_path / "file").read_text() == "x"


def test_a_name_that_is_too_long(face: Face, tmp_path):
    with pytest.raises(StoreError, match="aaaa"):
        face.agent(tmp_path / ("a" * 300 + ".db"))
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_a_circle(face: Face, tmp_path):
    (tmp_path / "a.db").symlink_to(tmp_path / "b.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(StoreError, match=r"[ab]\.db"):
        face.agent(tmp_path / "a.db")


READ_ONLY = """
import asyncio, json, os, sys
from thence import *
from thence.testing import ScriptedModel, reply
folder, face = sys.argv[1:]
async def asynchronously(path):
    agent = AsyncAgent(path, model=ScriptedModel([reply("x")]))
    session = await agent.session(".")
    await session.send("Go.")
    await agent.close()
def synchronously(path):
    with Agent(path, model=ScriptedModel([reply("x")])) as agent: agent.session(".").send("Go.")
run = synchronously if face == "sync" else lambda path: asyncio.run(asynchronously(path))
run(os.path.join(folder, "warm", "a.db"))  # everything is imported now, and will not be readable afterwards
if os.geteuid() == 0: os.setuid(65534)
for name in ("empty", "full", "file"):
    try: run(os.path.join(folder, name, "a.db")); print("opened", flush=True)
    except StoreError as error: print(error.code, error.reason, os.path.join(folder, name) in str(error), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs modes")
@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_read_only_folder_and_a_read_only_file(used, name):
    # pytest's own folders are closed to the user that root becomes in the child
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        place.chmod(0o755)
        for folder in ("warm", "empty", "full", "file"):
            (place / folder).mkdir()
        for folder in ("full", "file"):
            shutil.copyfile(used, place / folder / "a.db")
            (place / folder / "a.db").chmod(0o444)
        for folder, mode in (("empty", 0o555), ("full", 0o555), ("file", 0o777)):
            (place / folder).chmod(mode)
        before = {folder: photograph_folder(place / folder) for folder in ("empty", "full", "file")}
        child = subprocess.run(
            [sys.executable, "-c", READ_ONLY, made, name],
            env={**os.environ, "PYTHONPATH": str(ENGINE)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        after = {folder: photograph_folder(place / folder) for folder in ("empty", "full", "file")}
        for folder in ("empty", "full"):
            (place / folder).chmod(0o755)
    assert child.stdout.splitlines() == ["FILE_REFUSED read_only True"] * 3, child.stderr
    assert after == before


def damage(path: Path, table: str) -> slice:
    """Garble the root page of a table, and say where it is; the schema stays whole, so the file opens."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", [table]).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    place = slice((page - 1) * size, page * size)
    data[place] = b"\xa5" * size
    path.write_bytes(bytes(data))
    return place


@pytest.mark.parametrize("table", ["session", "fact", "run", "sqlite_autoindex_session_1"])
def test_e17_a_damaged_file_says_so_a_hundred_times_and_logs_once(face: Face, used, table, caplog):
    """E17, E05: each call fails fast and names the file and the way out; never "not found", never a new session."""
    place = damage(used, table)
    before = photograph(used)
    failed: list[float] = []
    with caplog.at_level(logging.INFO):
        agent = face.agent(used, model=ScriptedModel([reply("x")] * 200))
        for _ in range(100):
            began = time.monotonic()
            try:
                session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s")))
                face.do(partial(session.send, "Go."))
            except SessionNotFound:
                raise
            except StoreError as error:
                failed.append(time.monotonic() - began)
                assert str(used) in str(error)
                assert "damaged" in str(error)
                assert "restore" in str(error)
            except ThenceError as error:
                pytest.fail(f"damage was called {error!r}")
        face.close()
    assert len(failed) == 100
    assert sorted(failed)[50] < 1
    # whatever is logged is counted, not only the worst: one line a call would be the same spam
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert len(said) <= 1, (len(said), said[:3])
    # a session whose row is whole is claimed and given back before its facts are read
    assert photograph(used) == before or table == "fact"
    assert used.read_bytes()[place] == b"\xa5" * (place.stop - place.start)


def test_a_damaged_payload_is_told_and_hurts_nothing_else(face: Face, used):
    """One bit of one fact: the session of that fact says so; the other sessions work."""
    agent = face.agent(used, model=ScriptedModel([reply("Other.")]))
    other = face.do(lambda: agent.session("/w", SessionOptions(session_id="other")))
    face.do(lambda: other.send("Go."))
    face.close()
    data = used.read_bytes()
    place = data.index(b'"text":"Hello."')
    used.write_bytes(data[:place] + b'"te\x02t":"Hello."' + data[place + 15 :])
    agent = face.agent(used, model=ScriptedModel([reply("Still fine.")] * 2))
    other = face.do(lambda: agent.resume_session("other"))
    assert face.do(lambda: other.send("Go on.")).text == "Still fine."
    hurt = face.do(lambda: agent.resume_session("s"))
    with pytest.raises(ThenceError):
        face.do(lambda: hurt.send("Go on."))
    with pytest.raises(ThenceError):
        face.do(hurt.history)
