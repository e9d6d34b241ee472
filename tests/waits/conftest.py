"""Both faces, folders in memory where there are any, and processes that never outlive their test."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from thence.cli.app import cli

from ..cli.conftest import provider, shell
from ..kit import World
from ..processes.kit import Child
from .cli_kit import File
from .kit import Desk

__all__ = ["provider", "shell"]

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has one: these tests are not about disks."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="waits-") as folder:
        yield Path(folder)


@pytest.fixture(params=["sync", "async"])
async def world(request: pytest.FixtureRequest, quick: Path) -> AsyncIterator[World]:
    """A folder and a face; closes what the test opened."""
    made = World(request.param, quick)
    yield made
    await made.close()


@pytest.fixture
def desk(world: World) -> Callable[..., Desk]:
    """``desk(script, permission_policy=..., ...)``: a file with a session ``s`` of these options."""

    def make(script: Any, *, tools: Any = (), **options: Any) -> Desk:
        return Desk(world, script, tools, **options)

    return make


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts children; whatever is left of them afterwards is killed."""
    children: list[Child] = []

    def start(code: str, *args: object) -> Child:
        child = Child(code, args)
        children.append(child)
        return child

    yield start
    for child in children:
        child.clean_up()


@pytest.fixture
def file(quick: Path) -> File:
    """A file without a session; ``file.park("s")`` makes a parked one."""
    return File(quick / "thence.db")


@pytest.fixture
def invoke(file: File, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``invoke(*words)``: the command in this process, on the file."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("THENCE_DB", str(file.path))

    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, list(words), prog_name="thence")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return result

    return run
