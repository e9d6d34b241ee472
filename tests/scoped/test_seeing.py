"""A scoped agent sees only sessions with exactly its tags: any other is ``Session not found`` (§1, §3)."""

from __future__ import annotations

from typing import Any

import pytest

from thence import (
    Agent,
    AsyncAgent,
    DurableMemoryBinding,
    HostEnvConfig,
    SessionConfiguration,
    SessionError,
    SessionNotFound,
    SessionOptions,
)
from thence.host.env import HostEnv
from thence.identity import TAG_NAMES, Scope, Tags
from thence.testing import reply

from ..kit import World
from .kit import TENANTS, file, ids, rows, scoped, words

SCOPES: list[tuple[dict[str, Any], list[str]]] = [
    ({"tenant_id": "a"}, ["s0", "s1"]),
    ({"tenant_id": "a", "principal": "p"}, ["s0"]),
    ({"principal": "p"}, ["s0", "s2", "s4"]),
    ({"tenant_id": None}, ["s3", "s4"]),  # untagged: never all
    ({"tenant_id": None, "principal": None}, ["s3"]),
    ({"tenant_id": "a", "principal": None}, []),
    ({"tenant_id": "A"}, []),
    ({"tenant_id": "a "}, []),
    ({"tenant_id": "%"}, []),
    ({"correlation_id": None}, ["s0", "s1", "s2", "s3", "s4"]),
    ({"agent_template_id": "x"}, []),
]


@pytest.mark.parametrize(("tags", "own"), SCOPES)
async def test_list_resume_open_and_usage_agree_on_what_is_there(world: World, tags: dict[str, Any], own: list[str]):
    tenant = scoped(await file(world), **tags)
    assert await ids(tenant) == own
    before = rows(world)
    for name in TENANTS:
        options = SessionOptions(session_id=name)
        if name in own:
            assert (await tenant.resume_session(name)).session_id == name
            assert (await tenant.session("/w", options)).session_id == name
            assert (await tenant.usage(name)).session_id == name
            continue
        for attempt in (
            lambda: tenant.resume_session(name),  # noqa: B023 - called at once
            lambda: tenant.session("/elsewhere", options),  # noqa: B023
            lambda: tenant.usage(name),  # noqa: B023
        ):
            with pytest.raises(SessionNotFound) as error:
                await attempt()
            assert str(error.value) == f"Session not found: {name}"
    assert rows(world) == before


async def test_another_tenants_session_and_one_that_is_nowhere_are_told_alike(world: World):
    tenant = scoped(await file(world), tenant_id="a")
    said = []
    for name in ("s2", "none"):
        for attempt in (tenant.resume_session, tenant.usage):
            with pytest.raises(SessionNotFound) as error:
                await attempt(name)
            said.append(words(error.value).replace(name, "X"))
    assert len(set(said)) == 1


async def test_filters_and_scope_both_hold(world: World):
    tenant = scoped(await file(world), tenant_id="a")
    assert await ids(tenant, principal="q") == ["s1"]
    assert await ids(tenant, tenant_id="a") == ["s0", "s1"]
    assert await ids(tenant, tenant_id="b") == await ids(tenant, tenant_id=None) == []
    assert await ids(scoped(tenant, principal="p"), correlation_id=None) == ["s0"]
    for wrong in ({"tenant": "a"}, {"tenant_id": 7}):
        with pytest.raises(TypeError):
            await tenant.list_sessions(**wrong)


# ------------------------------------------------------------------ what a scope can be


