"""Waits and tools that are over their time while nobody has the run (§5, §7, §10)."""

from __future__ import annotations

import pytest

from thence import SessionOptions

from ..kit import check_session, results
from ..resume.kit import calls, done
from .kit import C0, NOT_IN_TIME, Desk, asks, events_of, ids
from .test_meeting_more import W, stopped_with_an_open_wait


async def test_recover_does_all_of_an_interrupted_run_whose_wait_is_overdue(desk):
    """§7, §10: every interrupted run is resumed and every deadline judged, by one call, not by the next one."""
    here: Desk = desk(
        [calls("put:0", "look:1"), done()], permission_policy=asks("put", timeout_ms=60_000)
    )  # fmt: skip
    dead = await stopped_with_an_open_wait(here, "interrupt")
    here.later(60_001)
    session = await here.reopen()
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    [one] = await here.agent.recover(options=give)
    assert (one.run_id, one.error, one.result.status) == (dead, None, "completed")
    assert results(await check_session(session))[0] == (C0, False, NOT_IN_TIME)
    assert len(await events_of(session, one.result.run_id, "confirmation_timeout")) == 1
    assert C0 not in here.effects.times() and await session.waits() == []


@pytest.mark.parametrize("late_ms", [59_999, 60_000])
async def test_recover_leaves_an_interrupted_run_parked_whose_wait_is_not_overdue(desk, late_ms: int):
    """§10: until its deadline, and on the millisecond, it can be answered."""
    here: Desk = desk([calls("put:0", "look:1"), done()], permission_policy=asks("put", timeout_ms=60_000))
    await stopped_with_an_open_wait(here, "interrupt")
    here.later(late_ms)
    session = await here.reopen()
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    [one] = await here.agent.recover(options=give)
    assert (one.error, one.result.status, ids(one.result)) == (None, "parked", [W])
    await session.confirm(C0, True)
    [one] = await here.agent.recover(options=give)
    assert one.result.status == "completed" and here.effects.times()[C0] == 1
