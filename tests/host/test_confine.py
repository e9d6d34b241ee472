"""§12 nothing outside the workspace, no device; §8 never a database file of ours."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thence.host import confine
from thence.host.confine import Refused, Tree

from .workspace_kit import SENTINEL, Hands, context, make_place


@pytest.fixture(params=["by folder", "by path"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to confine: what Linux and macOS use, and what is left where there is no dir_fd."""
    if request.param == "by folder":
        assert confine.WALKS_BY_FOLDER
    else:
        monkeypatch.setattr(confine, "WALKS_BY_FOLDER", False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


@pytest.fixture
def hands(place: Path, way: None) -> Hands:
    return Hands(place)


@pytest.fixture
def no_leak() -> Iterator[None]:
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


REFUSED_PATHS = [
    ("..", "'..' is not allowed"),
    ("../outside/plan.txt", "'..' is not allowed"),
    ("src/../a.txt", "'..' is not allowed"),
    ("src/../../outside/plan.txt", "'..' is not allowed"),
    ("/etc/passwd", "outside the workspace"),
    ("/", "outside the workspace"),
    ("//etc/passwd", "outside the workspace"),
    ("a\0b", "NUL"),
    ("a\ud800", "valid text"),
    ("/".join(["d"] * 101), "more than 100 parts"),
    ("x" * 300, "File name too long"),
    ("nope", "No such file"),
    ("a.txt/x", "not a folder|Not a directory"),
    ("~/x", "No such file"),
]


@pytest.mark.parametrize(("path", "text"), REFUSED_PATHS, ids=range(len(REFUSED_PATHS)))
@pytest.mark.parametrize("name", ["read", "ls", "grep"])
def test_paths_refused(hands: Hands, name: str, path: str, text: str) -> None:
    more = {"pattern": "."} if name == "grep" else {}
    assert re.search(text, hands.refused(name, path=path, **more))


def test_a_file_is_no_folder_and_a_folder_no_file(hands: Hands) -> None:
    assert "is a folder" in hands.refused("read", path="src")
    assert "is a folder" in hands.refused("read", path="")
    assert "is not a folder" in hands.refused("ls", path="a.txt")


def test_the_workspace_need_not_exist(tmp_path: Path, way: None) -> None:
    hands = Hands(tmp_path / "nowhere")
    for name, arguments in (
        ("ls", {}),
        ("read", {"path": "x"}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "x"}),
    ):
        assert "the workspace cannot be opened" in hands.refused(name, **arguments)


def test_the_workspace_may_be_a_link(place: Path, tmp_path: Path, way: None) -> None:
    (tmp_path / "link").symlink_to(place)
    hands = Hands(tmp_path / "link")
    assert hands.ok("read", path="a.txt", limit=1).startswith("one\n")
    assert hands.ok("read", path=str(place / "a.txt")).startswith("one\n")
    (place / "abs").symlink_to(tmp_path / "link" / "src")
    assert hands.ok("read", path="abs/b.py") == "import os\n"


LINKS_OUT: list[tuple[str, Callable[[Path], None], str]] = [
    ("file", lambda ws: (ws / "l").symlink_to("../outside/plan.txt"), "l"),
    ("absolute file", lambda ws: (ws / "l").symlink_to(ws.parent / "outside" / "plan.txt"), "l"),
    ("folder", lambda ws: (ws / "l").symlink_to("../outside"), "l/plan.txt"),
    ("deep", lambda ws: (ws / "src" / "l").symlink_to("deep/../../../outside"), "src/l/plan.txt"),
    ("to the top and down", lambda ws: (ws / "l").symlink_to("/"), f"l{'{outside}'}/plan.txt"),
    ("absolute with ..", lambda ws: (ws / "l").symlink_to(f"{ws}/src/../../outside"), "l/plan.txt"),
    ("sibling with our prefix", lambda ws: _sibling(ws), "l/plan.txt"),
    ("chain", lambda ws: _chain(ws), "l1/plan.txt"),
]


def _sibling(ws: Path) -> None:
    (ws.parent / "ws-evil").mkdir()
    (ws.parent / "ws-evil" / "plan.txt").write_text(SENTINEL)
    (ws / "l").symlink_to(ws.parent / "ws-evil")


def _chain(ws: Path) -> None:
    (ws / "l1").symlink_to("src/l2")
    (ws / "src" / "l2").symlink_to("../l3")
    (ws / "l3").symlink_to("../outside")


