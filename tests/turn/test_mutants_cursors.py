"""A cursor is a sequence: whatever else is given as one is refused, and never opens another session's events (§10)."""

from __future__ import annotations

import pytest

from thence.testing import reply

from ..kit import World


@pytest.mark.parametrize("after", [-1, -7, 2**40, 2**63])
@pytest.mark.parametrize("read", ["run_event_page", "events", "tail_list"])
async def test_what_is_no_sequence_is_refused(world: World, read: str, after: int):
    agent = await world.agent([reply("one"), reply("two")])
    other = await agent.session(world.folder / "other")
    await other.send("a secret of the other session")
    session = await agent.session(world.folder / "work")
    run = await session.send("mine")
    where = () if read == "events" else (run.run_id,)
    with pytest.raises(ValueError, match="after_sequence"):
        await getattr(session, read)(*where, after_sequence=after)
