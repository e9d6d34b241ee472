"""Fixtures of the process tests: children that never outlive their test, plain eyes that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .kit import Child, Plain


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Where the database of this test will be, in a folder of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "agents.db"


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
def plain(db: Path) -> Iterator[Callable[[], Plain]]:
    """Opens plain `sqlite3` connections on the test's database and closes them."""
    opened: list[Plain] = []

    def start() -> Plain:
        one = Plain(db)
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Keeps a figure beside the test's report (`--junitxml`); it decides nothing."""
    return lambda name, value: request.node.user_properties.append((name, value))
