"""Registering, unregistering, and what the file remembers of hooks (§2, §10)."""

from __future__ import annotations

from typing import Any

import pytest

from thence import Hook, HookContext, RunFailed, SessionClosed, SessionConfiguration, SessionOptions
from thence.testing import reply

from ..kit import World, check_session, results
from ..turn.guard_kit import Guard
from .hook_kit import Acts, Told, one_round, register


async def test_ids_count_from_one_in_a_session_object(world: World):
    session = await world.session([reply("ok")], hooks=[Hook("pre_llm", Told())])
    assert [await register(session, "run_end", Told()) for _ in range(2)] == ["hook-2", "hook-3"]


async def test_registering_and_unregistering_need_no_await(world: World):
    session = await world.session([])
    assert isinstance(session.raw.register_hook("pre_llm", Told()), str)
    assert session.raw.unregister_hook("hook-1") is True


async def test_unregister(world: World):
    first, second = Told(), Told()
    session = await world.session([reply("ok")] * 2)
    one = await register(session, "pre_llm", first)
    await register(session, "pre_llm", second)
    await session.send("go")
    assert await session.unregister_hook(one) is True
    assert await session.unregister_hook(one) is False
    assert await session.unregister_hook("hook-99") is False
    await session.send("go")
    assert (len(first.contexts), len(second.contexts)) == (1, 2)


async def test_a_change_during_a_live_run_holds_from_the_next_moment_on(world: World):
    late = Told()
    session: Any = None

    def act(n: int) -> str:
        if n == 1:
            session.raw.register_hook("post_tool_use", late)
            session.raw.register_hook("pre_tool_use", late)
        if n == 3:
            assert session.raw.unregister_hook("hook-1") and session.raw.unregister_hook("hook-2")
        return str(n)

    session = await world.session(one_round(1, 2, 3, 4), [act])
    await session.send("go")
    seen = [(context.event_type, context.arguments["n"]) for context in late.contexts]
    assert seen == [("post_tool_use", 1), ("pre_tool_use", 2), ("post_tool_use", 2), ("pre_tool_use", 3)]


@pytest.mark.parametrize("kind", ["budget_threshold_hit", "passivation_requested", "peer_invocation", "on_error"])
async def test_other_types_are_refused_by_name(world: World, kind: str):
    session = await world.session([])
    with pytest.raises(SessionConfiguration, match=f"'{kind}' is no hook type") as refused:
        await register(session, kind, Told())
    assert refused.value.field == "event_type"
    with pytest.raises(SessionConfiguration, match=f"'{kind}' is no hook type"):
        await world.session([], hooks=[Hook(kind, Told())])


async def test_after_close_nothing_is_registered(world: World):
    session = await world.session([])
    await session.close()
    with pytest.raises(SessionClosed):
        await register(session, "pre_llm", Told())
    with pytest.raises(SessionClosed):
        await session.unregister_hook("hook-1")


# ------------------------------------------------------------------ what the file remembers


async def reopen(world: World, script: list[Any] | None = None, **given: Any) -> Any:
    agent = await world.agent(script or [reply("on")])
    return await agent.resume_session("s", SessionOptions(**given))


@pytest.mark.parametrize("how", ["option", "registered"])
async def test_a_session_that_had_hooks_is_not_opened_without_any(world: World, how: str):
    given: dict[str, Any] = {"hooks": [Hook("pre_llm", Told())]} if how == "option" else {}
    session = await world.session([reply("ok")], session_id="s", **given)
    if how == "registered":
        await register(session, "pre_llm", Told())
        await session.send("go")
    await session.close()
    without: list[dict[str, Any]] = [{}, {"hooks": None}, {"hooks": []}, {"budget_guard": Guard()}]
    for nothing in without:
        with pytest.raises(SessionConfiguration) as refused:
            await reopen(world, **nothing)
        assert refused.value.field == "hooks"
        assert str(refused.value) == (
            "Invalid session configuration for 'hooks': the session had some: give them again to resume the session"
        )
    told = Told()
    again = await reopen(world, hooks=[Hook("pre_llm", told)])
    await again.send("more")
    assert told.types == ["pre_llm"]


async def test_a_session_that_had_none_is_opened_without(world: World):
    session = await world.session([reply("ok")], session_id="s", hooks=[])
    await session.send("go")
    await session.close()
    assert (await (await reopen(world)).send("more")).text == "on"


async def test_both_guard_and_hooks_are_remembered(world: World):
    session = await world.session([reply("ok")], session_id="s", hooks=[Hook("pre_llm", Told())], budget_guard=Guard())
    await session.close()
    with pytest.raises(SessionConfiguration, match=r"'budget_guard'.*had one: give it again"):
        await reopen(world, hooks=[Hook("pre_llm", Told())])
    with pytest.raises(SessionConfiguration, match="'hooks'"):
        await reopen(world, budget_guard=Guard())
    await reopen(world, budget_guard=Guard(), hooks=(Hook("pre_llm", Told()),))


async def test_hooks_given_at_the_opening_are_asked_in_the_run_that_goes_on(world: World):
    def fail(context: HookContext) -> None:
        raise KeyboardInterrupt

    session = await world.session(
        one_round(), [Acts().tool()], session_id="s",
        hooks=[Hook("pre_llm", fail, lambda context: context.request == 2)],
    )  # fmt: skip
    with pytest.raises(RunFailed, match="hook-1"):
        await session.send("go")
    await session.close()
    told = Told()
    resumed = await reopen(world, hooks=[Hook("pre_llm", told)])
    [run] = await resumed.runs()
    assert (await resumed.resume_run(run.id)).text == "on"
    assert [context.request for context in told.contexts] == [2]
    assert results(await check_session(resumed)) == [("t1-r1-c0", True, "did 1")]
