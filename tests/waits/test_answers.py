"""Answers (§10): what counts as one, who wins, and that SQLite itself decides."""

from __future__ import annotations

from typing import Any

import pytest

from thence import SessionClosed, ThenceError, WaitError
from thence.testing import call, reply

from ..kit import results
from ..resume.kit import calls, done
from .kit import C0, Desk, Plain, asks, digest, ended_well, said_yes, wait_error

W = f"{C0}-w1"
PUT = [calls("put:1"), done()]


def put_desk(desk: Any, **more: Any) -> Desk:
    made: Desk = desk(PUT, permission_policy=asks("put", **more))
    return made


# ------------------------------------------------------------------ codes


async def test_a_wait_error_is_one_of_ours(desk):
    """§1: one base, a stable code."""
    session, _ = await put_desk(desk).parked()
    with pytest.raises(ThenceError) as caught:
        await session.answer("nobody", True)
    assert isinstance(caught.value, WaitError) and caught.value.code == "WAIT_NOT_FOUND"
    assert "nobody" in str(caught.value)


@pytest.mark.parametrize("wait_id", ["nobody", C0, f"{C0}-w2", "t9-r9-c9-w1", ""])
async def test_a_wait_that_is_not_there(desk, wait_id: str):
    """§10: a typed error, never silence. (An empty id is a bad argument or a wait that is not there.)"""
    session, _ = await put_desk(desk).parked()
    with pytest.raises((WaitError, ValueError)) as caught:
        await session.answer(wait_id, True)
    assert not isinstance(caught.value, WaitError) or caught.value.code == "WAIT_NOT_FOUND"
    assert [wait.state for wait in await session.waits()] == ["open"]


async def test_A12_the_ids_of_others_are_no_call_keys(desk):
    """A12, §4: a provider's call id and a message id name no wait: a typed error, the wait stays open; the result is
    stored under the call key."""
    script = [reply(calls=[call("put", {"n": 1}, id="c-1")]), done()]
    here: Desk = desk(script, permission_policy=asks("put"))
    session, result = await here.parked()
    for wrong in ("c-1", "m-1", "t1-r1", "t1-user"):
        with wait_error("WAIT_NOT_FOUND"):
            await session.confirm(wrong, True)
        with wait_error("WAIT_NOT_FOUND"):
            await session.answer(wrong, True)
    assert [wait.state for wait in await session.waits()] == ["open"]
    await session.confirm(C0, True)
    await session.resume_run(result.run_id)
    assert results(await ended_well(session, result.run_id)) == [(C0, True, "put 1")]


async def test_a_second_answer_is_too_late(desk):
    """§10: one per wait; the first one counts, the same one again is no exception."""
    session, result = await put_desk(desk).parked()
    await session.answer(W, False, by="first")
    for value in (True, False):
        with wait_error("WAIT_ALREADY_ANSWERED"):
            await session.answer(W, value, by="second")
        with wait_error("WAIT_ALREADY_ANSWERED"):
            await session.confirm(C0, value)
    [wait] = await session.waits()
    assert (wait.state, said_yes(wait.value), wait.by) == ("answered", False, "first")
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert results(await session.facts()) == [(C0, False, "Error: rejected by first")]


async def test_an_answer_after_the_run_went_on(desk):
    """§10: answered and closed: either is true to say, nothing changes. By call key there is no open one."""
    here = put_desk(desk)
    session, result = await here.parked()
    await session.answer(W, True)
    await session.resume_run(result.run_id)
    with wait_error("WAIT_ALREADY_ANSWERED", "WAIT_CLOSED"):
        await session.answer(W, False)
    with wait_error("WAIT_ALREADY_ANSWERED", "WAIT_CLOSED", "WAIT_NOT_FOUND"):
        await session.confirm(C0, False)
    await ended_well(session, result.run_id)


async def test_an_answer_after_a_cancel(desk):
    """§10: the waits of a run that was cancelled are closed."""
    session, _ = await put_desk(desk).parked()
    assert await session.cancel() is True
    with wait_error("WAIT_CLOSED"):
        await session.answer(W, True)


async def test_an_answer_after_the_deadline(desk):
    """§10: the deadline is judged inside the answering transaction."""
    here = put_desk(desk, timeout_ms=1_000)
    session, _ = await here.parked()
    here.later(1_001)
    with wait_error("WAIT_EXPIRED"):
        await session.answer(W, True)
    with wait_error("WAIT_EXPIRED"):
        await session.confirm(C0, True)
    with Plain(here.db) as plain:
        assert plain.one("SELECT count(*) FROM wait_answer") == 0


