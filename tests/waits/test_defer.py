"""Waits that are no confirmations (§10): deferred work and questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thence import Defer, PermissionPolicy, Question, SessionOptions, ToolContext, tool
from thence.testing import call, reply

from ..kit import World, canonical, check_session, results, stored, types
from ..resume.kit import calls, done
from .kit import C0, C1, C2, MS, Desk, Effects, Plain, asks, ended_well, events_of, ids, wait_error

W = f"{C0}-w1"


def ask_tools(ran: list[str]) -> list[Any]:
    @tool
    def build(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Defer(f"build {n}")

    @tool(name="abuild")
    async def abuild(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Defer(f"build {n}")

    @tool(effect="read")
    def poll(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Defer(f"poll {n}", deadline_ms=MS + 1_000)

    @tool
    def ask(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Question(f"Which one, {n}?")

    return [build, abuild, poll, ask]


# ------------------------------------------------------------------ deferred results


@pytest.mark.parametrize("name", ["build", "abuild"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("all green", "all green"), ("", ""), ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'), (5, "5"),
        (None, "null"), (False, "false"), ({"approved": False}, '{"approved":false}'),
    ],
)  # fmt: skip
async def test_the_answer_becomes_the_result(desk, name: str, value: Any, text: str):
    """§10: any JSON; a text as text, other JSON as json. The tool ran once, and not again after a restart."""
    ran: list[str] = []
    here: Desk = desk([calls(f"{name}:7"), done()], tools=ask_tools(ran))
    session, result = await here.parked()
    [wait] = result.waits
    assert (wait.id, wait.kind, wait.subject, wait.tool, wait.state) == (W, "deferred", C0, name, "open")
    assert "build 7" in json.dumps(wait.to_dict()), "what it waits for is told to whoever may answer"
    assert ran == [C0]
    session = await here.reopen()
    await session.answer(W, value)
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 1)
    assert ran == [C0]
    facts = await ended_well(session, result.run_id)
    if value is None:
        # no result at all, or the JSON that says so: both are what a tool that returns None may give
        assert results(facts) in ([(C0, True, "")], [(C0, True, "null")])
    else:
        assert results(facts) == [(C0, True, text)]
        [fact] = [stored(fact) for fact in facts if fact.kind == "tool.result"]
        assert fact["parts"][0]["type"] == ("text" if isinstance(value, str) else "json")
    said = types(await session.run_events(result.run_id))
    assert said.count("tool_execution_start") == said.count("tool_end") == 1


async def test_deferred_reads_are_open_at_once(desk):
    """§10: all reads of a batch run; each that defers has its own wait, what did not keeps its result."""
    ran: list[str] = []
    here: Desk = desk([calls("poll:0", "look:1", "poll:2"), done()], tools=ask_tools(ran))
    session, result = await here.parked()
    assert sorted(ids(result)) == [W, f"{C2}-w1"] and sorted(ran) == [C0, C2]
    await session.answer(f"{C2}-w1", "two")
    await session.answer(W, "zero")
    await session.resume_run(result.run_id)
    assert results(await ended_well(session, result.run_id)) == [
        (C0, True, "zero"), (C1, True, "look 1"), (C2, True, "two")
    ]  # fmt: skip
    assert here.effects.keys() == [C1] and len(ran) == 2


@pytest.mark.parametrize("parallel", [1, 8])
async def test_what_comes_after_a_deferred_call_waits(desk, parallel: int):
    """§10: every other call after a waiting one waits for it; later reads run."""
    ran: list[str] = []
    here: Desk = desk([calls("build:0", "put:1", "look:2"), done()], tools=ask_tools(ran), max_parallel_tools=parallel)
    session, result = await here.parked()
    assert here.effects.keys() == [C2]
    await session.answer(W, "built")
    await session.resume_run(result.run_id)
    assert here.effects.keys() == [C2, C1]
    assert [text for _, _, text in results(await ended_well(session, result.run_id))] == ["built", "put 1", "look 2"]


async def test_deferred_work_that_is_not_done_in_time(desk):
    """§10: `deadline_ms` is a time in Unix epoch ms, as everywhere; passed, the call has failed."""
    here: Desk = desk([calls("poll:0"), done()], tools=ask_tools([]))
    session, result = await here.parked()
    assert result.waits[0].deadline_ms == MS + 1_000
    here.later(1_001)
    with wait_error("WAIT_EXPIRED"):
        await session.answer(W, "late")
    assert (await session.resume_run(result.run_id)).status == "completed"
    [(key, ok, text)] = results(await ended_well(session, result.run_id))
    assert (key, ok) == (C0, False) and text.startswith("Error: ")


async def test_a_call_may_be_asked_about_and_then_defer(desk):
    """§10: two waits of one call, numbered."""
    ran: list[str] = []
    here: Desk = desk([calls("build:0"), done()], tools=ask_tools(ran), permission_policy=asks("build"))
    session, result = await here.parked()
    assert ran == []
    await session.confirm(C0, True)
    second = await session.resume_run(result.run_id)
    assert (second.status, ids(second), second.waits[0].kind) == ("parked", [f"{C0}-w2"], "deferred")
    session = await here.reopen()
    await session.answer(f"{C0}-w2", "built")
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert ran == [C0] and results(await ended_well(session, result.run_id)) == [(C0, True, "built")]


async def test_values_that_are_no_json_are_refused(desk):
    """§10: ValueError or TypeError naming `value`, before anything is written."""
    here: Desk = desk([calls("build:0"), done()], tools=ask_tools([]))
    session, _ = await here.parked()
    with Plain(here.db) as plain:
        before = plain.state()
        for value in (float("nan"), float("inf"), object(), {1, 2}, b"x", {"a": object()}, "\ud800"):
            with pytest.raises((ValueError, TypeError), match="value"):
                await session.answer(W, value)
        assert plain.state() == before


async def test_deferred_work_is_not_confirmed(desk):
    """Public API: `confirm` answers confirmations and budget holds; of this call there is none."""
    here: Desk = desk([calls("build:0"), done()], tools=ask_tools([]))
    session, _ = await here.parked()
    with wait_error("WAIT_NOT_FOUND"):
        await session.confirm(C0, True)
    assert [wait.state for wait in await session.waits()] == ["open"]


# ------------------------------------------------------------------ questions


async def test_a_question(desk):
    """§10: event `user_question`; the answer is the call's result."""
    ran: list[str] = []
    here: Desk = desk([calls("ask:3"), done()], tools=ask_tools(ran))
    session, result = await here.parked()
    [wait] = result.waits
    assert (wait.id, wait.kind, wait.subject, wait.tool, wait.question) == (W, "question", C0, "ask", "Which one, 3?")
    [event] = await events_of(session, result.run_id, "user_question")
    assert (event["tool_id"], event["wait_id"], event["question"]) == (C0, W, "Which one, 3?")
    assert await events_of(session, result.run_id, "confirmation_required") == []
    session = await here.reopen()
    assert (await session.waits())[0].question == "Which one, 3?"
    await session.answer(W, "The red one.", by="ann")
    await session.resume_run(result.run_id)
    facts = await ended_well(session, result.run_id)
    assert results(facts) == [(C0, True, "The red one.")] and ran == [C0]
    [answered] = [stored(fact) for fact in facts if fact.kind == "wait.answered"]
    assert (answered["wait_id"], answered["value"], answered["by"]) == (W, "The red one.", "ann")
    assert [m.text for m in here.model.requests[-1].messages if m.role == "tool"] == ["The red one."]


