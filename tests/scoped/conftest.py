"""Every test of scoped agents runs in both faces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..kit import World


@pytest.fixture(params=["sync", "async"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A folder and a face; closes what the test opened."""
    made = World(request.param, tmp_path)
    yield made
    await made.close()