async def test_an_answer_just_before_the_deadline(desk):
    """§10: the planted fault of the test above."""
    here = put_desk(desk, timeout_ms=1_000)
    session, result = await here.parked()
    here.later(999)
    await session.answer(W, True)
    assert (await session.resume_run(result.run_id)).tool_calls_count == 1


@pytest.mark.parametrize("wrong", ["00" * 32, digest("put", {"n": 2}), digest("bash", {"n": 1}), "x", ""])
async def test_the_digest_that_was_seen_must_be_the_one_that_is_asked(desk, wrong: str):
    """§10: who approves may say what it saw; other arguments are not what it approved."""
    session, _ = await put_desk(desk).parked()
    with wait_error("WAIT_DIGEST_MISMATCH"):
        await session.answer(W, True, digest=wrong)
    assert [wait.state for wait in await session.waits()] == ["open"]


async def test_the_right_digest(desk):
    """§10: digest of the tool's name and its arguments, by canonical JSON."""
    session, result = await put_desk(desk).parked()
    await session.answer(W, True, digest=digest("put", {"n": 1}))
    assert (await session.resume_run(result.run_id)).tool_calls_count == 1


async def test_waits_of_other_sessions(desk):
    """§10: ids are those of a session: another session's wait of the same name is neither seen nor answered."""
    here = put_desk(desk)
    first, _ = await here.parked()
    second = await here.session("other")
    assert await second.waits() == []
    with wait_error("WAIT_NOT_FOUND"):
        await second.answer(W, True)
    assert (await second.send("Go.")).status == "parked"
    assert {(wait.session_id, wait.id) for wait in await here.agent.waits()} == {("s", W), ("other", W)}
    await second.answer(W, True)
    assert [wait.state for wait in await first.waits()] == ["open"]


async def test_a_closed_session_answers_nothing(desk):
    """§1: after close `SessionClosed`."""
    session, _ = await put_desk(desk).parked()
    await session.close()
    for name, args in (("answer", (W, True)), ("confirm", (C0, True)), ("waits", ())):
        with pytest.raises(SessionClosed):
            await getattr(session, name)(*args)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("value", [True, {"approved": True}, {"approved": True, "reason": "fine"}])
async def test_what_approves(desk, value: Any):
    here = put_desk(desk)
    session, result = await here.parked()
    await session.answer(W, value)
    await session.resume_run(result.run_id)
    assert here.effects.keys() == [C0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (False, "Error: rejected by a person"), ({"approved": False}, "Error: rejected by a person"),
        ({"approved": False, "reason": "no"}, "Error: rejected by a person: no"),
    ],
)  # fmt: skip
async def test_what_rejects(desk, value: Any, text: str):
    here = put_desk(desk)
    session, result = await here.parked()
    await session.answer(W, value)
    await session.resume_run(result.run_id)
    assert results(await session.facts()) == [(C0, False, text)] and here.effects.ran == []


WRONG = [
    None, 1, 0, "yes", "true", "", [], [True], {}, {"approved": 1}, {"approved": "true"}, {"approved": None},
    {"approved": True, "reason": 5}, {"approved": True, "more": 1}, {"reason": "no"}, {"outcome": "run"}, object(),
    float("nan"),
]  # fmt: skip


async def test_what_is_no_answer_to_a_confirmation(desk):
    """§10, public API: ValueError or TypeError naming `value`, before anything is written."""
    here = put_desk(desk)
    session, _ = await here.parked()
    with Plain(here.db) as plain:
        before = plain.state()
        for value in WRONG:
            with pytest.raises((ValueError, TypeError), match="value"):
                await session.answer(W, value)
        for value in (None, 1, "yes", {"approved": True}):
            with pytest.raises((ValueError, TypeError)):
                await session.confirm(C0, value)
        for more in ({"by": 5}, {"digest": 5}, {"digest": b"x"}):
            with pytest.raises((ValueError, TypeError)):
                await session.answer(W, True, **more)
        with pytest.raises((ValueError, TypeError)):
            await session.confirm(C0, False, 5)
        with pytest.raises((ValueError, TypeError)):
            await session.answer(5, True)
        assert plain.state() == before
