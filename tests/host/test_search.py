"""§12 patterns: bounded whatever the model writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from thence.host import confine
from thence.host.browse import Pattern
from thence.host.confine import Refused, Tree
from thence.host.search import line_matcher

from .workspace_kit import Hands, make_place


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


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "(a|aa)+$", "a*a*a*a*a*a*a*b", "((a{1,30}){1,30}){1,9}$"])
def test_no_pattern_hangs(place: Path, pattern: str) -> None:
    """Python's own re needs years for the first three, holding every thread of the process."""
    (place / "evil.txt").write_text(("a" * 4000 + "!\n") * 20)
    done: list[str] = []
    worker = threading.Thread(target=lambda: done.append(Hands(place).ok("grep", pattern=pattern)), daemon=True)
    worker.start()
    worker.join(30)
    assert done and "no match" in done[0]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(", "unclosed group"),
        ("(?=x)", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"(\w{1000}){1000}", "size limit"),
        ("x" * 1001, "at most 1000"),
    ],
)
def test_bad_expressions_are_explained(hands: Hands, pattern: str, text: str) -> None:
    refused = hands.refused("grep", pattern=pattern)
    assert text in refused and "\n" not in refused


def test_the_expression_sees_one_line_without_its_end() -> None:
    assert line_matcher("^b$")("b") and not line_matcher("^b$")("ab")
    assert line_matcher(r"\d+ é")("x 12 é!")
    assert line_matcher("")("")


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "src/../*", "a\0", "x" * 1001, "/".join("x" * 101)])
def test_bad_path_patterns_are_refused(hands: Hands, pattern: str) -> None:
    hands.refused("glob", pattern=pattern)


def matched(pattern: str, path: str) -> bool:
    compiled = Pattern(pattern)
    positions = compiled.start()
    for name in path.split("/"):
        positions = compiled.step(positions, name)
    return compiled.complete(positions)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["a", "a.b"], ["a/b"]),
        ("**", ["a", "a/b/c"], []),
        ("src/**", ["src/a", "src/a/b"], ["src", "a/src"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["x/a", "ax"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/b/c"]),
        ("**/a/**/b", ["a/b", "x/a/y/b", "a/a/b/b"], ["b/a"]),
        ("[ab]?.py", ["ax.py", "bz.py"], ["cx.py", "a.py", "A/x.py"]),
        ("**/**/x", ["x", "a/x"], ["a"]),
        ("a*", ["a\nb"], []),
    ],
)
def test_path_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not matched(pattern, path)] == []
    assert [path for path in no if matched(pattern, path)] == []


def test_glob_opens_only_folders_that_can_match(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Tree.entries

    def watch(self: Tree, path: str, *, max_entries: int) -> confine.Listing:
        asked.append(path)
        return real(self, path, max_entries=max_entries)

    monkeypatch.setattr(Tree, "entries", watch)
    assert Hands(place).ok("glob", pattern="src/*.py") == "src/b.py"
    assert asked == [".", "src"]


def test_what_cannot_be_opened_is_counted(place: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tree.entries

    def deny(self: Tree, path: str, *, max_entries: int) -> confine.Listing:
        if path == "src/deep":
            raise Refused("Permission denied")
        return real(self, path, max_entries=max_entries)

    monkeypatch.setattr(Tree, "entries", deny)
    assert "[left out: 1 folders that could not be read]" in hands.ok("grep", pattern="import")