@pytest.mark.parametrize(("make", "path"), [each[1:] for each in LINKS_OUT], ids=[each[0] for each in LINKS_OUT])
def test_links_out_are_refused(
    place: Path, hands: Hands, no_leak: None, make: Callable[[Path], None], path: str
) -> None:
    make(place)
    path = path.replace("{outside}", str(place.parent / "outside"))
    # Hidden names are not what stops it.
    for each in (hands, Hands(place, hidden=True)):
        assert "outside the workspace" in each.refused("read", path=path)
        assert "outside the workspace" in each.refused("grep", pattern=".", path=path)
        folder = path.rpartition("/")[0]
        if folder:
            assert "outside the workspace" in each.refused("ls", path=folder)
        assert SENTINEL not in each.ok("grep", pattern=SENTINEL)
        assert SENTINEL not in each.ok("glob", pattern="**")


def test_links_inside_are_followed(place: Path, hands: Hands) -> None:
    (place / "up").symlink_to("src/deep/../b.py")
    (place / "src" / "back").symlink_to("../a.txt")
    (place / "dir").symlink_to(place / "src")
    assert hands.ok("read", path="up") == "import os\n"
    assert hands.ok("read", path="dir/back").startswith("one\n")
    assert hands.ok("ls", path="dir") == "b.py (10 bytes)\nback (link)\ndeep/"
    assert hands.ok("glob", pattern="*") == "a.txt\ndir (link)\nsrc/\nup (link)"
    assert hands.ok("glob", pattern="dir/*") == "[no match]"
    assert hands.ok("grep", pattern="import") == "src/b.py:1: import os\nsrc/deep/c.py:1: import sys"


def test_a_loop_of_links_ends(place: Path, hands: Hands, no_leak: None) -> None:
    (place / "x").symlink_to("y")
    (place / "y").symlink_to("x")
    (place / "self").symlink_to(".")
    assert "symbolic link" in hands.refused("read", path="x")
    assert hands.ok("ls", path="self/self/self") == hands.ok("ls")
    assert "x (link)" in hands.ok("glob", pattern="**")


