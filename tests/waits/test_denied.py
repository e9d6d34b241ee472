"""What a denial is to the model, the guard and the log, and in which order a call is judged (§5, §10)."""

from __future__ import annotations

import pytest

from thence import PermissionPolicy
from thence.testing import call, reply

from ..kit import World, check_session, results, stored, types
from ..resume.kit import calls, done
from ..turn.guard_kit import Guard
from .kit import C0, C1, asks, box, ended_well, events_of


async def test_a_denied_call_is_told_to_the_model_the_log_and_the_reader(world: World):
    """§10 permissions, §5: not run, a failed result with the exact sentence, one event, and the turn goes on."""
    script = [calls('bash:{"command":"rm x"}', "put:1"), done()]
    ran: list[str] = []
    session = await world.session(script, box(ran), permission_policy=PermissionPolicy(deny=("bash(command=rm *)",)))
    result = await session.send("go")
    assert (result.status, result.text, result.tool_calls_count, result.waits) == ("completed", "Done.", 1, ())
    assert ran == ["put"]
    facts = await check_session(session)
    sentence = "Error: permission denied: the policy denies 'bash'"
    assert results(facts) == [(C0, False, sentence), (C1, True, "ran")]
    [refused, good] = [stored(fact) for fact in facts if fact.kind == "tool.result"]
    assert refused["metadata"]["refused"] == "permission_denied" and "refused" not in good["metadata"]
    [event] = await events_of(session, result.run_id, "permission_denied")
    assert set(event) == {"tool_id", "tool_name", "args", "reason"}
    assert (event["tool_id"], event["tool_name"], event["args"]) == (C0, "bash", {"command": "rm x"})
    assert isinstance(event["reason"], str) and event["reason"]
    started = [one["id"] for one in await events_of(session, result.run_id, "tool_execution_start")]
    ended = [(one["id"], one["exit_code"]) for one in await events_of(session, result.run_id, "tool_end")]
    assert started == [C1] and sorted(ended) == [(C0, 1), (C1, 0)]
    told = [(m.call_key, m.ok, m.text) for m in world.model.requests[1].messages if m.role == "tool"]
    assert told == [(C0, False, sentence), (C1, True, "ran")]


async def test_denials_do_not_count_as_executed(world: World):
    """§5: the duplicate window holds executed calls; a denied one may be tried for ever, and never fails the turn."""
    ran: list[str] = []
    session = await world.session(
        [*[calls("put:1")] * 5, done()], box(ran),
        permission_policy=PermissionPolicy(default="deny"), duplicate_tool_call_threshold=1,
    )  # fmt: skip
    result = await session.send("go")
    assert (result.status, result.tool_calls_count, ran) == ("completed", 0, [])
    assert {text for _, _, text in results(await check_session(session))} == {
        "Error: permission denied: the policy denies 'put'"
    }


async def test_the_guard_is_not_asked_about_a_denied_call(world: World):
    """§5 order of judging, REFERENCE: a policy-denied call never reaches the guard; an allowed one does."""
    guard = Guard()
    ran: list[str] = []
    session = await world.session(
        [calls('bash:{"command":"rm x"}', "put:1"), done()], box(ran),
        permission_policy=PermissionPolicy(deny=("bash",)), budget_guard=guard,
    )  # fmt: skip
    await session.send("go")
    assert [one[2] for one in guard.asked if one[0] == "tool"] == ["put"]


async def test_the_guard_is_asked_once_and_only_after_the_approval(desk):
    """§5 order of judging: permission before `check_before_tool`."""
    guard = Guard()
    here = desk([calls("put:1"), done()], permission_policy=asks("put"), budget_guard=guard)
    session, result = await here.parked()
    assert [one for one in guard.asked if one[0] == "tool"] == []
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert [one[2] for one in guard.asked if one[0] == "tool"] == ["put"]


async def test_a_guard_may_still_deny_what_a_person_approved(desk):
    """§10: approved means that the guard is asked as ever."""
    deny = {"decision": "deny", "resource": "tools", "reason": "no"}
    here = desk([calls("put:1"), done()], permission_policy=asks("put"), budget_guard=Guard(tool=deny))
    session, result = await here.parked()
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert here.effects.ran == []
    assert results(await ended_well(session, result.run_id)) == [(C0, False, "Budget exhausted on 'tools': no")]


@pytest.mark.parametrize("policy", [PermissionPolicy(deny=("put",)), asks("put")], ids=["deny", "ask"])
async def test_malformed_arguments_are_judged_before_permission(world: World, policy: PermissionPolicy):
    """§5 order of judging: neither denied nor asked about, but refused as malformed."""
    ran: list[str] = []
    session = await world.session([calls('put:{"n": 1'), done()], box(ran), permission_policy=policy)
    result = await session.send("go")
    assert (result.status, ran) == ("completed", [])
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith("Error: ") and "permission" not in text
    said = types(await session.run_events(result.run_id))
    assert not {"permission_denied", "confirmation_required"} & set(said)


@pytest.mark.parametrize("policy", [PermissionPolicy(default="deny"), PermissionPolicy(default="ask")])
async def test_unknown_tools_are_judged_before_permission(world: World, policy: PermissionPolicy):
    """§5 order of judging: nobody is asked about a tool that is not there."""
    session = await world.session([reply(calls=[call("nobody")]), done()], box([]), permission_policy=policy)
    result = await session.send("go")
    assert result.status == "completed"
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and "nobody" in text and "permission" not in text


async def test_duplicates_are_judged_before_permission(desk):
    """§5 order of judging: what the duplicate guard refuses is not asked about again."""
    here = desk([calls("put:1"), calls("put:1"), done()], permission_policy=asks("put"),
                duplicate_tool_call_threshold=1)  # fmt: skip
    session, result = await here.parked()
    await session.confirm(C0, True)
    result = await session.resume_run(result.run_id)
    assert (result.status, here.effects.keys()) == ("completed", [C0])
    assert [ok for _, ok, _ in results(await ended_well(session, result.run_id))] == [True, False]
    assert len(await events_of(session, result.run_id, "confirmation_required")) == 1
