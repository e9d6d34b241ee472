"""Folders for files that are opened a thousand times, and children that never outlive their test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..processes.kit import Child
from .kit import FACES

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has one: these tests are about processes that die, not about disks."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="resume-") as folder:
        yield Path(folder)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    """The face that resumes."""
    name: str = request.param
    return name


@pytest.fixture
def db(quick: Path) -> Path:
    """Where the database of this test will be."""
    return quick / "a.db"


@pytest.fixture
def spawn(db: Path) -> Iterator[Callable[..., Child]]:
    """Starts children on the test's database; whatever is left of them afterwards is killed."""
    children: list[Child] = []

    def start(code: str, *args: object, path: Path | None = None, **how: object) -> Child:
        child = Child(code, [path or db, *args], **how)  # type: ignore[arg-type]
        children.append(child)
        return child

    yield start
    for child in children:
        child.clean_up()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Keeps a figure beside the test's report (`--junitxml`); it decides nothing."""
    return lambda name, value: request.node.user_properties.append((name, value))
