"""A turn that compacts: what asks for it, what a provider sees then, what is told, what a failure changes (§5, §6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from thence import BudgetExhausted, ContextOverflow, Hook, ModelError, RunFailed, RunInterrupted, SessionOptions
from thence.testing import call, reply

from ..kit import World, check_messages, check_session, kinds, types
from .kit import HEAD, OVERFLOW, Counting, Long, Looks, compactions, shown, size

SMALL: dict[str, Any] = {"auto_compact": True, "max_context_tokens": 1500, "retry_base_ms": 0}


async def session_of(world: World, model: Long, looks: Looks | None = None, **options: Any) -> Any:
    agent = await world.agent(model=model, tools=[(looks or Looks()).tool()])
    return await agent.session(world.folder / "work", SessionOptions(session_id="s", **{**SMALL, **options}))


async def events_of(session: Any, kind: str) -> list[Any]:
    events = await session.run_events((await session.runs())[-1].id)
    return [event.payload for event in events if event.type == kind]


async def test_a_window_that_fills_is_compacted_once_a_turn(world: World):
    model, looks = Long(), Looks()
    session = await session_of(world, model, looks)
    assert (await session.send("work 14")).text == "done work"
    facts = await check_session(session)
    [value] = compactions(facts)
    assert (value["trigger"], value["summary"], value["kept_message"]) == ("threshold", "What was done so far.", 2)
    assert (value["usage"]["prompt_tokens"], value["usage"]["total_tokens"]) == (50, 54)
    assert [f.cause for f in facts if f.kind == "compaction.done"] == ["compact:t1-compact1"]
    assert len(model.summaries) == 1 and len(looks.ran) == len(set(looks.ran)) == 14
    for request in model.requests:
        check_messages(request.messages)
    before = next(i for i, request in enumerate(model.requests) if request.messages[0].text.startswith(HEAD))
    assert size(model.requests[before - 1]) // 4 < 1200 <= size(model.requests[before - 1]) // 4 + 200
    after = model.requests[before]
    assert shown(after.messages)[1] == ("user", "work 14") and size(after) < 0.4 * 1500 * 4 + 200
    assert size(model.summaries[0]) <= 0.5 * 1500 * 4 and model.summaries[0].model == "long"
    assert (await session.history())[:2] == list(after.messages[:2])


async def test_it_is_told(world: World):
    session = await session_of(world, Long(lambda request: reply("w" * 9000)))
    await session.send("work 8")
    [told] = await events_of(session, "context_compacted")
    [value] = compactions(await session.facts())
    assert told == {
        "session_id": "s", "before_messages": told["before_messages"], "after_messages": told["after_messages"],
        "percent_before": told["percent_before"], "summary": value["summary"],
    }  # fmt: skip
    assert value["summary"] == "w" * 600, "a tenth of the window"
    assert told["before_messages"] > told["after_messages"] > 2 and 80 <= told["percent_before"] < 100


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_the_pieces_of_a_summary_are_not_shown(face: str, tmp_path: Any):
    world = World(face, tmp_path)
    session = await session_of(world, Long())
    stream = await session.stream("work 8")
    events = [event async for event in stream]
    assert "What was" not in "".join(event.text for event in events if event.type == "text_delta")
    assert types(events).count("context_compacted") == 1
    assert types(events).count("turn_start") == 9, "a summary is no request of the turn"
    await world.close()


async def test_nothing_happens_below_the_threshold_or_without_the_option(world: World):
    for options in ({"auto_compact": False}, {"max_context_tokens": 100_000}, {"auto_compact_threshold": 1.0}):
        model = Long()
        agent = await world.agent(model=model, tools=[Looks().tool()])
        session = await agent.session(world.folder / "work", SessionOptions(**{**SMALL, **options}))
        await session.send("work 6")
        assert not model.summaries and not compactions(await session.facts())


async def test_what_the_provider_counted_fills_the_window_too(world: World):
    """Its tokens may be more than a quarter of the bytes. Behind a compaction they are not believed any more."""
    model = Long()
    model.answer = lambda request: reply("y" * 900, usage={"prompt_tokens": 1190, "completion_tokens": 10})  # type: ignore[method-assign]
    session = await session_of(world, model)
    for prompt in ("x" * 900, "two " + "x" * 900):
        await session.send(prompt)
    assert len(compactions(await session.facts())) == 1
    quiet = Long()
    quiet.answer = lambda request: reply("y" * 900, usage={"prompt_tokens": 1190, "completion_tokens": 9})  # type: ignore[method-assign]
    agent = await world.agent(model=quiet)
    session = await agent.session(world.folder / "work", SessionOptions(session_id="t", **SMALL))
    for prompt in ("x" * 900, "two " + "x" * 900):
        await session.send(prompt)
    assert compactions(await session.facts()) == []


async def test_a_hook_may_ask_for_it(world: World):
    model, asked = Long(), list[int]()

    def told(context: Any) -> Any:
        asked.append(context.request)
        return {"compact": True} if context.request >= 5 else None

    session = await session_of(world, model, auto_compact=False, hooks=[Hook("pre_llm", told)])
    await session.send("work 6")
    facts = await check_session(session)
    assert [value["trigger"] for value in compactions(facts)] == ["hook"], "once a turn, however often it asks"
    assert asked == [1, 2, 3, 4, 5, 6, 7]
    assert shown(model.requests[4].messages)[0][1].startswith("[Summary") and len(model.summaries) == 1
    assert kinds(facts).index("compaction.done") == 10


async def test_a_hook_that_asks_for_nothing_possible_changes_nothing(world: World):
    session = await session_of(world, Long(), hooks=[Hook("pre_llm", lambda context: {"compact": True})])
    assert (await session.send("hello")).text == "done hello"
    assert compactions(await session.facts()) == []


async def test_a_hook_that_chooses_a_model_chooses_the_one_that_summarises(world: World):
    model = Long()
    hook = Hook("pre_llm", lambda context: {"model": "small", "compact": True} if context.request == 5 else None)
    session = await session_of(world, model, hooks=[hook])
    await session.send("work 6")
    assert [request.model for request in model.summaries] == ["small"]
    assert [request.model for request in model.requests] == ["long"] * 4 + ["small"] * 3
    assert kinds(await check_session(session))[10:12] == ["run.configured", "compaction.done"]


# ---------------------------------------------------------------- the guard
async def test_the_guard_is_asked_before_a_summary_too(world: World):
    model, guard = Long(), Counting()
    session = await session_of(world, model, budget_guard=guard)
    result = await session.send("work 8")
    assert len(guard.checked) == model.asked == len(guard.recorded) == 10
    at = next(i for i, usage in enumerate(guard.recorded) if usage["prompt_tokens"] == 50)
    assert guard.checked[at] == (size(model.summaries[0]) + 3) // 4
    assert guard.checked[at] < guard.checked[at + 1] * 4 < guard.checked[at - 1] * 4
    assert result.usage.prompt_tokens == 9 * 10 + 50, "what the summary took belongs to the turn"
    usage = await session.usage()
    assert (usage.known, usage.unknown, usage.usage.prompt_tokens) == (10, 0, 140)


@pytest.mark.parametrize("word", ["deny", "hold"])
async def test_a_summary_that_the_guard_does_not_allow_is_no_summary(
    world: World, word: str, caplog: pytest.LogCaptureFixture
):
    probe = Long()
    await (await session_of(world, probe)).send("work 8")
    number = next(i for i, request in enumerate(probe.requests) if request.messages[0].text.startswith(HEAD)) + 1
    model, guard = Long(), Counting(number, word=word)
    agent = await world.agent(model=model, tools=[Looks().tool()])
    session = await agent.session(world.folder / "work", SessionOptions(**SMALL, budget_guard=guard))
    with caplog.at_level(logging.WARNING, "thence.compaction"):
        result = await session.send("work 8")
    assert (result.status, result.text) == ("completed", "done work") and not model.summaries
    assert len(guard.checked) == model.asked + 1, "and it is not tried again in this turn"
    assert kinds(await check_session(session)).count("wait.opened") == 0
    [event] = await events_of(session, "budget_threshold_hit")
    assert (event["kind"], event["message"]) == ("hard", "none left")
    assert "Budget exhausted on 'money': none left" in caplog.text


# ---------------------------------------------------------------- a summary that fails
TOO_LONG = ModelError("context_overflow", "too long", retryable=False)
FAILURES: dict[str, tuple[Callable[[], Any], int]] = {
    "an error": (lambda: ModelError("http_400", "no", retryable=False), 1),
    "a retryable error": (lambda: ModelError("http_503", "later", retryable=True), 3),
    "empty": (lambda: reply("  \n "), 1),
    "a call": (lambda: reply("so", calls=[call("look", {"n": 1})]), 1),
    "overflow": (lambda: TOO_LONG, 1),
    "raised": (lambda: ValueError("what"), 1),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_summary_changes_nothing(world: World, name: str, caplog: pytest.LogCaptureFixture):
    make, attempts = FAILURES[name]
    model, guard, looks = Long(lambda request: make()), Counting(), Looks()
    session = await session_of(world, model, looks, budget_guard=guard)
    with caplog.at_level(logging.WARNING, "thence.compaction"):
        assert (await session.send("work 11")).text == "done work"
    assert len(model.summaries) == attempts, "not tried again in this turn"
    assert len(guard.checked) == model.asked
    facts = await check_session(session)
    assert compactions(facts) == [] and looks.ran == [f"t1-r{n}-c0" for n in range(1, 12)]
    assert caplog.text.count("compaction of session 's' failed") == 1
    [run] = await session.runs()
    assert run.requests_without_usage == attempts, "somebody may have charged for it"
    usage = await session.usage()
    assert usage.known + usage.unknown == model.asked
    whole = await session.facts()
    model.summary = None
    await session.send("work 1")
    assert len(compactions(await session.facts())) == 1, "the next turn tries anew"
    assert [fact.hash for fact in (await session.facts())[: len(whole)]] == [fact.hash for fact in whole]


async def test_a_summary_is_tried_again_as_other_requests_are(world: World):
    told = [ModelError("http_503", "later", retryable=True), ModelError("http_429", "later", retryable=True), None]
    model, guard = Long(lambda request: told.pop(0)), Counting()
    session = await session_of(world, model, budget_guard=guard)
    await session.send("work 8")
    assert len(model.summaries) == 3 and len(guard.checked) == model.asked == 12
    assert len(compactions(await check_session(session))) == 1


# ---------------------------------------------------------------- overflow
async def test_an_overflow_is_compacted_away_also_without_the_option(world: World):
    model, guard = Long(faults={5: OVERFLOW}), Counting()
    session = await session_of(
        world, model, Looks(3000), auto_compact=False, max_context_tokens=200_000, budget_guard=guard
    )
    assert (await session.send("work 6")).text == "done work"
    facts = await check_session(session)
    [value] = compactions(facts)
    assert (value["trigger"], value["state"]["overflowed"]) == ("overflow", True)
    assert len(guard.checked) == model.asked == 9
    assert size(model.requests[5]) < 0.5 * size(model.requests[4]), "the true window is smaller than what was sent"
    assert size(model.summaries[0]) <= 0.5 * size(model.requests[4])
    usage = await session.usage()
    assert (usage.known, usage.unknown) == (8, 1)


async def test_a_second_overflow_fails_the_run_which_can_be_resumed(world: World):
    model = Long(faults={4: OVERFLOW, 5: OVERFLOW, 6: OVERFLOW})
    session = await session_of(world, model, Looks(3000), auto_compact=False)
    with pytest.raises(ContextOverflow, match="does not fit") as failed:
        await session.send("work 6")
    error = failed.value
    assert (error.code, error.resumable, error.retryable) == ("CONTEXT_OVERFLOW", True, False)
    assert issubclass(ContextOverflow, RunFailed)
    assert error.why == "this turn was compacted for that reason already"
    assert len(model.summaries) == 1 and len(model.requests) == 5
    [run] = await session.runs()
    assert (run.status, run.error_code, run.resumable) == ("failed", "CONTEXT_OVERFLOW", True)
    with pytest.raises(ContextOverflow):
        await session.resume_run(run.id)
    assert len(model.summaries) == 1 and len(model.requests) == 6, "once a turn, whoever goes on with it"
    assert (await session.resume_run(run.id)).text == "done work"
    assert len(compactions(await check_session(session))) == 1


async def test_an_overflow_behind_a_full_window_compacts_once_more(world: World):
    probe, large = Long(), {**SMALL, "max_context_tokens": 8000}
    await (await session_of(world, probe, Looks(3200), **large)).send("work 8")
    at = next(i for i, request in enumerate(probe.requests, 1) if request.messages[0].text.startswith(HEAD))
    model = Long(faults={at: OVERFLOW})
    agent = await world.agent(model=model, tools=[Looks(3200).tool()])
    session = await agent.session(world.folder / "work", SessionOptions(**large))
    assert (await session.send("work 8")).text == "done work"
    values = compactions(await check_session(session))
    assert [value["trigger"] for value in values] == ["threshold", "overflow"]
    assert [fact.key for fact in await session.facts() if fact.kind == "compaction.done"] == [
        "t1-compact1",
        "t1-compact2",
    ]
    assert model.summaries[1].messages[0].text.startswith("[user]\n[Summary of the conversation so far]")


@pytest.mark.parametrize("summary", ["nothing to drop", "fails"])
async def test_an_overflow_that_compaction_cannot_help_fails_at_once(world: World, summary: str):
    model = Long(lambda request: reply(""), faults={1 if summary == "nothing to drop" else 4: OVERFLOW})
    session = await session_of(world, model, Looks(3000), auto_compact=False)
    with pytest.raises(ContextOverflow, match="maximum context length is 9 tokens") as failed:
        await session.send("work 6")
    expected = {
        "nothing to drop": "there is nothing in it that a summary could take the place of",
        "fails": "its summary failed: the model's summary is empty",
    }
    assert failed.value.why == expected[summary]
    assert compactions(await check_session(session)) == []
    [run] = await session.runs()
    assert (await session.resume_run(run.id)).text == "done work"


async def test_a_recorded_overflow_comes_back_as_what_it_was(world: World):
    model = Long(faults={1: OVERFLOW})
    session = await session_of(world, model)
    with pytest.raises(ContextOverflow) as first:
        await session.send("work 1", run_id="mine")
    with pytest.raises(ContextOverflow) as again:
        await session.send("work 1", run_id="mine")
    assert str(again.value) == str(first.value) and again.value.resumable


# ---------------------------------------------------------------- beside other things
async def test_a_run_that_is_stopped_during_a_summary_compacts_nothing(world: World):
    model = Long()

    def summary(request: Any) -> Any:
        world_session.raw._core.agent.live["s"].request_stop(stop)
        return reply("too late")

    from thence.effects import Stopped

    stop = Stopped("interrupt", "enough")
    model.summary = summary
    world_session = await session_of(world, model)
    with pytest.raises(RunInterrupted, match="enough"):
        await world_session.send("work 8")
    facts = await check_session(world_session)
    assert compactions(facts) == []
    model.summary = None
    [run] = await world_session.runs()
    assert (await world_session.resume_run(run.id)).text == "done work"
    assert len(compactions(await check_session(world_session))) == 1


async def test_no_summary_is_asked_for_once_somebody_said_stop(world: World):
    from thence.effects import Stopped

    probe = Long()
    await (await session_of(world, probe)).send("work 8")
    number = next(i for i, request in enumerate(probe.requests) if request.messages[0].text.startswith(HEAD)) + 1

    class Stops(Counting):
        def check_before_llm(self, session_id: str, tokens: int) -> Any:
            super().check_before_llm(session_id, tokens)
            if len(self.checked) == number:
                session.raw._core.agent.live[session_id].request_stop(Stopped("cancel", "enough"))

    model = Long()
    agent = await world.agent(model=model, tools=[Looks().tool()])
    session = await agent.session(world.folder / "work", SessionOptions(**SMALL, budget_guard=Stops()))
    assert (await session.send("work 8")).status == "cancelled"
    assert not model.summaries and len(model.requests) == number - 1


async def test_the_attempts_of_the_breaker_start_anew_behind_an_overflow(world: World):
    later = ModelError("http_503", "later", retryable=True)
    model = Long(faults={4: later, 5: OVERFLOW, 6: later})
    session = await session_of(world, model, Looks(3000), auto_compact=False, circuit_breaker_threshold=2)
    assert (await session.send("work 6")).text == "done work"


async def test_what_is_said_during_a_summary_is_read_with_the_next_request(world: World):
    model = Long()

    def summary(request: Any) -> Any:
        from thence import inbox

        core = session.raw._core
        ids = core.agent.live["s"].world.station.ids
        core.agent.store.commit(inbox.steer(ids.run_pk, "work 9 rather", now_ms=0, request_id="q"))
        core.agent.live["s"].look_again()
        return reply("so far")

    model.summary = summary
    session = await session_of(world, model)
    await session.send("work 8")
    at = next(i for i, request in enumerate(model.requests) if request.messages[0].text.startswith(HEAD))
    assert model.requests[at].messages[-1].text == "work 9 rather"


async def test_a_held_request_that_was_allowed_may_be_compacted_for(world: World):
    """An answered hold stays with the request that it is about, over the compaction."""
    model, guard = Long(faults={4: OVERFLOW}), Counting(4, word="hold")
    session = await session_of(world, model, Looks(3000), auto_compact=False, budget_guard=guard)
    parked = await session.send("work 6")
    assert parked.status == "parked"
    await session.answer(parked.waits[0].id, True)
    result = await session.resume_run(parked.run_id)
    assert (result.status, result.text) == ("completed", "done work")
    [value] = compactions(await check_session(session))
    assert value["state"]["waits"][0]["answer"]["value"] == {"approved": True}


async def test_both_faces_write_the_same_facts(tmp_path: Any):
    from thence import HostEnvConfig

    heads = set[str]()
    for face in ("sync", "async"):
        (tmp_path / face).mkdir()
        world = World(face, tmp_path / face)
        session = await session_of(world, Long(faults={12: OVERFLOW}), host_env=HostEnvConfig("t", 1_700_000_000_000))
        await session.send("work 14")
        await session.send("again")
        assert (await session.compact()).summary
        facts = await check_session(session)
        assert [value["trigger"] for value in compactions(facts)] == ["threshold", "overflow", "request"]
        heads.add(facts[-1].hash)
        await world.close()
    assert len(heads) == 1


async def test_a_budget_denial_of_the_turn_itself_is_still_one(world: World):
    session = await session_of(world, Long(), budget_guard=Counting(1))
    with pytest.raises(BudgetExhausted):
        await session.send("work 8")