async def test_cancel_while_a_question_is_open(desk):
    """§10: open calls get results; the question is closed."""
    here: Desk = desk([calls("ask:3", "look:1"), done()], tools=ask_tools([]))
    session, _ = await here.parked()
    assert await session.cancel() is True
    assert [(key, ok) for key, ok, _ in results(await check_session(session))] == [(C0, False), (C1, True)]
    with wait_error("WAIT_CLOSED"):
        await session.answer(W, "The red one.")


# ------------------------------------------------------------------ all together


async def test_waits_of_all_kinds_in_one_answer(desk):
    """§10: a confirmation, a deferred result and a read that is free, all reads: open at once, each answered in its
    own way, results in call order."""
    here: Desk = desk(
        [reply(calls=[call("peek", {"n": 0}), call("poll", {"n": 1}), call("look", {"n": 2})]), done()],
        tools=ask_tools([]), permission_policy=PermissionPolicy(ask=("peek",)),
    )  # fmt: skip
    session, result = await here.parked()
    assert {wait.id: wait.kind for wait in result.waits} == {W: "confirmation", f"{C1}-w1": "deferred"}
    await session.answer(f"{C1}-w1", [1])
    await session.confirm(C0, False)
    session = await here.reopen()
    await session.resume_run(result.run_id)
    assert results(await ended_well(session, result.run_id)) == [
        (C0, False, "Error: rejected by a person"), (C1, True, canonical([1])), (C2, True, "look 2")
    ]  # fmt: skip


async def test_waits_in_memory(world: World, tmp_path: Path):
    """§1: on a private database too: one process may park and go on."""
    effects = Effects()
    agent = await world.agent([calls("put:0"), done()], db=None, tools=effects.tools())
    session = await agent.session(tmp_path, SessionOptions(permission_policy=asks("put")))
    result = await session.send("Go.")
    assert result.status == "parked"
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).status == "completed" and effects.keys() == [C0]
