"""``session.compact()``: between turns, claimed as any operation, and told to whoever asked (§1, §5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import (
    BudgetExhausted,
    Compaction,
    Hook,
    ModelError,
    PermissionPolicy,
    RunFailed,
    RunInterrupted,
    SessionBusy,
    SessionClosed,
    SessionError,
    SessionOptions,
)
from thence.testing import reply

from ..kit import Gate, World, check_session, in_thread, kinds
from .kit import HEAD, Counting, Long, Looks, compactions, shown

PERMISSIONS = PermissionPolicy(ask=("look",))


async def session_of(world: World, model: Any, looks: Looks | None = None, **options: Any) -> Any:
    agent = await world.agent(model=model, tools=[(looks or Looks()).tool()])
    return await agent.session(world.folder / "work", SessionOptions(session_id="s", retry_base_ms=0, **options))


async def test_it_says_what_it_did_and_the_session_goes_on_with_it(world: World):
    model = Long()
    session = await session_of(world, model)
    await session.send("work 6")
    before = await session.history()
    done = await session.compact()
    after = await session.history()
    assert done == Compaction(len(before), len(after), "What was done so far.")
    assert done.to_dict() == {"before_messages": 14, "after_messages": 5, "summary": "What was done so far."}
    assert after[0].text == HEAD + done.summary and shown(after)[1] == ("user", "work 6") and after[2:] == before[-3:]
    facts = await check_session(session)
    assert [fact.key for fact in facts][-2:] == ["t1-end", "t1-compact1"]
    [run] = await session.runs()
    assert facts[-1].run_id == run.id and (run.status, run.requests_without_usage) == ("completed", 0)
    assert (await session.send("next")).text == "done next"
    assert list(model.requests[-1].messages[:5]) == after
    assert [fact.key for fact in await session.facts()][-1] == "t2-end"
    assert (await session.usage()).known == len(model.requests) + 1


async def test_the_last_question_and_its_answer_stay_together(world: World):
    """A question whose answer were only told in the summary before it would look as if nobody had answered it."""
    script = [reply("a " * 900), reply("b " * 900), reply("Your balance is 40." + " c" * 2000), reply("A summary.")]
    session = await world.session([*script, reply("Bye.")])
    for prompt in ("first", "second", "What is my balance?"):
        await session.send(prompt)
    assert (await session.compact()).summary == "A summary."
    await session.send("Thanks.")
    asked = [(message.role, message.text[:19]) for message in world.model.requests[-1].messages]
    assert asked == [
        ("user", HEAD[:19]), ("user", "What is my balance?"), ("assistant", "Your balance is 40."), ("user", "Thanks."),
    ]  # fmt: skip
    assert "Your balance" not in world.model.requests[-2].messages[0].text, "it is not summarised"
    await check_session(session)


async def test_its_event_is_on_the_sessions_own_channel(world: World):
    session = await session_of(world, Long())
    await session.send("work 6")
    run = (await session.runs())[-1]
    events = await session.run_events(run.id)
    done = await session.compact()
    [event] = await session.events()
    assert (event.type, event.payload["summary"]) == ("context_compacted", done.summary)
    assert await session.run_events(run.id) == events, "a run that has ended says no more"


async def test_another_process_may_go_on_at_once(world: World):
    session = await session_of(world, Long())
    await session.send("work 6")
    await session.compact()
    other = await world.agent(model=Long(), tools=[Looks().tool()])
    assert (await (await other.resume_session("s")).send("next")).text == "done next"


async def test_a_summary_of_unknown_cost_hides_no_other_request(world: World):
    model = Long(reply("short"), faults={2: ModelError("http_503", "later", retryable=True)})
    session = await session_of(world, model)
    await session.send("work 6")
    assert (await session.usage()).unknown == 1
    assert (await session.compact()).summary == "short"
    usage = await session.usage()
    assert (usage.known, usage.unknown) == (7, 2)


async def test_also_when_no_run_is_kept(world: World):
    session = await session_of(world, Long(), retention_limits={"max_runs_retained": 0})
    await session.send("work 6")
    assert await session.runs() == []
    assert (await session.compact()).after_messages == 5
    assert [event.type for event in await session.events()] == ["context_compacted"]
    await check_session(session)


async def test_nothing_to_compact_writes_nothing(world: World):
    model = Long()
    session = await session_of(world, model)
    assert await session.compact() == Compaction(0, 0, "")
    await session.send("hello")
    head = (await session.facts())[-1].hash
    assert await session.compact() == Compaction(2, 2, "")
    assert (await session.facts())[-1].hash == head
    await session.send("work 6")
    await session.compact()
    head, asked = (await session.facts())[-1].hash, model.asked
    assert await session.compact() == Compaction(5, 5, "")
    assert (await session.facts())[-1].hash == head and model.asked == asked, "nothing was said since"
    assert (await session.send("fine")).text == "done fine", "the session is free"


FAILURES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "deny": (None, Counting(9), BudgetExhausted, "Budget exhausted on 'money': none left"),
    "hold": (None, Counting(9, word="hold"), BudgetExhausted, "Budget exhausted on 'money': none left"),
    "error": (ModelError("http_400", "no", retryable=False), None, ModelError, "no"),
    "empty": (reply(" "), None, ModelError, "the model's summary is empty"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_raised_and_changes_nothing(world: World, name: str):
    summary, guard, error, text = FAILURES[name]
    guard = guard and Counting(9, word=guard.word)
    model = Long(summary)
    session = await session_of(world, model, budget_guard=guard)
    await session.send("work 7")
    head, history = (await session.facts())[-1].hash, await session.history()
    with pytest.raises(error, match=text) as failed:
        await session.compact()
    assert getattr(failed.value, "run_id", None) is None
    assert (await session.facts())[-1].hash == head and await session.history() == history
    if guard:
        assert [event.type for event in await session.events()] == ["budget_threshold_hit"]
    assert (await session.send("on")).text == "done on"
    model.summary = None
    assert (await session.compact()).summary


async def test_the_guard_counts_it(world: World):
    model, guard = Long(), Counting()
    session = await session_of(world, model, budget_guard=guard)
    await session.send("work 6")
    await session.compact()
    assert len(guard.checked) == model.asked == len(guard.recorded) == 8


async def test_an_open_turn_is_not_compacted(world: World):
    looks = Looks()
    session = await session_of(world, Long(), looks, permission_policy=PERMISSIONS)
    parked = await session.send("work 2")
    with pytest.raises(SessionBusy) as busy:
        await session.compact()
    assert busy.value.waits == (parked.waits[0].id,)
    await session.cancel()
    interrupting = Looks()
    model = Long()
    agent = await world.agent(model=model, tools=[interrupting.tool()], db="b.db")
    session = await agent.session(world.folder / "work", SessionOptions(session_id="s"))

    def stop(key: str) -> None:
        session.raw._core.agent.live["s"].request_stop(_interrupt())

    interrupting.on = stop
    with pytest.raises(RunInterrupted):
        await session.send("work 3")
    with pytest.raises(RunInterrupted) as interrupted:
        await session.compact()
    assert interrupted.value.run_id == (await session.runs())[-1].id
    interrupting.on = lambda key: None
    assert (await session.resume_run(interrupted.value.run_id)).text == "done work"
    model.faults = {len(model.requests) + 1: ModelError("http_400", "no", retryable=False)}
    with pytest.raises(RunFailed):
        await session.send("work 5")
    with pytest.raises(SessionError, match="failed and its turn is open"):
        await session.compact()
    assert compactions(await session.facts()) == [] and not model.summaries


def _interrupt() -> Any:
    from thence.effects import Stopped

    return Stopped("interrupt", "enough", 50)


async def test_one_operation_at_a_time(world: World):
    gate, model = Gate(), Long()

    def summary(request: Any) -> Any:
        gate.wait()
        return None

    model.summary = summary
    session = await session_of(world, model)
    await session.send("work 6")
    running = asyncio.ensure_future(session.compact())
    try:
        await in_thread(lambda: asyncio.run(gate.came()))
        with pytest.raises(SessionBusy):
            await session.send("no")
        with pytest.raises(SessionBusy):
            await session.compact()
    finally:
        gate.open()
    assert (await running).summary == "What was done so far."


async def test_closing_ends_it_and_nothing_was_changed(world: World):
    gate, model = Gate(), Long()
    model.summary = lambda request: gate.wait()
    session = await session_of(world, model)
    await session.send("work 6")
    head = (await session.facts())[-1].hash
    running = asyncio.ensure_future(session.compact())
    await in_thread(lambda: asyncio.run(gate.came()))
    await session.close()
    gate.open()
    with pytest.raises(SessionError, match="was interrupted"):
        await running
    with pytest.raises(SessionClosed):
        await session.compact()
    agent = await world.agent(tools=[Looks().tool()])
    assert (await (await agent.resume_session("s")).facts())[-1].hash == head


async def test_it_is_a_sessions_first_operation_too(world: World):
    started = list[str]()
    session = await session_of(world, Long())
    await session.send("work 6")
    agent = await world.agent(model=Long(), tools=[Looks().tool()])
    hooks = [Hook("session_start", lambda context: started.append(context.session_id))]
    again = await agent.resume_session("s", SessionOptions(hooks=hooks))
    assert (await again.compact()).summary and started == ["s"]
    assert kinds(await check_session(again))[-1] == "compaction.done"
