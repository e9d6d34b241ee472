"""The duplicate guard (§5) through whole turns."""

from __future__ import annotations

import pytest

from thence import RunFailed, tool
from thence.testing import call, reply

from ..kit import World, check_session, results


def same(n: int = 1, name: str = "look"):
    return reply(calls=[call(name, {"n": n})])


class Looker:
    """A tool that counts its runs; ``fails`` makes it raise."""

    def __init__(self, fails: bool = False) -> None:
        self.runs: list[int] = []
        self.fails = fails

    @property
    def tool(self):
        @tool(effect="read")
        def look(n: int = 1) -> int:
            self.runs.append(n)
            if self.fails:
                raise ValueError("no")
            return n

        return look


@pytest.mark.parametrize("threshold", [1, 2, 3, 8])
async def test_the_call_after_the_threshold_is_refused_and_the_next_one_fails_the_turn(world: World, threshold: int):
    looker = Looker()
    session = await world.session([same()] * (threshold + 2), [looker.tool], duplicate_tool_call_threshold=threshold)
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert len(looker.runs) == threshold
    assert not failed.value.resumable
    found = results(await check_session(session))
    assert [ok for _, ok, _ in found] == [True] * threshold + [False, False]
    # The model is told why, with the count.
    assert str(threshold) in found[threshold][2] and "look" in found[threshold][2]
    [run] = await session.runs()
    assert (run.status, run.tool_calls_count) == ("failed", threshold)


async def test_the_default_threshold_is_three(world: World):
    looker = Looker()
    session = await world.session([*[same()] * 4, reply("enough")], [looker.tool])
    assert (await session.send("go")).text == "enough"
    assert looker.runs == [1, 1, 1]


async def test_when_the_turn_fails_that_call_and_all_later_ones_get_failed_results(world: World):
    looker = Looker()
    calls = [call("look", {"n": 1}), call("look", {"n": 2}), call("look", {"n": 3})]
    session = await world.session([*[same()] * 4, reply(calls=calls)], [looker.tool])
    with pytest.raises(RunFailed):
        await session.send("go")
    assert looker.runs == [1, 1, 1]
    assert [ok for _, ok, _ in results(await check_session(session))][-4:] == [False] * 4


async def test_another_call_between_two_refusals_is_another_approach(world: World):
    looker = Looker()
    script = [*[same()] * 4, same(2), same(), reply("ok")]
    session = await world.session(script, [looker.tool])
    assert (await session.send("go")).text == "ok"
    assert looker.runs == [1, 1, 1, 2]  # refused, allowed, refused: not in a row


async def test_key_order_and_spaces_make_no_other_signature(world: World):
    ran: list[int] = []

    @tool(effect="read")
    def look(a: int, b: int) -> int:
        ran.append(a)
        return a

    texts = ['{"a":1,"b":2}', '{ "b" : 2, "a" : 1 }', '{"b":2,"a":1}', '{"a": 1, "b":2}']
    session = await world.session([*(reply(calls=[call("look", text)]) for text in texts), reply("ok")], [look])
    await session.send("go")
    assert len(ran) == 3


async def test_failed_calls_count_too(world: World):
    looker = Looker(fails=True)
    session = await world.session([*[same()] * 4, reply("ok")], [looker.tool])
    await session.send("go")
    assert len(looker.runs) == 3


async def test_edit_test_edit_test_is_no_loop(world: World):
    ran: list[str] = []

    @tool
    def edit(n: int) -> str:
        ran.append("edit")
        return "done"

    @tool(effect="read")
    def check() -> str:
        ran.append("check")
        return "red"

    script = [item for n in range(6) for item in (reply(calls=[call("check")]), reply(calls=[call("edit", {"n": n})]))]
    session = await world.session([*script, reply("ok")], [edit, check])
    assert (await session.send("go")).text == "ok"
    assert ran == ["check", "edit"] * 6


async def test_a_failed_edit_clears_nothing(world: World):
    @tool
    def edit() -> str:
        raise ValueError("no")

    looker = Looker()
    script = [same(), same(), same(), reply(calls=[call("edit")]), same(), reply("ok")]
    session = await world.session(script, [looker.tool, edit])
    await session.send("go")
    assert looker.runs == [1, 1, 1]


async def test_repeatable_tools_are_exempt(world: World):
    ran: list[int] = []

    @tool(effect="read", repeatable=True)
    def poll() -> int:
        ran.append(1)
        return len(ran)

    session = await world.session([*[reply(calls=[call("poll")])] * 9, reply("ok")], [poll])
    assert (await session.send("go")).text == "ok"
    assert len(ran) == 9


async def test_the_window_holds_eight_executed_calls(world: World):
    """Three early ones leave the window after eight others; within eight they still count."""
    looker = Looker()
    script = [
        *[same()] * 3,
        *(same(n) for n in range(10, 15)),
        same(),
        *(same(n) for n in range(20, 26)),
        same(),
        reply("ok"),
    ]
    session = await world.session(script, [looker.tool])
    await session.send("go")
    # after five others all three are still among the last eight: refused; after eleven they are not
    assert looker.runs == [1, 1, 1, *range(10, 15), *range(20, 26), 1]


async def test_identical_calls_in_one_answer_are_counted_in_call_order(world: World):
    looker = Looker()
    calls = [call("look", {"n": 1})] * 4
    session = await world.session([reply(calls=calls), reply("ok")], [looker.tool])
    assert (await session.send("go")).text == "ok"
    assert looker.runs == [1, 1, 1]
    assert [ok for _, ok, _ in results(await check_session(session))] == [True, True, True, False]


async def test_the_next_turn_begins_anew(world: World):
    looker = Looker()
    session = await world.session([*[same()] * 4, reply("a"), same(), reply("b")], [looker.tool])
    await session.send("1")
    await session.send("2")
    assert len(looker.runs) == 4
