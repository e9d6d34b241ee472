"""Malformed arguments (§5): a call never runs on partial arguments, and too many in a row fail the turn."""

from __future__ import annotations

import json

import pytest

from thence import RunFailed
from thence.testing import call, reply

from ..kit import World, check_messages, check_session, results, stored

GIVING_UP = "LLM produced malformed tool arguments {n} time(s) in a row (max_parse_retries={m}); giving up"
BROKEN = '{"path": "a", "content": "xx'


class Counted:
    """A tool that counts its runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def write(self, path: str = "", content: str = "") -> str:
        self.runs.append(path)
        return "written"


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
async def test_more_than_max_parse_retries_in_a_row_fail_the_turn(world: World, retries: int):
    tool = Counted()
    script = [reply(calls=[call("write", BROKEN + str(n))]) for n in range(retries + 1)]
    session = await world.session([*script, reply("again")], [tool.write], max_parse_retries=retries)
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert str(failed.value) == GIVING_UP.format(n=retries + 1, m=retries)
    assert tool.runs == []
    facts = await check_session(session)
    assert [ok for _, ok, _ in results(facts)] == [False] * (retries + 1)
    assert all(text.startswith("Error: ") for _, _, text in results(facts))
    ended = stored(facts[-1])
    assert facts[-1].kind == "turn.ended" and ended["status"] == "failed"
    assert ended["message"] == str(failed.value)
    # The turn has ended: the session is open, and the next send needs nothing settled.
    assert (await session.send("again")).text == "again"


async def test_as_many_as_allowed_are_forgiven(world: World):
    tool = Counted()
    script = [reply(calls=[call("write", BROKEN + str(n))]) for n in range(2)]
    good = reply(calls=[call("write", {"path": "p"})])
    again = [reply(calls=[call("write", BROKEN + str(n))]) for n in range(2, 4)]
    session = await world.session([*script, good, *again, reply("ok")], [tool.write])
    assert (await session.send("go")).text == "ok"
    assert tool.runs == ["p"]
    assert [ok for _, ok, _ in results(await check_session(session))] == [False, False, True, False, False]


async def test_the_count_goes_on_within_one_answer(world: World):
    """Two in one answer are two in a row; with one retry the second is fatal, and what follows is not run."""
    tool = Counted()
    calls = [call("write", "{1"), call("write", "{2"), call("write", {"path": "later"})]
    session = await world.session([reply(calls=calls)], [tool.write], max_parse_retries=1)
    with pytest.raises(RunFailed, match=r"2 time\(s\) in a row \(max_parse_retries=1\)"):
        await session.send("go")
    assert tool.runs == []
    assert [ok for _, ok, _ in results(await check_session(session))] == [False] * 3


@pytest.mark.parametrize(
    "text",
    ["[]", "1", '"x"', "null", "{", "{]", "tru", '{"a": NaN}', "{'a': 1}", '{"path": "\\ud800"}', "{}{}", "[" * 500],
)
async def test_what_is_not_one_json_object_never_runs(world: World, text: str):
    tool = Counted()
    session = await world.session([reply(calls=[call("write", text)]), reply("ok")], [tool.write])
    await session.send("go")
    assert tool.runs == []
    [(_, ok, shown)] = results(await check_session(session))
    assert not ok and shown.startswith("Error: ") and len(shown) > len("Error: ")
    check_messages(world.model.requests[1].messages)


@pytest.mark.parametrize("stop_reason", ["length", "tool_calls", "stop"])
async def test_I01_truncated_arguments_do_not_run(world: World, stop_reason: str):
    tool = Counted()
    session = await world.session(
        [reply(calls=[call("write", BROKEN)], stop_reason=stop_reason), reply("ok")], [tool.write]
    )
    await session.send("go")
    assert tool.runs == []
    facts = await check_session(session)
    [(_, ok, shown)] = results(facts)
    assert not ok
    if stop_reason == "length":
        assert "truncated" in shown
    # The raw text is kept in the fact, all of it.
    [answer] = [f for f in facts if f.key == "t1-r1"]
    assert BROKEN in json.dumps(stored(answer)).encode().decode("unicode_escape")


async def test_I03_invalid_arguments_do_not_poison_the_next_request(world: World):
    tool = Counted()
    calls = [call("write", BROKEN), call("write", {"path": "fine"}), call("write", "nonsense")]
    session = await world.session([reply(calls=calls), reply("ok")], [tool.write])
    await session.send("go")
    assert tool.runs == ["fine"]
    sent = [m for m in world.model.requests[1].messages if m.role == "assistant"]
    assert [isinstance(json.loads(c.arguments), dict) for c in sent[0].calls] == [True] * 3
    assert [m.ok for m in world.model.requests[1].messages if m.role == "tool"] == [False, True, False]


async def test_arguments_cut_at_every_byte_run_only_when_whole(world: World):
    """L2: the tool runs once for the whole text and never for a part of it."""
    tool, whole = Counted(), '{"path": "é", "content": "two words"}'
    cuts = [whole.encode()[:size].decode(errors="ignore") for size in range(1, len(whole.encode()))]
    script = [reply(calls=[call("write", text)], stop_reason="length") for text in cuts]
    session = await world.session(
        [*script, reply(calls=[call("write", whole)]), reply("ok")],
        [tool.write], max_parse_retries=1000, max_tool_rounds=1000, duplicate_tool_call_threshold=1000,
    )  # fmt: skip
    await session.send("go")
    assert tool.runs == ["é"]


async def test_arguments_that_do_not_fit_the_schema_are_a_failed_result(world: World):
    ran: list[int] = []

    def add(a: int, b: int) -> int:
        ran.append(a)
        return a + b

    calls = [call("add", {"a": 1}), call("add", {"a": "x", "b": 1}), call("add", {"a": 1, "b": 1, "c": 1})]
    session = await world.session([reply(calls=calls), reply("ok")], [add])
    assert (await session.send("go")).status == "completed"
    assert ran == []
    assert [ok for _, ok, _ in results(await check_session(session))] == [False] * 3
