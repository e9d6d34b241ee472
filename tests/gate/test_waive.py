"""What a host says at the gate (§5): waivers and reports of its own, what is refused, and by whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import RunInterrupted, SessionBusy, SessionClosed, SessionError, SessionOptions
from thence.facts import Reported
from thence.testing import reply

from ..kit import Gate, World, check_session, kinds, stored
from .kit import TOOLS, closed, last_run, let_go, writes, written


async def held(world: World, *texts: str, **options: Any) -> Any:
    """A session whose turn waits at the gate, and the gate's error."""
    session = await world.session([*writes(*(texts or ("x",))), reply("more")], TOOLS, completion_gate=True, **options)
    return session, await closed(session.send("go"))


async def test_a_waiver_is_a_fact_of_the_open_turn_and_opens_the_gate(world: World):
    session, error = await held(world)
    assert await session.waive(error.digest, "looked at it") is None
    fact = (await check_session(session))[-1]
    assert (fact.kind, fact.key, fact.cause, fact.run_id) == ("gate.waived", "t1-waive1", None, error.run_id)
    assert stored(fact) == {"digest": error.digest, "reason": "looked at it"}
    assert (await session.resume_run(error.run_id)).status == "completed"


async def test_the_same_waiver_again_adds_nothing(world: World):
    session, error = await held(world)
    await session.waive(error.digest, "once")
    facts = await session.facts()
    await session.waive(error.digest, "twice")
    assert await session.facts() == facts


async def test_a_hosts_own_report_opens_the_gate_when_it_passed(world: World):
    session, error = await held(world)
    await session.report_verification(error.digest, False, {"ci": "red"})
    assert (await closed(session.resume_run(error.run_id))).digest == error.digest
    await session.report_verification(error.digest, True, {"ci": ["green", 2**70, None]})
    fact = (await check_session(session))[-1]
    assert (fact.key, fact.cause) == ("t1-verify2", None)
    assert stored(fact) == {"digest": error.digest, "passed": True, "report": {"ci": ["green", 2**70, None]}}
    assert (await session.resume_run((await last_run(session)).id)).status == "completed"


async def test_a_report_that_passed_can_be_withdrawn(world: World):
    session, error = await held(world)
    await session.report_verification(error.digest, True)
    await session.report_verification(error.digest, False)
    await closed(session.resume_run(error.run_id))


async def test_a_large_report_goes_to_the_blob_table(world: World):
    session, error = await held(world)
    await session.report_verification(error.digest, True, "x" * 100_000)
    fact = (await check_session(session))[-1]
    assert "report_sha256" in stored(fact) and len(fact.text) < 1000
    assert isinstance(fact.payload, Reported) and fact.payload.report == "x" * 100_000


@pytest.mark.parametrize("other", ["0" * 64, "x", written("y")])
async def test_another_digest_is_refused_and_nothing_is_written(world: World, other: str):
    session, error = await held(world)
    facts = await session.facts()
    said = f"the open turn of session '{session.session_id}' has workspace changes {error.digest}, not {other}"
    with pytest.raises(SessionError) as refused:
        await session.waive(other, "why")
    assert str(refused.value) == said
    with pytest.raises(SessionError) as refused:
        await session.report_verification(other, True)
    assert str(refused.value) == said
    assert await session.facts() == facts
    # and the session is free
    assert (await last_run(session)).owner is None
    await session.waive(error.digest, "why")


