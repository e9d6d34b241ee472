"""Tags, durable memory, and what a session remembers of its options (§2, §3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from thence import DurableMemoryBinding, SessionConfiguration, SessionOptions, ToolContext
from thence.testing import call, reply

from ..kit import Both, Gate, World

TAGS = ("tenant_id", "principal", "agent_template_id", "correlation_id")


def tags(session: Both) -> list[str | None]:
    return [getattr(session, name) for name in TAGS]


async def opened(world: World, agent: Both | None = None, **options: Any) -> Both:
    agent = agent or await world.agent([reply("ok")] * 9)
    session: Both = await agent.session(".", SessionOptions(session_id="s", **options))
    return session


async def test_tags_are_properties_and_default_to_none(world: World):
    assert tags(await opened(world)) == [None] * 4


async def test_tags_are_restored_and_a_given_one_wins_and_is_stored(world: World):
    await opened(world, tenant_id="t", principal="p", correlation_id="c")
    await world.close()
    world._agents.clear()
    session = await opened(world, correlation_id="c2", agent_template_id="a", tenant_id=None)
    assert tags(session) == ["t", "p", "a", "c2"]
    await world.close()
    world._agents.clear()
    agent = await world.agent([])
    assert tags(await agent.resume_session("s")) == ["t", "p", "a", "c2"]


@pytest.mark.parametrize("value", ["é😀", " spaced ", "a'b\"c;--", "x" * 5000, "%_*"])
async def test_tags_are_opaque(world: World, value: str):
    session = await opened(world, tenant_id=value)
    assert session.tenant_id == value
    assert [info.tenant_id for info in await world._agents[0].list_sessions(tenant_id=value)] == [value]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize("value", ["", "  ", "a\0b", "\ud800"])
async def test_a_bad_tag_is_refused(world: World, name: str, value: str):
    agent = await world.agent([])
    with pytest.raises(SessionConfiguration, match=name):
        await agent.session(".", SessionOptions(**dict[str, Any]({name: value})))
    assert await agent.list_sessions() == []


async def test_blank_is_refused_with_exactly_this_text(world: World):
    agent = await world.agent([])
    with pytest.raises(SessionConfiguration) as refused:
        await agent.session(".", SessionOptions(tenant_id=" "))
    assert str(refused.value) == "Invalid session configuration for 'tenant_id': must not be empty or whitespace"
    assert issubclass(SessionConfiguration, ValueError) and refused.value.code == "SESSION_CONFIGURATION_ERROR"


async def test_a_tag_that_is_no_string_is_a_type_error(world: World):
    agent = await world.agent([])
    with pytest.raises(TypeError, match="principal"):
        await agent.session(".", SessionOptions(principal=7))  # type: ignore[arg-type]


async def test_list_sessions_filters_by_equality(world: World):
    agent = await world.agent([])
    for number, (tenant, principal) in enumerate([("a", "p"), ("a", "q"), ("b", "p"), (None, None), (None, "p")]):
        await agent.session(".", SessionOptions(session_id=f"s{number}", tenant_id=tenant, principal=principal))

    async def found(**filters: str | None) -> list[str]:
        return [info.session_id for info in await agent.list_sessions(**filters)]

    assert await found() == ["s0", "s1", "s2", "s3", "s4"]
    assert await found(tenant_id="a") == ["s0", "s1"]
    assert await found(tenant_id="a", principal="q") == ["s1"]
    assert await found(tenant_id=None) == ["s3", "s4"]  # untagged only
    assert await found(tenant_id=None, principal="p") == ["s4"]
    assert await found(tenant_id="A") == []
    with pytest.raises(TypeError):
        await agent.list_sessions(tenant="a")


# ------------------------------------------------------------------ durable memory

MEMORY = DurableMemoryBinding("acme", "ann", "notes")


async def test_omitted_tags_take_the_namespaces_values(world: World):
    session = await opened(world, durable_memory=MEMORY, correlation_id="c")
    assert tags(session) == ["acme", "ann", None, "c"]


async def test_an_equal_explicit_tag_is_fine(world: World):
    assert tags(await opened(world, durable_memory=MEMORY, tenant_id="acme"))[:2] == ["acme", "ann"]


@pytest.mark.parametrize(("name", "value"), [("tenant_id", "Acme"), ("principal", "bob"), ("tenant_id", "acme ")])
async def test_an_explicit_tag_must_equal_it_exactly(world: World, name: str, value: str):
    agent = await world.agent([])
    with pytest.raises(SessionConfiguration) as refused:
        await agent.session(".", SessionOptions(durable_memory=MEMORY, **dict[str, Any]({name: value})))
    assert refused.value.field == name
    assert await agent.list_sessions() == []


async def test_on_resume_there_are_three_distinct_errors(world: World):
    agent = await world.agent([])
    await agent.session(".", SessionOptions(session_id="bound", durable_memory=MEMORY))
    await agent.session(".", SessionOptions(session_id="free"))
    texts = set()
    other = DurableMemoryBinding("acme", "ann", "other")
    for session_id, given in (("bound", None), ("free", MEMORY), ("bound", other)):
        with pytest.raises(SessionConfiguration) as refused:
            await agent.resume_session(session_id, SessionOptions(durable_memory=given))
        assert refused.value.field == "durable_memory"
        texts.add(str(refused.value))
    assert len(texts) == 3
    assert tags(await agent.resume_session("bound", SessionOptions(durable_memory=MEMORY)))[:2] == ["acme", "ann"]


async def test_tags_reach_tools(world: World):
    seen: list[Any] = []

    def look(context: ToolContext) -> str:
        seen.append(dict(context.tags))
        return "x"

    session = await world.session([reply(calls=[call("look")]), reply("ok")], [look], tenant_id="t", correlation_id="c")
    await session.send("go")
    assert seen == [{"tenant_id": "t", "principal": None, "agent_template_id": None, "correlation_id": "c"}]


# ------------------------------------------------------------------ stored options


async def rounds_of(session: Both, world: World) -> int:
    """How many requests offered tools before the cap."""
    await session.send("go")
    return sum(bool(request.tools) for request in world.model.requests)


def endless() -> list[Any]:
    return [reply("x", calls=[call("step", {"n": n})]) for n in range(60)]


def step(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("stored", "given", "expected"),
    [({"max_tool_rounds": 2}, {}, 2), ({"max_tool_rounds": 2}, {"max_tool_rounds": 4}, 4), ({}, {}, 50),
     # A default that is set explicitly wins: unset is its own value.
     ({"max_tool_rounds": 2}, {"max_tool_rounds": 50}, 50)],
)  # fmt: skip
async def test_options_are_restored_and_explicit_ones_win(world: World, stored, given, expected: int):
    agent = await world.agent([], tools=[step])
    await agent.session(".", SessionOptions(session_id="s", **stored))
    await agent.close()
    agent = await world.agent(endless(), tools=[step])
    session = await agent.resume_session("s", SessionOptions(**given))
    assert await rounds_of(session, world) == expected


async def test_what_was_given_on_resume_is_stored(world: World):
    agent = await world.agent([], tools=[step])
    await agent.session(".", SessionOptions(session_id="s", max_tool_rounds=9))
    await agent.resume_session("s", SessionOptions(max_tool_rounds=3))
    await agent.close()
    agent = await world.agent(endless(), tools=[step])
    assert await rounds_of(await agent.resume_session("s"), world) == 3


async def test_instructions_and_settings_are_stored_model_objects_are_not(world: World):
    agent = await world.agent([], instructions="agent's")
    await agent.session(".", SessionOptions(session_id="s", instructions="session's", model_settings={"top_p": 1}))
    await agent.close()
    agent = await world.agent([reply("ok")], instructions="agent's")
    await (await agent.resume_session("s")).send("go")
    [request] = world.model.requests
    assert (request.instructions, request.settings) == ("session's", {"top_p": 1})


@pytest.mark.parametrize("given", [{}, {"budget_guard": None}])
async def test_a_session_that_had_a_guard_demands_one(world: World, given: dict[str, Any]):
    agent = await world.agent([])
    await agent.session(".", SessionOptions(session_id="s", budget_guard=SimpleNamespace(check_before_llm=None)))
    await agent.close()
    agent = await world.agent([])
    with pytest.raises(SessionConfiguration) as refused:
        await agent.resume_session("s", SessionOptions(**given))
    assert refused.value.field == "budget_guard"
    with pytest.raises(SessionConfiguration):
        await agent.session(".", SessionOptions(session_id="s", **given))
    assert await agent.resume_session("s", SessionOptions(budget_guard=SimpleNamespace(check_before_llm=None)))


async def test_a_live_run_keeps_what_it_started_with(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply(calls=[call("step", {"n": 0})])

    agent = await world.agent([hold, *endless()], tools=[step])
    session = await agent.session(".", SessionOptions(session_id="s", max_tool_rounds=2))
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await agent.resume_session("s", SessionOptions(max_tool_rounds=5))
    gate.open()
    await task
    assert sum(bool(request.tools) for request in world.model.requests) == 2


async def test_the_workspace_is_absolute_need_not_exist_and_may_change(world: World, monkeypatch):
    monkeypatch.chdir(world.folder)
    agent = await world.agent([])
    session = await agent.session("nowhere/../deep", SessionOptions(session_id="s"))
    assert session.workspace == str(world.folder / "deep")
    assert (await agent.resume_session("s")).workspace == str(world.folder / "deep")
    moved = await agent.resume_session("s", workspace=world.folder / "new")
    assert moved.workspace == str(world.folder / "new")
    assert [info.workspace for info in await agent.list_sessions()] == [str(world.folder / "new")]


async def test_options_are_not_shared_between_sessions(world: World):
    agent = await world.agent([*endless(), reply("ok")], tools=[step])
    opts = SessionOptions(max_tool_rounds=1)
    first = await agent.session(".", opts)
    opts.max_tool_rounds = 3
    assert await rounds_of(first, world) == 1