def test_a_folder_swapped_for_a_link_is_not_followed(
    place: Path, monkeypatch: pytest.MonkeyPatch, no_leak: None
) -> None:
    """The check sees a folder, the opening a link to the outside: it must fail, not follow."""
    real_stat = os.stat

    def swap(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        status = real_stat(path, *args, **kwargs)
        if path == "src" and not (place / "src").is_symlink():
            (place / "src").rename(place / "gone")
            (place / "src").symlink_to(place.parent / "outside")
        return status

    monkeypatch.setattr(os, "stat", swap)
    Hands(place, hidden=True).refused("read", path="src/plan.txt")


def test_a_file_swapped_after_the_check_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch, no_leak: None) -> None:
    real_open = os.open

    def swap(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == "a.txt":
            os.replace(place / "src" / "b.py", place / "a.txt")
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", swap)
    assert "changed while it was being opened" in Hands(place).refused("read", path="a.txt")


def test_pipes_sockets_and_devices_are_refused_at_once(place: Path, hands: Hands) -> None:
    os.mkfifo(place / "pipe")
    # A socket's path is short by law: bind by a relative name.
    here = os.getcwd()
    os.chdir(place)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        os.chdir(here)
        for name in ("pipe", "sock"):
            assert "not a regular file" in hands.refused("read", path=name)
            assert "not a regular file" in hands.refused("grep", pattern=".", path=name)
        assert "pipe (not a file)\nsock (not a file)" in hands.ok("ls")
        assert hands.ok("grep", pattern="import") == "src/b.py:1: import os\nsrc/deep/c.py:1: import sys"


def test_a_device_is_refused() -> None:
    assert "not a regular file" in Hands(Path("/dev")).refused("read", path="zero")


def test_a_pipe_that_takes_the_files_place_does_not_hang(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def swap(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == "a.txt":
            (place / "a.txt").unlink()
            os.mkfifo(place / "a.txt")
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", swap)
    assert "changed while it was being opened" in Hands(place).refused("read", path="a.txt")


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def test_database_files_are_never_opened(place: Path, way: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, by link, by chain of links, by hard link, on every tool, hidden or not."""
    database = place / "agents.db"
    database.write_text(f"{SENTINEL}\n")
    (place / "soft").symlink_to("agents.db")
    (place / "softer").symlink_to("soft")
    os.link(database, place / "src" / "hard.txt")
    opened: list[tuple[int, int]] = []
    real_open = os.open

    def watch(*args: Any, **kwargs: Any) -> int:
        descriptor = real_open(*args, **kwargs)
        status = os.fstat(descriptor)
        opened.append((status.st_dev, status.st_ino))
        return descriptor

    monkeypatch.setattr(os, "open", watch)
    for hidden in (False, True):
        hands = Hands(place, hidden=hidden, forbidden_files=lambda: frozenset({identity(database)}))
        for path in ("agents.db", "soft", "softer", "src/hard.txt", str(database)):
            assert "database file" in hands.refused("read", path=path)
            assert "database file" in hands.refused("grep", pattern=".", path=path)
        assert "1 hidden or protected" in hands.ok("ls")
        assert "agents.db" not in hands.ok("ls") and "hard.txt" not in hands.ok("glob", pattern="**")
        assert SENTINEL not in hands.ok("grep", pattern=SENTINEL)
    assert opened and identity(database) not in opened


def test_a_database_moved_in_place_during_the_check_is_left_open(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing any descriptor of it would drop SQLite's locks: the lock must still be held afterwards."""
    database = place / "agents.db"
    connection = sqlite3.connect(database, isolation_level=None)
    connection.executescript("CREATE TABLE t(x); BEGIN EXCLUSIVE;")
    real_open = os.open

    def swap(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == "a.txt":
            (place / "a.txt").unlink()
            os.link(database, place / "a.txt")
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", swap)
    hands = Hands(place, forbidden_files=lambda: frozenset({identity(database)}))
    assert "changed while" in hands.refused("read", path="a.txt")
    try:
        code = "import sqlite3,sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM t').fetchall()"
        other = subprocess.run([sys.executable, "-c", code, str(database)], capture_output=True, text=True)
        assert "database is locked" in other.stderr
    finally:
        connection.close()


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("maze")
    outside, ws = base / "outside", base / "ws"
    outside.mkdir()
    (outside / "plan.txt").write_text(SENTINEL)
    (outside / SENTINEL).write_text(SENTINEL)
    (ws / "d" / "e").mkdir(parents=True)
    (ws / "f").write_text("inside\n")
    (ws / "d" / "f").write_text("inside\n")
    for name, target in {
        "out": "../outside",
        "d/out": "../../outside/",
        "d/up": "..",
        "d/e/root": "/",
        "abs": str(outside),
        "loop": "loop",
        "d/in": str(ws),
        "weird": f"{ws}/d/../../outside",
        "dots": "./././../ws/../outside",
    }.items():
        (ws / name).symlink_to(target)
    return ws


PIECES = ["..", ".", "", "d", "e", "f", "out", "up", "root", "abs", "loop", "in", "weird", "dots", "plan.txt", SENTINEL]
PIECES += ["outside", "ws", "{ws}", "{outside}", "\\", "..\\", "\0", "é", " ", "~", "\n", "proc", "self", "root"]
PATHS = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=3), max_size=9).flatmap(
    lambda pieces: st.sampled_from(["/".join(pieces), "/" + "/".join(pieces), "{ws}/" + "/".join(pieces)])
)


@pytest.mark.parametrize("by_folder", [True, False])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=PATHS)
def test_no_path_reaches_outside(maze: Path, by_folder: bool, path: str) -> None:
    path = path.replace("{ws}", str(maze)).replace("{outside}", str(maze.parent / "outside"))
    real = Path(os.path.realpath(maze))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confine, "WALKS_BY_FOLDER", by_folder)
        tree = Tree(context(maze), hidden=True)
        try:
            with tree.file(path) as (descriptor, _):
                assert os.read(descriptor, 100) == b"inside\n"
        except Refused as refusal:
            assert SENTINEL not in str(refusal) or SENTINEL in path
        try:
            names = {entry.name for entry in tree.entries(path, max_entries=1000).entries}
        except Refused:
            return
        assert names in [set(os.listdir(each)) for each in (real, real / "d", real / "d" / "e")]


@settings(max_examples=100, deadline=None)
@given(pattern=PATHS)
def test_no_pattern_reaches_outside(maze: Path, pattern: str) -> None:
    _, text = Hands(maze, hidden=True).use("glob", pattern=pattern.encode("utf-8", "replace").decode())
    assert SENTINEL not in text or SENTINEL in pattern
