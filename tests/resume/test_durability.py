"""`docs/DURABILITY.md` says what the tests hold, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from .durability import DOCUMENT, PROMISES, ROOT, Promise, render


def names_in(path: str) -> set[str]:
    """Names of the test functions of a file below tests/."""
    tree = ast.parse((ROOT / "tests" / f"{path}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.dies}, {promise.when}"[:60])
def test_every_named_test_exists(promise: Promise) -> None:
    assert promise.tests and promise.kept and promise.again
    for test in promise.tests:
        path, name = test.split("::")
        assert name in names_in(path), test


def test_the_page_is_what_the_list_says() -> None:
    assert DOCUMENT.read_text() == render(), "run python3 tools/durability.py"


def test_the_tool_writes_the_page_and_changes_nothing_when_it_is_right() -> None:
    before = DOCUMENT.stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "durability.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert DOCUMENT.stat().st_mtime_ns == before


def test_the_promises_are_each_other_than_the_others() -> None:
    assert len({(one.dies, one.when) for one in PROMISES}) == len(PROMISES)
