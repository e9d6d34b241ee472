"""Fixtures of the bad-input tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, fixed_env, reply

from .kit import FACES, Face


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Each test that asks for it runs in both faces."""
    one = Face(request.param)
    yield one
    one.leave()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Where the database of this test will be, in a folder of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "agents.db"


@pytest.fixture(scope="module")
def used_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A closed database with one finished turn in session ``s``: the run ``run-t-0``."""
    path = tmp_path_factory.mktemp("used") / "agents.db"
    with Agent(path, model=ScriptedModel([reply("Hello.")]), host_env=fixed_env("t")) as agent:
        agent.session("/w", SessionOptions(session_id="s", tenant_id="t")).send("Hi.")
    return path.read_bytes()


@pytest.fixture
def used(db: Path, used_file: bytes) -> Path:
    """A copy of that database."""
    db.write_bytes(used_file)
    return db
