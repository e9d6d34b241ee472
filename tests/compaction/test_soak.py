"""Two hundred turns in a small window (issue 4, Shows 5), and the cases of others (CASES A10, loops of B)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import Agent, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from ..kit import Gate, World, check_log, check_messages, check_session, in_thread, kinds, results
from .kit import HEAD, Counting, Long, Looks, compactions, size

WINDOW = 3000


class Talk(Long):
    """A model whose turns differ: some only talk, some look a few times; and it checks what it is sent."""

    def __init__(self, tools: int) -> None:
        super().__init__()
        self.tools, self.largest = tools, 0

    def answer(self, request: Any) -> Any:
        check_messages(request.messages)
        tokens = (size(request) + self.tools + 3) // 4
        assert tokens <= WINDOW, f"a request of {tokens} tokens"
        self.largest = max(self.largest, tokens)
        return super().answer(request)


def test_two_hundred_turns_in_a_small_window(tmp_path: Any):
    looks, guard = Looks(500), Counting()
    with Agent(tmp_path / "a.db", model=Talk(0), tools=[looks.tool()], durability="process") as agent:
        from thence.ledger import tool_schemas

        options = SessionOptions(
            session_id="s", auto_compact=True, max_context_tokens=WINDOW, budget_guard=guard, instructions="Be brief."
        )
        session = agent.session(tmp_path, options)
        core: Any = session._core
        model = core.model
        model.tools = len(tool_schemas(core.setup(streaming=False)))
        said = 0
        for number in range(200):
            result = session.send(f"work {number % 4} {'about ' * (number % 50)}")
            assert result.status == "completed"
            said += number % 4
        facts = session.facts()
        check_log(facts)
        check_messages(session.history())
    assert kinds(facts).count("turn.ended") == kinds(facts).count("user.message") == 200, "no fact is lost"
    assert len(looks.ran) == len(set(looks.ran)) == said == kinds(facts).count("tool.result")
    values = compactions(facts)
    assert 20 < len(values) < 200 and all(value["trigger"] == "threshold" for value in values)
    assert WINDOW * 0.7 < model.largest <= WINDOW
    assert len(guard.checked) == model.asked == len(guard.recorded)
    assert max(guard.checked) <= WINDOW
    assert all((size(request) + 3) // 4 <= WINDOW // 2 for request in model.summaries)
    turns = [fact.key.partition("-")[0] for fact in facts if fact.kind == "compaction.done"]
    assert len(set(turns)) == len(turns), "once a turn"


async def test_a10_compaction_leaves_a_call_that_is_running_alone(world: World):
    """CASES A10: the threshold is reached while a call runs. No compaction comes until it has its result."""
    gate, model = Gate(), Long()
    looks = Looks(5000)

    def running(key: str) -> None:
        if key == "t1-r3-c0":
            gate.wait()

    looks.on = running
    agent = await world.agent(model=model, tools=[looks.tool()])
    options = SessionOptions(session_id="s", auto_compact=True, max_context_tokens=4000)
    session = await agent.session(world.folder / "work", options)
    sending = asyncio.ensure_future(session.send("work 4"))
    await in_thread(lambda: asyncio.run(gate.came()))
    try:
        assert compactions(await session.facts()) == [] and not model.summaries
    finally:
        gate.open()
    assert (await sending).text == "done work"
    facts = await check_session(session)
    assert [key for key, _, _ in results(facts)].count("t1-r3-c0") == 1
    assert len(compactions(facts)) == 1
    for request in model.requests:
        check_messages(request.messages)


async def test_edit_test_six_times_is_no_loop_over_a_compaction_either(world: World):
    """The window of the duplicate guard goes through the compaction: what is no loop is none, and a loop is one."""

    @tool(effect="idempotent", workspace=True)
    def edit(n: int) -> str:
        return f"edited {n} " + "e" * 700

    @tool
    def test() -> str:
        return "failed " + "t" * 700

    script: list[Any] = []
    for n in range(6):
        script += [reply(calls=[call("edit", {"n": n})]), reply(calls=[call("test", {})])]
    script += [reply("done")]

    class Answers(Long):
        def answer(self, request: Any) -> Any:
            return script.pop(0)

    model = Answers()
    agent = await world.agent(model=model, tools=[edit, test])
    options = SessionOptions(session_id="s", auto_compact=True, max_context_tokens=2500, completion_gate=False)
    session = await agent.session(world.folder / "work", options)
    assert (await session.send("go")).tool_calls_count == 12
    assert len(compactions(await check_session(session))) == 1
    script += [reply(calls=[call("test", {})]) for _ in range(9)]
    with pytest.raises(Exception, match="test"):
        await session.send("again")
    oks = [ok for key, ok, _ in results(await check_session(session)) if key.startswith("t2-")]
    assert oks == [True, True, True, False, False]


def test_a_loop_is_seen_across_a_compaction(tmp_path: Any):
    """Three calls before the compaction and one behind it are four."""

    @tool
    def look(path: str) -> str:
        return "x" * 1500

    class Loops(Long):
        def answer(self, request: Any) -> Any:
            return reply(calls=[call("look", {"path": "a"})])

    with Agent(tmp_path / "a.db", model=Loops(), tools=[look]) as agent:
        options = SessionOptions(session_id="s", auto_compact=True, max_context_tokens=1400)
        session = agent.session(tmp_path, options)
        with pytest.raises(Exception, match="look"):
            session.send("go")
        facts = session.facts()
    order = [fact.kind for fact in facts if fact.kind in ("compaction.done", "tool.result")]
    assert order.index("compaction.done") in (2, 3), order
    assert [ok for _, ok, _ in results(facts)] == [True, True, True, False, False]


def test_a_summary_of_a_summary(tmp_path: Any):
    """Each summary is told the one before it."""
    told = list[str]()

    def summary(request: Any) -> Any:
        told.append(request.messages[0].text)
        return reply(f"summary number {len(told)}")

    model = Long(summary)
    with Agent(tmp_path / "a.db", model=model, tools=[Looks().tool()], durability="process") as agent:
        session = agent.session(tmp_path, SessionOptions(auto_compact=True, max_context_tokens=1500))
        for number in range(20):
            session.send(f"work 2 {number}")
        history = session.history()
    assert len(told) > 4
    for number, text in enumerate(told[1:], 1):
        assert text.startswith(f"[user]\n{HEAD}summary number {number}")
    assert history[0].text == f"{HEAD}summary number {len(told)}"
    assert sum(message.text.startswith(HEAD) for message in history) == 1


def test_the_scripted_model_can_compact_too(tmp_path: Any):
    """Whoever tests with scripts sees one request more."""
    script = [reply("a" * 2000), reply("b" * 2000), reply("the story so far"), reply("c")]
    model = ScriptedModel(script)
    with Agent(tmp_path / "a.db", model=model) as agent:
        session = agent.session(tmp_path, SessionOptions(auto_compact=True, max_context_tokens=1200))
        for prompt in ("one", "two", "three"):
            session.send(prompt)
        assert [message.text[:20] for message in session.history()] == [HEAD[:20], "three", "c"]
    assert len(model.requests) == 4
