"""Fixtures of the fault tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .kit_crew import Worker


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps figures beside the test's report (`--junitxml`) and prints them (`-s`, or when the test fails)."""

    def keep(**figures: object) -> None:
        request.node.user_properties.extend(figures.items())
        print(request.node.name, *(f"{name}={value}" for name, value in figures.items()))

    return keep


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory where there is one: for files that are only looked at, syncing them is waste."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="thence-test-", dir=shared))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts processes on ``a.db`` of the test's folder; whatever is left of them afterwards is killed."""
    workers: list[Worker] = []

    def start(code: str, name: str, *args: object, db: Path | None = None) -> Worker:
        workers.append(Worker(code, db or tmp_path / "a.db", name, *args))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()