async def test_a_scope_needs_a_tag_that_can_be_one(world: World):
    agent = await world.agent()
    with pytest.raises(TypeError, match="at least one"):
        agent.raw.scoped()
    for wrong in ({"tenant": "a"}, {"session_id": "s"}, {"tenant_id": 7}, {"principal": b"p"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            agent.raw.scoped(**wrong)
    for name in TAG_NAMES:
        for value in ("", " \t", "a\0b", "\ud800"):
            with pytest.raises(SessionConfiguration) as error:
                agent.raw.scoped(**{name: value})
            assert error.value.field == name


async def test_a_scoped_agent_is_scoped_further_and_never_wider(world: World):
    agent = await file(world)
    tenant = scoped(agent, tenant_id="a")
    one = scoped(tenant, principal="q", tenant_id="a")
    assert await ids(one) == ["s1"] and await ids(tenant) == ["s0", "s1"] and len(await ids(agent)) == 5
    assert await ids(scoped(scoped(tenant, correlation_id=None), principal="p")) == ["s0"]
    for wider in ({"tenant_id": "b"}, {"tenant_id": None}, {"principal": "q", "tenant_id": "b"}):
        with pytest.raises(SessionConfiguration) as error:
            tenant.raw.scoped(**wider)
        assert error.value.field == "tenant_id"


def test_the_rule_itself():
    scope = Scope({"tenant_id": "a", "principal": None})
    assert scope.sees(Tags("a")) and scope.sees(Tags("a", None, "t", "c"))
    assert not any(scope.sees(tags) for tags in (Tags(), Tags("b"), Tags("a", "p"), Tags(None, "a")))
    assert all(Scope().sees(tags) for tags in (Tags(), Tags("a", "p", "t", "c")))
    assert scope.conflict({}) is None and scope.conflict({"principal": "p", "tenant_id": "b"}) == "tenant_id"
    assert scope.over(Tags(correlation_id="c")) == Tags("a", None, None, "c")


async def test_a_subclass_stays_one(world: World):
    made = Agent if world.face == "sync" else AsyncAgent

    class Mine(made):  # type: ignore[misc,valid-type]
        label = "none"

    mine = Mine(world.folder / "mine.db")
    mine.label = "given"
    tenant = mine.scoped(tenant_id="a")
    assert type(tenant) is Mine and tenant.label == "given"
    closing = mine.close()
    if world.face == "async":
        await closing


# ------------------------------------------------------------------ new sessions, and labels


async def test_new_sessions_get_the_tags_of_the_scope_and_may_choose_the_others(world: World):
    agent = await world.agent()
    tenant = scoped(agent, tenant_id="a", correlation_id=None)
    for options in (None, SessionOptions(principal="p"), SessionOptions(tenant_id="a"), SessionOptions(tenant_id=None)):
        await tenant.session("/w", options)
    found = await agent.list_sessions()
    assert [(one.tenant_id, one.principal) for one in found] == [("a", None), ("a", "p"), ("a", None), ("a", None)]
    assert {(one.agent_template_id, one.correlation_id) for one in found} == {(None, None)}


@pytest.mark.parametrize("name", TAG_NAMES)
@pytest.mark.parametrize("held", ["mine", None])
async def test_an_option_that_says_another_tag_is_refused_by_its_name(world: World, name: str, held: str | None):
    agent = await world.agent()
    tenant = scoped(agent, **{name: held})
    await tenant.session("/w", SessionOptions(session_id="own"))
    before = rows(world)
    for session_id in ("own", "new"):
        options = SessionOptions(session_id=session_id)
        setattr(options, name, "other")
        attempts = [tenant.session("/elsewhere", options), tenant.resume_session(session_id, options)]
        for attempt in attempts:
            with pytest.raises(SessionConfiguration) as error:
                await attempt
            assert error.value.field == name
    assert rows(world) == before


async def test_a_refused_label_says_nothing_about_the_id(world: World):
    tenant = scoped(await file(world), tenant_id="a")
    said = set()
    for name in ("s0", "s2", "none"):
        with pytest.raises(SessionConfiguration) as error:
            await tenant.resume_session(name, SessionOptions(tenant_id="b"))
        said.add(words(error.value))
    assert len(said) == 1


async def test_a_tag_outside_the_scope_is_given_on_resume_as_ever(world: World):
    agent = await file(world)
    tenant = scoped(agent, tenant_id="a", principal="p")
    session = await tenant.resume_session("s0", SessionOptions(correlation_id="request-2"), workspace="/other")
    assert (session.tenant_id, session.principal, session.correlation_id) == ("a", "p", "request-2")
    assert [one.session_id for one in await agent.list_sessions(correlation_id="request-2", tenant_id="a")] == ["s0"]


async def test_durable_memory_of_another_namespace_is_refused(world: World):
    agent = await world.agent()
    tenant = scoped(agent, tenant_id="a")
    for bound in (DurableMemoryBinding("b", "p", "notes"), DurableMemoryBinding("a ", "p", "notes")):
        with pytest.raises(SessionConfiguration) as error:
            await tenant.session("/w", SessionOptions(durable_memory=bound))
        assert error.value.field == "tenant_id"
    with pytest.raises(SessionConfiguration) as error:  # an untagged scope, and a binding that tags
        own = DurableMemoryBinding("a", "p", "notes")
        await scoped(agent, principal=None).session("/w", SessionOptions(durable_memory=own))
    assert error.value.field == "principal"
    assert await agent.list_sessions() == []
    session = await tenant.session("/w", SessionOptions(session_id="s", durable_memory=own))
    assert (session.tenant_id, session.principal) == ("a", "p")
    assert (await tenant.resume_session("s", SessionOptions(durable_memory=own))).principal == "p"
    with pytest.raises(SessionNotFound):
        await scoped(agent, tenant_id="b").resume_session("s")


# ------------------------------------------------------------------ ids that others hold


async def test_a_drawn_id_passes_over_those_of_others(world: World):
    agent = await world.agent(host_env=HostEnvConfig("replay", 1))
    await agent.session("/w", SessionOptions(tenant_id="b"))
    tenant = scoped(agent, tenant_id="a")
    given = SessionOptions(host_env=HostEnvConfig("replay", 1))
    assert (await tenant.session("/w", given)).session_id == "replay-1"


async def test_an_id_that_another_takes_in_this_very_moment_stays_theirs(world: World):
    agent = await world.agent([reply("ok")] * 2)

    class Late:
        """Whoever reads this clock is about to write the session: somebody else is faster."""

        def now_ms(self) -> int:
            with Agent(world.db) as other:
                other.session("/theirs", SessionOptions(session_id="new", tenant_id="b"))
            return 1

    late = SessionOptions(session_id="new", host_env=HostEnv(clock=Late()))
    with pytest.raises(SessionNotFound):
        await scoped(agent, tenant_id="a").session("/mine", late)
    [theirs] = await agent.list_sessions()
    assert (theirs.tenant_id, theirs.workspace) == ("b", "/theirs")


# ------------------------------------------------------------------ what is of the whole file


async def test_the_health_of_the_file_is_for_the_agent_of_the_file(world: World):
    agent = await file(world)
    with pytest.raises(SessionError, match="whole file"):
        await scoped(agent, tenant_id="a").doctor()
    assert (await agent.doctor()).path


@pytest.mark.parametrize("face", [Agent, AsyncAgent])
def test_every_method_of_an_agent_was_thought_about(face: Any):
    """A new one comes here once it has a test that it tells nothing of what the agent's scope does not see."""
    known = {"session", "resume_session", "list_sessions", "waits", "usage", "doctor", "recover", "passivate", "close"}
    assert {name for name in dir(face) if not name.startswith("_")} == known | {"scoped", "is_closed"}
