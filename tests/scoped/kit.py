"""A file of two tenants, each with two principals, and agents that see a part of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from thence import SessionOptions

from ..kit import Both, World

TENANTS = {"s0": ("a", "p"), "s1": ("a", "q"), "s2": ("b", "p"), "s3": (None, None), "s4": (None, "p")}


def scoped(agent: Both, **tags: Any) -> Both:
    """A scoped agent of the same face; ``scoped`` is plain in both."""
    return Both(agent.raw.scoped(**tags))


async def file(world: World, script: Iterable[Any] = (), **given: Any) -> Both:
    """An agent that sees all of a file with a session for each of :data:`TENANTS`."""
    agent = await world.agent(script, **given)
    for name, (tenant, principal) in TENANTS.items():
        await agent.session("/w", SessionOptions(session_id=name, tenant_id=tenant, principal=principal))
    return agent


async def ids(agent: Both, **filters: Any) -> list[str]:
    return [info.session_id for info in await agent.list_sessions(**filters)]


def rows(world: World) -> list[Any]:
    """All that the file holds of sessions, runs and facts."""
    with sqlite3.connect(f"file:{world.db}?mode=ro", uri=True) as db:
        found = [
            *db.execute("SELECT * FROM session ORDER BY 1"),
            *db.execute("SELECT * FROM session_option ORDER BY 1"),
            *db.execute("SELECT * FROM run_identity ORDER BY 1"),
            *db.execute("SELECT * FROM fact ORDER BY 1"),
            *db.execute("SELECT * FROM inbox ORDER BY 1"),
        ]
    db.close()
    return found


def words(error: BaseException) -> str:
    """All that an error says, causes included."""
    said, seen = "", error
    while True:
        said += f"{seen!r} {seen} {vars(seen)} "
        follows = seen.__cause__ or seen.__context__
        if follows is None:
            return said
        seen = follows
