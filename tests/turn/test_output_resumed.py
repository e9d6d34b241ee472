"""A turn with an output type that parks, stops, fails or goes on elsewhere (§1, §5, §7, §10): what is asked stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from thence import ModelError, OutputInvalid, Question, RunFailed, RunInterrupted, SessionBusy, SessionOptions
from thence.testing import call, reply
from thence.waits import Wait

from ..kit import Both, Gate, World, check_session, kinds

REFUSED = ModelError("http_400", "no", retryable=False)


class City(BaseModel):
    name: str


class Land(BaseModel):
    name: str
    people: int = 0


BERN = City(name="Bern")
BERN_TEXT = '{"name": "Bern"}'


def schemas(world: World) -> list[Any]:
    """What each request so far was to be answered with."""
    return [request.output_schema for request in world.model.requests]


async def reopened(world: World, script: list[Any], tools: Any = ()) -> Both:
    """The session ``s``, by an agent of another process: nothing of the first one's memory is there."""
    await world.close()
    agent = await world.agent(script, tools=tools)
    session: Both = await agent.session("/w", SessionOptions(session_id="s"))
    return session


async def failed_run(world: World) -> str:
    agent = await world.agent([REFUSED])
    session = await agent.session("/w", SessionOptions(session_id="s"))
    with pytest.raises(RunFailed) as failed:
        await session.send("go", output_type=City)
    assert failed.value.run_id is not None
    return failed.value.run_id


async def test_a_run_that_is_resumed_elsewhere_asks_for_the_same(world: World):
    run_id = await failed_run(world)
    asked = schemas(world)[0]
    session = await reopened(world, [reply(BERN_TEXT)])
    result = await session.resume_run(run_id)
    assert schemas(world)[0] == asked and asked is not None
    assert (result.text, result.output) == (BERN_TEXT, None), "the type is not in the file"
    assert kinds(await check_session(session)).count("run.configured") == 1
    # The turn has ended: the type may still be given, and reads what is recorded.
    again = await session.resume_run(run_id, output_type=City)
    assert (again.output, again.replayed) == (BERN, True)
    assert len(world.model.requests) == 1


async def test_with_the_type_the_output_is_there_at_once(world: World):
    run_id = await failed_run(world)
    session = await reopened(world, [reply(BERN_TEXT)])
    result = await session.resume_run(run_id, run_id="next", output_type=City)
    assert (result.output, result.run_id) == (BERN, "next")
    assert kinds(await session.facts()).count("run.configured") == 1


async def test_another_type_wins_and_is_in_the_log(world: World):
    run_id = await failed_run(world)
    session = await reopened(world, [reply('{"name": "Bern", "people": 1}')])
    result = await session.resume_run(run_id, output_type=Land)
    assert result.output == Land(name="Bern", people=1)
    assert "people" in schemas(world)[0]["properties"]
    assert kinds(await check_session(session)).count("run.configured") == 2


async def test_a_recovery_that_does_not_fit_has_completed(world: World):
    run_id = await failed_run(world)
    session = await reopened(world, [reply("no")])
    spawned = await session.spawn_recovery_with_run_id(run_id, "next", output_type=City)
    with pytest.raises(OutputInvalid) as refused:
        await (asyncio.to_thread(spawned.wait) if session.blocking else spawned.wait())
    assert (refused.value.run_id, refused.value.text) == ("next", "no")
    again = await session.spawn_recovery_with_run_id(run_id, "next", output_type=City)
    assert again.replayed and again.run.status == "completed"


async def interrupted_run(world: World, *then: Any) -> Both:
    gate = Gate()

    def look() -> str:
        gate.wait()
        return "seen"

    script = [reply(calls=[call("look")]), *then]
    agent = await world.agent(script, tools=[look])
    session: Both = await agent.session("/w", SessionOptions(session_id="s"))
    task = asyncio.ensure_future(session.send("Where?", run_id="first", output_type=City))
    await gate.came()
    assert await session.interrupt("a moment")
    gate.open()
    with pytest.raises(RunInterrupted):
        await task
    return session


async def test_recover_asks_for_the_same(world: World):
    await interrupted_run(world)
    asked = schemas(world)[0]

    def look() -> str:
        return "seen"

    await reopened(world, [reply(BERN_TEXT)], tools=[look])
    recovered = await world._agents[-1].recover()
    assert [one.result.text for one in recovered] == [BERN_TEXT]
    assert schemas(world)[0] == asked


