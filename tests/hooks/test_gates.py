"""What hooks can do to calls and requests, in which order, and what of it is recorded (§5, §10)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from thence import Hook, HookContext, HostEnvConfig, ModelError, RunFailed
from thence.testing import call, reply

from ..kit import World, canonical, check_session, kinds, results, stored
from ..turn.guard_kit import SOFT, Guard
from .hook_kit import BLOCKED, GATES, Acts, Told, all_types, one_round, register


def sha(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def block(reason: str = "not today") -> dict[str, Any]:
    return {"decision": "block", "reason": reason}


def plus(amount: int) -> Told:
    """A hook that adds to the call's ``n``."""
    return Told(lambda context: {"arguments": {**context.arguments, "n": context.arguments["n"] + amount}})


# ------------------------------------------------------------------ calls


async def test_a_blocked_call_is_not_run_and_the_model_hears_why(world: World):
    acts, guard, later = Acts(), Guard(), Told()
    hooks = [Hook("pre_tool_use", Told(block())), Hook("pre_tool_use", later), Hook("post_tool_use", later)]
    session = await world.session(one_round(), [acts.tool()], hooks=hooks, budget_guard=guard)
    result = await session.send("go")
    assert (result.text, result.tool_calls_count) == ("ok", 0)
    facts = await check_session(session)
    [fact] = [fact for fact in facts if fact.kind == "tool.result"]
    assert stored(fact)["metadata"] == {"refused": "hook_blocked", "hook": "hook-1"}
    assert results(facts) == [("t1-r1-c0", False, BLOCKED + "not today")]
    assert (acts.ran, later.contexts) == ([], [])
    assert [asked for asked in guard.asked if asked[0] == "tool"] == []
    [run] = await session.runs()
    ends = [e.payload for e in await session.run_events(run.id) if e.type == "tool_end"]
    assert [(end["error_kind"], end["output"]) for end in ends] == [("hook_blocked", BLOCKED + "not today")]
    assert world.model.requests[1].messages[-1].text == BLOCKED + "not today"


async def test_other_calls_of_the_answer_run(world: World):
    acts = Acts()
    hook = Hook("pre_tool_use", lambda context: block("odd") if context.arguments["n"] % 2 else None)
    session = await world.session(one_round(1, 2, 3, 4), [acts.tool()], hooks=[hook])
    await session.send("go")
    assert acts.ran == [2, 4]
    assert [ok for _, ok, _ in results(await check_session(session))] == [False, True, False, True]


async def test_changed_arguments_reach_later_hooks_and_the_tool_and_are_recorded_by_their_hash(world: World):
    acts, last, post, guard = Acts(), Told(), Told(), Guard()
    first, second = plus(10), plus(100)
    hooks = [
        Hook("pre_tool_use", first), Hook("pre_tool_use", second), Hook("pre_tool_use", last),
        Hook("post_tool_use", post),
    ]  # fmt: skip
    session = await world.session(one_round(), [acts.tool()], hooks=hooks, budget_guard=guard)
    await session.send("go")
    facts = await check_session(session)
    assert acts.ran == [111]
    told = [one.contexts[0].arguments for one in (first, second, last, post)]
    assert told == [{"n": 1}, {"n": 11}, {"n": 111}, {"n": 111}]
    [turn, _] = [stored(fact) for fact in facts if fact.kind == "model.turn"]
    assert [one["arguments"] for one in turn["calls"]] == [{"n": 1}]
    [result] = [stored(fact) for fact in facts if fact.kind == "tool.result"]
    assert result["metadata"] == {"arguments": {"sha256": sha({"n": 111}), "hooks": ["hook-1", "hook-2"]}}
    assert ("tool", session.session_id, "act") in guard.asked
    [run] = await session.runs()
    [started] = [e for e in await session.run_events(run.id) if e.type == "tool_execution_start"]
    assert started.payload["args"] == {"n": 111}


async def test_arguments_that_come_back_as_they_were_are_no_change(world: World):
    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("pre_tool_use", plus(0))])
    await session.send("go")
    [result] = [stored(fact) for fact in await check_session(session) if fact.kind == "tool.result"]
    assert result["metadata"] == {}


@pytest.mark.parametrize(("given", "same"), [(1, True), (1.0, False), (True, False)])
async def test_equal_in_python_is_not_equal_in_json(world: World, given: Any, same: bool):
    hook = Hook("pre_tool_use", lambda context: {"arguments": {"n": given}})
    session = await world.session(one_round(1), [Acts().tool()], hooks=[hook])
    await session.send("go")
    [result] = [stored(fact) for fact in await check_session(session) if fact.kind == "tool.result"]
    assert ("arguments" in result["metadata"]) is not same


async def test_changed_arguments_are_checked_as_any_others(world: World):
    acts = Acts()
    hook = Hook("pre_tool_use", lambda context: {"arguments": {"n": "many"}})
    session = await world.session(one_round(), [acts.tool()], hooks=[hook])
    await session.send("go")
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith("Error: ") and "n" in text and acts.ran == []


