"""§12 the built-in workspace tools: what they say, what they leave out, how much they do at most."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from thence.errors import ToolError
from thence.host import confine
from thence.host.browse import Bounds
from thence.host.context import ToolCancelled
from thence.host.toolkit import Tool, ToolOutput, collect
from thence.host.workspace import workspace_tools

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


def test_they_are_read_tools_with_schemas() -> None:
    tools = collect(workspace_tools())
    assert list(tools) == ["ls", "read", "glob", "grep"]
    assert {each.effect for each in tools.values()} == {"read"}
    assert all(each.wants_context and each.description for each in tools.values())
    properties: Any = tools["read"].spec.parameters["properties"]
    assert {name: each.get("default") for name, each in properties.items()} == {"path": None, "offset": 0, "limit": 400}
    assert all(each["description"] for each in properties.values())
    assert tools["read"].spec.parameters["required"] == ["path"]


@pytest.mark.parametrize("more", [{"write": True}, {"bash": True}])
def test_write_tools_are_refused_for_now(more: dict[str, bool]) -> None:
    with pytest.raises(ToolError, match="later release"):
        workspace_tools(**more)


def test_ls_read_glob_grep(hands: Hands, place: Path) -> None:
    assert hands.ok("ls") == "a.txt (14 bytes)\nsrc/"
    assert hands.ok("ls", path="src") == "b.py (10 bytes)\ndeep/"
    assert hands.ok("ls", path=str(place / "src" / "deep")) == "c.py (11 bytes)"
    assert hands.ok("read", path="a.txt") == "one\ntwo\nthree\n"
    assert hands.ok("read", path=str(place / "a.txt"), offset=1, limit=1) == "two\n[more follows; go on with offset=2]"
    assert hands.ok("read", path="a.txt", offset=2) == "three\n[end of file, 3 lines]"
    assert hands.ok("read", path="a.txt", offset=3) == "[nothing at offset 3: the file has 3 lines]"
    assert hands.ok("glob", pattern="**/*.py") == "src/b.py\nsrc/deep/c.py"
    assert hands.ok("glob", pattern="*") == "a.txt\nsrc/"
    assert hands.ok("grep", pattern="^import") == "src/b.py:1: import os\nsrc/deep/c.py:1: import sys"
    assert hands.ok("grep", pattern="(?i)TWO$", path="a.txt") == "a.txt:2: two"
    assert hands.ok("grep", pattern="nowhere") == "[no match]"


def test_a_file_may_lack_its_last_newline(hands: Hands, place: Path) -> None:
    (place / "x").write_text("a\nb")
    assert hands.ok("read", path="x") == "a\nb"
    assert hands.ok("read", path="x", offset=1) == "b\n[end of file, 2 lines]"
    assert hands.ok("read", path="x", limit=2) == "a\nb"
    (place / "x").write_text("")
    assert hands.ok("read", path="x") == "[empty file]"


HIDDEN = [".env", ".git/config", "id_rsa", "ID_RSA.bak", "server.pem", "TLS.KEY", "credentials", "credentials.json"]
HIDDEN += [".netrc", "secrets.yaml", "prod.env", "cert.p12", "src/.hidden/x"]


@pytest.mark.parametrize("path", HIDDEN)
def test_secret_names_need_hidden(place: Path, way: None, path: str) -> None:
    (place / path).parent.mkdir(parents=True, exist_ok=True)
    (place / path).write_text(SENTINEL)
    (place / "innocent").symlink_to(path)
    (place / path).parent.joinpath("plain.txt").write_text("x")
    hands = Hands(place)
    assert "hidden or secret" in hands.refused("read", path=path)
    assert "hidden or secret" in hands.refused("read", path="innocent")
    assert SENTINEL not in hands.ok("grep", pattern=SENTINEL)
    assert "1 hidden or protected" in hands.ok("grep", pattern="x")
    assert path not in hands.ok("glob", pattern="**")
    shown = Hands(place, hidden=True)
    assert shown.ok("read", path=path) == SENTINEL
    assert shown.ok("read", path="innocent") == SENTINEL
    assert f"{path}:1: {SENTINEL}" in shown.ok("grep", pattern=SENTINEL)


def test_ordinary_names_are_not_secret() -> None:
    for name in ("keyboard.py", "pem.txt", "key", "environment.ts", "secretary.md", "my_id_rsa_notes.txt"):
        assert not confine.is_hidden(name), name


def test_odd_names_stay_on_one_line_and_can_be_read(place: Path, hands: Hands) -> None:
    names = ["two\nlines", "tab\t", " lead", "日本.txt", "é", "e\u0301", '"quoted"', "\u202ertl", "a  b"]
    for name in names:
        (place / "src" / "deep" / name).write_text(f"found {len(name)}\n")
        assert hands.ok("read", path=f"src/deep/{name}") == f"found {len(name)}\n"
    listing = hands.ok("ls", path="src/deep").splitlines()
    assert len(listing) == len(names) + 1
    assert '"two\\nlines" (8 bytes)' in listing and "日本.txt (8 bytes)" in listing
    assert '"\\u202ertl" (8 bytes)' in listing and '" lead" (8 bytes)' in listing
    assert len(hands.ok("glob", pattern="src/deep/*").splitlines()) == len(names) + 1
    assert '"src/deep/two\\nlines":1: found 9' in hands.ok("grep", pattern="found 9")


def test_names_that_are_not_utf8_are_shown_and_walked(place: Path, hands: Hands) -> None:
    folder = os.fsencode(place) + b"/bad\xff"
    os.mkdir(folder)
    with open(folder + b"/f\xfe.txt", "w") as file:
        file.write("needle\n")
    assert '"bad\\xff"/' in hands.ok("ls")
    assert hands.ok("glob", pattern="**/*.txt") == 'a.txt\n"bad\\xff/f\\xfe.txt"'
    assert hands.ok("grep", pattern="needle") == '"bad\\xff/f\\xfe.txt":1: needle'


def test_binary_files_are_named_not_shown(place: Path, hands: Hands) -> None:
    (place / "x.bin").write_bytes(b"needle\0\1\2")
    (place / "y.bin").write_bytes(bytes(range(128, 256)) * 10 + b"needle")
    (place / "latin.txt").write_bytes(b"caf\xe9 needle, and a long enough line of text\n")
    (place / "utf8.txt").write_text("é" * 5000)
    assert hands.ok("read", path="x.bin") == "[binary file of 9 bytes, not shown]"
    assert "binary" in hands.ok("read", path="y.bin")
    assert hands.ok("read", path="latin.txt").splitlines() == [
        "caf\ufffd needle, and a long enough line of text",
        "[bytes that are not UTF-8 are shown as \ufffd]",
    ]
    assert "[line cut: 10000 bytes in all]" in hands.ok("read", path="utf8.txt")
    found = hands.ok("grep", pattern="needle")
    assert found.startswith("latin.txt:1: caf") and "[left out: 2 binary files]" in found


def test_long_lines_are_cut_at_a_character(place: Path, way: None) -> None:
    hands = Hands(place, bounds=Bounds(line_bytes=10, searched_line_bytes=12))
    (place / "x").write_text("ab" + "€" * 10 + "needle\nend\n")
    assert hands.ok("read", path="x") == "ab€€ [line cut: 39 bytes in all]\nend\n"
    assert hands.ok("grep", pattern="needle", path="x") == "[no match]\n[left out: 1 line ends beyond 12 bytes]"
    assert hands.ok("grep", pattern="^ab€", path="x").startswith("x:1: ab€ [line cut]\n")


def test_read_says_where_to_go_on_until_the_end(place: Path, way: None) -> None:
    hands = Hands(place, bounds=Bounds(shown_bytes=1000))
    lines = [f"line {number} {'é' * (number % 7)}\n" for number in range(500)]
    (place / "x").write_text("".join(lines))
    got, offset = "", 0
    for _ in range(100):
        text = hands.ok("read", path="x", offset=offset)
        body, _, note = text.rpartition("[")
        got += body
        if note.startswith("end of file"):
            break
        assert len(body.encode()) <= 1000
        offset = int(note.removeprefix("more follows; go on with offset=").removesuffix("]"))
    assert got == "".join(lines)


@pytest.mark.parametrize("arguments", [{"offset": -1}, {"limit": 0}, {"limit": -5}])
def test_read_refuses_bad_ranges(hands: Hands, arguments: dict[str, int]) -> None:
    assert "offset must be at least 0" in hands.refused("read", path="a.txt", **arguments)


def test_a_huge_file_costs_no_memory(place: Path, way: None) -> None:
    with open(place / "huge", "wb") as file:
        file.write(b"first\n" + b"x" * 20_000)
        file.truncate(1 << 36)
    hands = Hands(place, bounds=Bounds(seconds=0.5))
    hands.ok("read", path="a.txt")
    hands.ok("grep", pattern="x", path="a.txt")
    tracemalloc.start()
    assert hands.ok("read", path="huge", limit=1) == "first\n[more follows; go on with offset=1]"
    assert "line 5 was not reached in 0.5 s" in hands.refused("read", path="huge", offset=5)
    assert "[left out: 1 files of more than 8388608 bytes]" in hands.ok("grep", pattern="x", path="huge")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


def test_entries_matches_and_bytes_are_bounded(place: Path, way: None) -> None:
    many = place / "many"
    many.mkdir()
    for number in range(60):
        (many / f"f{number:03}").write_text("hit\nhit\n")
    hands = Hands(place, bounds=Bounds(listed=50, matches=70))
    listing = hands.ok("ls", path="many").splitlines()
    assert listing[0] == "f000 (8 bytes)" and listing[49] == "f049 (8 bytes)"
    assert listing[50:] == ["[10 more entries not shown; use glob to narrow down]"]
    found = hands.ok("glob", pattern="many/*").splitlines()
    assert found[49:] == ["many/f049", "[more than 50 matches; the rest is not shown]"]
    hits = hands.ok("grep", pattern="hit", path="many").splitlines()
    assert hits[69:] == ["many/f034:2: hit", "[more than 70 matches; the rest is not shown]"]
    narrow = Hands(place, bounds=Bounds(shown_bytes=100))
    for text in (
        narrow.ok("ls", path="many"),
        narrow.ok("glob", pattern="many/*"),
        narrow.ok("grep", pattern="hit", path="many"),
    ):
        assert len(text.partition("[")[0].encode()) <= 100 and "not shown" in text
    few = Hands(place, bounds=Bounds(scanned=40))
    assert "more than 40 entries; only these were looked at" in few.ok("ls", path="many").replace("the folder has ", "")
    assert "[more than 40 entries; only these were looked at]" in few.ok("glob", pattern="**/f059")
    assert "[more than 40 entries; only these were looked at]" in few.ok("grep", pattern="x", path="many")


def test_an_exact_fit_is_not_called_cut(place: Path, way: None) -> None:
    hands = Hands(place, bounds=Bounds(listed=2, matches=2, scanned=2))
    assert hands.ok("ls") == "a.txt (14 bytes)\nsrc/"
    assert hands.ok("glob", pattern="*") == "a.txt\nsrc/"
    assert hands.ok("grep", pattern="e$", path="a.txt") == "a.txt:1: one\na.txt:3: three"


def test_one_entry_too_many_is_said(place: Path, way: None) -> None:
    hands = Hands(place, bounds=Bounds(scanned=1))
    assert "more than 1 entries" in hands.ok("ls")
    assert "more than 1 entries" in hands.ok("glob", pattern="*")


def test_time_is_bounded_and_cancel_stops(place: Path) -> None:
    late = Hands(place, bounds=Bounds(seconds=0.0))
    assert "stopped after 0 s" in late.ok("glob", pattern="**")
    assert "stopped after 0 s" in late.ok("grep", pattern="x")
    assert "not reached" in late.refused("read", path="a.txt")
    stopped = Hands(place, is_cancelled=lambda: True)
    for name, arguments in (("glob", {"pattern": "**"}), ("grep", {"pattern": "x"}), ("read", {"path": "a.txt"})):
        with pytest.raises(ToolCancelled):
            stopped.use(name, **arguments)


def test_equal_folders_give_equal_answers(tmp_path: Path, way: None) -> None:
    names = [f"n{number}" for number in range(40)]
    for folder, order in (("x", names), ("y", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_text("same\n")
    x, y = Hands(tmp_path / "x"), Hands(tmp_path / "y")
    for name, arguments in (("ls", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "same"})):
        assert x.ok(name, **arguments) == y.ok(name, **arguments)


def test_results_are_outputs_only_when_refused(place: Path) -> None:
    tools: dict[str, Tool] = collect(workspace_tools())
    assert isinstance(tools["ls"].call({"path": "."}, context(place)), str)
    refused = tools["ls"].call({"path": ".."}, context(place))
    assert isinstance(refused, ToolOutput) and not refused.ok and refused.changed_paths == ()