async def test_a_turn_that_does_not_wait_there_is_refused(world: World):
    session = await world.session([reply("a"), *writes("x")], TOOLS)
    said = f"no turn of session '{session.session_id}' waits at the completion gate"
    for prompt in (None, "text", "write"):
        if prompt:
            await session.send(prompt)
        with pytest.raises(SessionError) as refused:
            await session.waive(written("x"), "why")
        assert str(refused.value) == said
    assert "gate.waived" not in kinds(await session.facts())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("", "r"), ValueError, "'digest' must not be empty or whitespace"),
        ((" \n", "r"), ValueError, "'digest' must not be empty or whitespace"),
        (("d", ""), ValueError, "'reason' must not be empty or whitespace"),
        (("d", "\t"), ValueError, "'reason' must not be empty or whitespace"),
        ((None, "r"), TypeError, "'digest' must be a string, not NoneType"),
        (("d", 3), TypeError, "'reason' must be a string, not int"),
        (("d", "\ud800"), ValueError, "reason"),
    ],
)
async def test_bad_words_of_a_waiver(world: World, arguments: Any, error: type[Exception], words: str):
    session, _ = await held(world)
    facts = await session.facts()
    with pytest.raises(error) as refused:
        await session.waive(*arguments)
    assert words in str(refused.value)
    assert await session.facts() == facts


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", True, None), ValueError),
        (("d", 1, None), TypeError),
        (("d", None, None), TypeError),
        (("d", True, float("nan")), ValueError),
        (("d", True, {1, 2}), ValueError),
        (("d", True, "x" * (16 * 1024 * 1024 + 1)), ValueError),
    ],
)
async def test_bad_words_of_a_report(world: World, arguments: Any, error: type[Exception]):
    session, _ = await held(world)
    facts = await session.facts()
    with pytest.raises(error):
        await session.report_verification(*arguments)
    assert await session.facts() == facts


async def test_while_a_run_lives_it_is_busy(world: World):
    gate = Gate()

    async def model_waits(request: Any) -> Any:
        await gate.await_()
        return reply("done")

    session = await world.session([model_waits], TOOLS, completion_gate=True)
    await session.spawn_run_with_id("r", "go")
    await gate.came()
    with pytest.raises(SessionBusy):
        await session.waive("d", "r")
    gate.open()


async def test_a_closed_session_is_closed(world: World):
    session, error = await held(world)
    await session.close()
    with pytest.raises(SessionClosed):
        await session.waive(error.digest, "r")


async def test_another_agent_on_the_file_waives_and_a_third_resumes(world: World):
    session, error = await held(world)
    second = await (await world.agent(tools=TOOLS)).resume_session(session.session_id)
    await second.waive(error.digest, "from elsewhere")
    third = await (await world.agent(tools=TOOLS)).resume_session(session.session_id)
    result = await third.resume_run(error.run_id)
    assert (result.text, result.status) == ("done", "completed")
    assert world.model.requests == []


async def test_two_at_once_write_one_after_the_other_or_are_told(world: World):
    session, error = await held(world)
    said = await asyncio.gather(
        *(session.report_verification(error.digest, True, n) for n in range(8)), return_exceptions=True
    )
    done = sum(one is None for one in said)
    assert done and all(one is None or isinstance(one, SessionBusy) for one in said)
    facts = await check_session(session)
    assert sum(fact.kind == "verification.reported" for fact in facts) == done
    assert (await last_run(session)).owner is None


async def test_an_interrupted_run_that_has_answered_can_be_waived(world: World):
    gate = Gate()

    def verifier(context: Any) -> bool:
        gate.wait()
        return False

    session = await world.session(writes("x"), TOOLS, verifier=verifier)
    await session.spawn_run_with_id("r", "go")
    await gate.came()
    await session.interrupt()
    await let_go(session)
    gate.open()
    with pytest.raises(RunInterrupted):
        await session.send("next")
    await session.waive(written("x"), "why")
    assert (await session.resume_run("r")).status == "completed"


async def test_a_waiver_does_not_carry_over_to_the_next_turn(world: World):
    session = await world.session([*writes("x"), *writes("x")], TOOLS, completion_gate=True)
    error = await closed(session.send("go"))
    await session.waive(error.digest, "this time")
    await session.resume_run(error.run_id)
    again = await closed(session.send("go"))
    assert again.digest == error.digest  # the same change, and not the same turn


async def test_the_options_of_the_resuming_host_decide(world: World):
    session, error = await held(world)
    off = SessionOptions(completion_gate=False)
    other = await (await world.agent(tools=TOOLS)).resume_session(session.session_id, off)
    assert (await other.resume_run(error.run_id)).status == "completed"