async def test_what_a_handler_does_to_its_copy_changes_nothing(world: World):
    acts = Acts()

    def meddle(context: Any) -> None:
        context.arguments["n"] = 99
        context.tags.clear()

    told = Told()
    session = await world.session(
        one_round(), [acts.tool()], hooks=[Hook("pre_tool_use", meddle), Hook("pre_tool_use", told)], tenant_id="t"
    )
    await session.send("go")
    assert acts.ran == [1]
    assert (told.contexts[0].arguments, told.contexts[0].tags["tenant_id"]) == ({"n": 1}, "t")


async def test_the_duplicate_guard_goes_by_what_the_model_said(world: World):
    """Changed to the same, different calls all run; changed to something else, the same call is still a loop."""
    constant = Hook("pre_tool_use", lambda context: {"arguments": {"n": 0}})
    acts = Acts()
    script = [*(reply(calls=[call("act", {"n": n})]) for n in range(5)), reply("ok")]
    session = await world.session(script, [acts.tool()], hooks=[constant])
    await session.send("go")
    assert acts.ran == [0] * 5
    counter = iter(range(100, 200))
    acts = Acts()
    script = [*(reply(calls=[call("act", {"n": 1})]) for _ in range(4)), reply("ok")]
    session = await world.session(
        script, [acts.tool()], hooks=[Hook("pre_tool_use", lambda context: {"arguments": {"n": next(counter)}})]
    )
    await session.send("go")
    assert acts.ran == [100, 101, 102]


async def test_judging_order_duplicates_and_malformed_come_first_the_guard_last(world: World):
    """§5: duplicate guard, malformed arguments, (unknown tool,) hook, permission, check_before_tool."""
    asked: list[str] = []
    guard = Guard(tool=lambda: asked.append("guard"))
    hook = Told(lambda context: asked.append("hook"))
    bad = [call("act", "{broken"), call("nope", {})]
    same = [call("act", {"n": 1})] * 4
    session = await world.session(
        [reply(calls=[*bad, *same]), reply("ok")], [Acts().tool()], hooks=[Hook("pre_tool_use", hook)],
        budget_guard=guard,
    )  # fmt: skip
    await session.send("go")
    assert hook.keys == ["t1-r1-c2", "t1-r1-c3", "t1-r1-c4"]
    assert asked == ["hook", "guard"] * 3
    await check_session(session)


# ------------------------------------------------------------------ order and matchers


async def test_the_lower_number_first_then_as_registered(world: World):
    order: list[str] = []
    session = await world.session(one_round(), [Acts().tool()])
    for name, priority in [("a", 100), ("b", 5), ("c", 100), ("d", -1), ("e", 5)]:
        await register(session, "pre_tool_use", lambda context, name=name: order.append(name), priority=priority)
    await register(session, "pre_tool_use", lambda context: order.append("default"))
    await session.send("go")
    assert order == ["d", "b", "e", "a", "c", "default"]


async def test_matchers(world: World):
    def other(n: int = 0) -> str:
        return "other"

    told = {name: Told() for name in ["all", "act", "glob", "none", "two", "post"]}
    session = await world.session(
        [reply(calls=[call("act", {"n": 1}), call("other", {"n": 2})]), reply("ok")],
        [Acts().tool(), other],
        hooks=[
            Hook("pre_tool_use", told["all"]),
            Hook("pre_tool_use", told["act"], "act"),
            Hook("pre_tool_use", told["glob"].later, "ot*"),
            Hook("pre_tool_use", told["none"], "write*"),
            Hook("pre_tool_use", told["two"], lambda context: context.arguments["n"] == 2),
            Hook("post_tool_use", told["post"], "other"),
        ],
    )
    await session.send("go")
    keys = {name: one.keys for name, one in told.items()}
    act, other_key = "t1-r1-c0", "t1-r1-c1"
    assert keys == {
        "all": [act, other_key], "act": [act], "glob": [other_key], "none": [], "two": [other_key], "post": [other_key]
    }  # fmt: skip


async def test_a_matcher_of_other_types(world: World):
    told = Told()
    session = await world.session(
        one_round(), [Acts().tool()], hooks=[Hook("pre_llm", told, lambda context: context.request == 2)]
    )
    await session.send("go")
    assert [context.request for context in told.contexts] == [2]


async def cannot(context: HookContext) -> bool:
    return False


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "matcher", [lambda context: 1 / 0, cannot, lambda: True], ids=["raises", "async", "no parameter"]
)
async def test_a_matcher_that_fails_is_a_hook_that_fails(world: World, matcher: Any, is_async: bool):
    told = Told()
    handler = told.later if is_async else told
    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("pre_tool_use", handler, matcher)])
    await session.send("go")
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith(f"{BLOCKED}hook 'hook-1' raised ")
    assert told.contexts == []


