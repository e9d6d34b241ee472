"""Continuation (§5): an empty, cut or paused answer is continued, boundedly, and nothing else is."""

from __future__ import annotations

import pytest

from thence.testing import call, reply

from ..kit import World, check_session, stored


async def asked(world: World) -> list[str]:
    return [request.messages[-1].text for request in world.model.requests]


@pytest.mark.parametrize(
    "first",
    [reply(""), reply("  \n"), reply("half", stop_reason="length"), reply("so", stop_reason="pause")],
    ids=["empty", "blank", "length", "pause"],
)
async def test_an_unfinished_answer_is_continued(world: World, first: object):
    session = await world.session([first, reply("whole")])
    result = await session.send("go")
    assert result.text == "whole"
    assert await asked(world) == ["go", "Continue."]
    said = [stored(f) for f in await check_session(session) if f.kind == "user.message"]
    assert [s["origin"] for s in said] == ["host", "continuation"]
    assert said[1]["parts"] == [{"type": "text", "text": "Continue."}]


@pytest.mark.parametrize("text", ["Let me look:", "I will now do it", "...", "and then,", "x"])
async def test_nothing_else_counts_as_unfinished(world: World, text: str):
    session = await world.session([reply(text)])
    assert (await session.send("go")).text == text
    assert len(world.model.requests) == 1


@pytest.mark.parametrize("most", [0, 1, 2, 3])
async def test_at_most_max_continuation_turns_a_run(world: World, most: int):
    script = [reply(f"part {n}", stop_reason="length") for n in range(most + 1)]
    session = await world.session(script, max_continuation_turns=most)
    result = await session.send("go")
    assert (result.status, result.text) == ("completed", f"part {most}")
    assert len(world.model.requests) == most + 1


async def test_three_by_default(world: World):
    session = await world.session([reply(f"part {n}", stop_reason="length") for n in range(4)])
    assert (await session.send("go")).text == "part 3"


async def test_never_twice_for_the_same_text(world: World):
    session = await world.session([reply("same", stop_reason="length")] * 4)
    assert (await session.send("go")).text == "same"
    assert len(world.model.requests) == 2


async def test_never_twice_for_a_text_even_when_another_came_between(world: World):
    """'Never twice for the same text' speaks of the run, not of neighbours."""
    script = [reply(text, stop_reason="length") for text in ("a", "b", "a", "c")]
    session = await world.session(script)
    assert (await session.send("go")).text == "a"
    assert len(world.model.requests) == 3


async def test_off(world: World):
    session = await world.session([reply("half", stop_reason="length")], continuation_enabled=False)
    assert (await session.send("go")).text == "half"
    assert len(world.model.requests) == 1


async def test_an_answer_with_calls_is_not_continued_but_answered(world: World):
    def look() -> str:
        return "seen"

    session = await world.session([reply("", calls=[call("look")], stop_reason="length"), reply("ok")], [look])
    await session.send("go")
    assert await asked(world) == ["go", "seen"]


async def test_each_run_has_its_own_count(world: World):
    script = [reply("half", stop_reason="length"), reply("one"), reply("half", stop_reason="length"), reply("two")]
    session = await world.session(script, max_continuation_turns=1)
    assert (await session.send("1")).text == "one"
    assert (await session.send("2")).text == "two"