async def test_a_turn_that_is_resumed_first_keeps_its_own_type(world: World):
    session = await interrupted_run(world, reply(BERN_TEXT), reply('{"result": [1, 2]}'))
    result = await session.send("Numbers?", output_type=list[int], on_interrupted="resume")
    assert (result.output, result.status) == ([1, 2], "completed")
    first, second, third = schemas(world)
    assert first == second and list(third["properties"]) == ["result"]
    # The caller's id of the run that was interrupted gives the outcome of whoever went on with it.
    again = await session.send("Where?", run_id="first", output_type=City)
    assert (again.output, again.replayed) == (BERN, True)


async def test_what_is_said_after_a_settled_turn_is_not_asked_for_its_type(world: World):
    session = await interrupted_run(world, reply("Fine."))
    result = await session.send("And?", on_interrupted="settle")
    assert (result.text, result.output, schemas(world)[-1]) == ("Fine.", None, None)


async def test_a_send_that_is_stopped_does_not_read_the_turn_before_as_its_own(world: World):
    """That one is resumed first; whoever stops the send then is given its text, and no error for what it is not."""
    session, gate = await interrupted_run(world, reply(BERN_TEXT)), Gate()
    await session.register_hook("post_llm", lambda context: gate.wait())
    task = asyncio.ensure_future(session.send("Numbers?", output_type=list[int], on_interrupted="resume"))
    await gate.came()
    assert await session.interrupt()
    gate.open()
    result = await task
    assert (result.text, result.status, result.output) == (BERN_TEXT, "completed", None)
    assert len(world.model.requests) == 2


async def parked(world: World) -> tuple[Both, Any]:
    def ask() -> str:
        raise Question("Which one?")

    agent = await world.agent([reply(calls=[call("ask")]), reply(BERN_TEXT)], tools=[ask])
    session: Both = await agent.session("/w", SessionOptions(session_id="s"))
    return session, await session.send("go", run_id="mine", output_type=City)


async def test_a_parked_run_has_no_output_yet_and_its_resume_has(world: World):
    session, result = await parked(world)
    assert (result.status, result.output) == ("parked", None)
    again = await session.send("go", run_id="mine", output_type=City)
    assert (again.status, again.output, again.replayed) == ("parked", None, True)
    with pytest.raises(SessionBusy):
        await session.resume_run("mine", output_type=City)
    wait: Wait = result.waits[0]
    await session.answer(wait.id, "Bern")
    done = await session.resume_run("mine", output_type=City)
    assert (done.output, done.run_id) == (BERN, "mine")
    assert schemas(world)[0] == schemas(world)[1]
    assert kinds(await check_session(session)).count("run.configured") == 1
    assert (await session.send("go", run_id="mine", output_type=City)).output == BERN


async def test_a_parked_run_that_goes_on_elsewhere_asks_for_the_same(world: World):
    _, result = await parked(world)
    asked = schemas(world)[0]

    def ask() -> str:
        return "nobody asks any more"

    session = await reopened(world, [reply(BERN_TEXT)], tools=[ask])
    await session.answer(result.waits[0].id, "Bern")
    done = await session.resume_run("mine")
    assert (done.text, done.output) == (BERN_TEXT, None)
    assert schemas(world)[0] == asked


async def test_a_cancelled_run_has_no_output(world: World):
    gate = Gate()

    def look() -> str:
        gate.wait()
        return "seen"

    session = await world.session([reply(calls=[call("look")]), reply(BERN_TEXT)], tools=[look])
    task = asyncio.ensure_future(session.send("go", output_type=City))
    await gate.came()
    assert await session.cancel()
    gate.open()
    result = await task
    assert (result.status, result.output) == ("cancelled", None)


async def test_a_turn_that_ends_by_its_round_cap_is_read_as_any_other(world: World):
    def look(n: int) -> str:
        return str(n)

    script = [reply(calls=[call("look", {"n": 1})]), reply(BERN_TEXT, calls=[call("look", {"n": 2})])]
    session = await world.session(script, tools=[look], max_tool_rounds=1)
    assert (await session.send("go", output_type=City)).output == BERN