# ------------------------------------------------------------------ requests


async def test_what_pre_llm_is_told(world: World):
    told, guard = Told(), Guard(llm={**SOFT, "message": "soon"}, tool=SOFT)
    session = await world.session(
        one_round(), [Acts().tool()], hooks=[Hook("pre_llm", told)], budget_guard=guard, principal="p"
    )
    result = await session.send("go")
    first, second = told.contexts
    assert (first.request, first.model, first.run_id, first.soft_decisions) == (1, "scripted", result.run_id, ())
    assert (second.request, second.tags["principal"]) == (2, "p")
    assert list(second.soft_decisions) == [{**SOFT, "message": "soon"}, SOFT]
    estimates = [asked[2] for asked in guard.asked if asked[0] == "llm"]
    assert [first.estimated_tokens, second.estimated_tokens] == estimates


async def test_pre_llm_is_asked_once_a_request_and_not_per_attempt(world: World):
    told, guard = Told(), Guard()
    broken = ModelError("503", "503", retryable=True)
    session = await world.session(
        [broken, broken, reply("ok")], hooks=[Hook("pre_llm", told)], budget_guard=guard, retry_base_ms=0
    )
    await session.send("go")
    assert len(told.contexts) == 1
    assert len([asked for asked in guard.asked if asked[0] == "llm"]) == 3


async def test_a_failed_pre_llm_leaves_a_run_that_can_be_resumed(world: World):
    told = Told(lambda context: 1 / 0)
    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("pre_llm", told)])
    with pytest.raises(RunFailed) as failed:
        await session.send("go")
    assert failed.value.code == "HOOK_FAILED" and failed.value.run_id is not None
    [run] = await session.runs()
    assert (run.status, run.error_code, run.resumable) == ("failed", "HOOK_FAILED", True)
    told.answer = None
    assert (await session.resume_run(failed.value.run_id)).text == "ok"
    assert kinds(await check_session(session)).count("user.message") == 1


def configured(facts: Any) -> list[tuple[Any, Any, Any]]:
    found = [(fact, stored(fact)) for fact in facts if fact.kind == "run.configured"]
    return [(fact.cause, value["model"], value.get("instead_of")) for fact, value in found]


async def test_another_model_for_the_rest_of_the_turn(world: World):
    def choose(context: HookContext) -> Any:
        return {"model": "small"} if context.request == 2 and first else None

    first = True
    told = Told()
    script = [*(reply(calls=[call("act", {"n": n})]) for n in range(2)), reply("ok"), reply("next")]
    session = await world.session(script, [Acts().tool()], hooks=[Hook("pre_llm", choose), Hook("pre_llm", told)])
    await session.send("go")
    first = False
    await session.send("again")
    assert [request.model for request in world.model.requests] == ["scripted", "small", "small", "scripted"]
    assert [context.model for context in told.contexts] == ["scripted", "small", "small", "scripted"]
    assert configured(await check_session(session)) == [
        (None, "scripted", None), ("hook:t1-r2", "small", "scripted"), (None, "scripted", None)
    ]  # fmt: skip


async def test_back_to_the_hosts_own_model(world: World):
    names = iter(["small", "scripted", "scripted"])
    script = [*(reply(calls=[call("act", {"n": n})]) for n in range(2)), reply("ok")]
    session = await world.session(
        script, [Acts().tool()], hooks=[Hook("pre_llm", lambda context: {"model": next(names)})]
    )
    await session.send("go")
    assert [request.model for request in world.model.requests] == ["small", "scripted", "scripted"]
    assert configured(await check_session(session)) == [
        (None, "scripted", None), ("hook:t1-r1", "small", "scripted"), ("hook:t1-r2", "scripted", None)
    ]  # fmt: skip


# ------------------------------------------------------------------ both faces


async def test_both_faces_write_the_same_facts(tmp_path: Path):
    def gates(context: HookContext) -> Any:
        if context.event_type == "pre_llm":
            return {"model": f"m{context.request}"}
        number = context.arguments["n"]
        return block("no threes") if number == 3 else {"arguments": {"n": number * 2}}

    async def gates_later(context: HookContext) -> Any:
        return gates(context)

    def watch(context: HookContext) -> None: ...

    logs = []
    for face in ("sync", "async"):
        for handler in (gates, gates_later):
            folder = tmp_path / f"{face}-{handler.__name__}"
            folder.mkdir()
            world = World(face, folder)
            hooks = [one for one in all_types(watch) if one.event_type not in GATES]
            hooks += [Hook(kind, handler) for kind in GATES]
            session = await world.session(
                one_round(1, 2, 3, 4), [Acts().tool()], hooks=hooks, host_env=HostEnvConfig("r", 1_700_000_000_000)
            )
            await session.send("go")
            logs.append([fact.hash for fact in await check_session(session)])
            await world.close()
    assert logs[0] == logs[1] == logs[2] == logs[3]
