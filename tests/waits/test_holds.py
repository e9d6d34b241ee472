"""Budget holds (§6): of a tool call and of a model request, approved and rejected, also after a restart."""

from __future__ import annotations

import pytest

from thence import BudgetExhausted

from ..kit import check_session, kinds, results
from ..resume.kit import calls, done
from ..turn.guard_kit import Guard
from .kit import C0, C1, Desk, asks, ended_well, events_of, ids

W = f"{C0}-w1"

HOLD = {"decision": "hold", "resource": "tokens", "reason": "ask the boss"}
SENTENCE = "Budget exhausted on 'tokens': ask the boss"


def holding(llm_at: int = 0, tool_at: int = 0) -> Guard:
    """Holds the n-th model request or the n-th tool call that it is asked about; allows all else."""
    guard = Guard()

    def count(kind: str) -> int:
        return sum(one[0] == kind for one in guard.asked)

    guard.llm = lambda: HOLD if count("llm") == llm_at else None
    guard.tool = lambda: HOLD if count("tool") == tool_at else None
    return guard


def asked(guard: Guard, kind: str) -> int:
    return sum(one[0] == kind for one in guard.asked)


@pytest.mark.parametrize("how", ["answer", "confirm"])
@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restart"])
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
async def test_a_held_tool_call(desk, approved: bool, restart: bool, how: str):
    """§6 hold: event kind hard, the call is not made, the run parks; approved it runs without asking the guard again,
    rejected it is as a deny."""
    guard = holding(tool_at=1)
    here: Desk = desk([calls("put:0", "put:1"), done()], budget_guard=guard)
    session, result = await here.parked()
    [wait] = result.waits
    assert (wait.id, wait.kind, wait.subject, wait.tool) == (W, "budget_hold", C0, "put")
    [event] = await events_of(session, result.run_id, "budget_threshold_hit")
    assert (event["resource"], event["kind"], event["message"]) == ("tokens", "hard", "ask the boss")
    assert here.effects.ran == [] and asked(guard, "tool") == 1
    if restart:
        guard = Guard()
        session = await here.reopen(budget_guard=guard)
    if how == "answer":
        await session.answer(W, approved)
    else:
        await session.confirm(C0, approved)
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id) == ("completed", result.run_id)
    assert here.effects.keys() == ([C0] if approved else []) + [C1]
    # of the second call it is asked as ever
    assert asked(guard, "tool") == (1 if restart else 2)
    first = (C0, True, "put 0") if approved else (C0, False, SENTENCE)
    assert results(await ended_well(session, result.run_id)) == [first, (C1, True, "put 1")]
    assert len(await events_of(session, result.run_id, "budget_threshold_hit")) == 1


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restart"])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_held_model_request_that_is_approved(desk, number: int, restart: bool):
    """§6 hold: the subject is the step; the one request is made without asking the guard again, and recorded once."""
    guard = holding(llm_at=number)
    here: Desk = desk([calls("look:0"), done()], budget_guard=guard)
    session, result = await here.parked()
    [wait] = result.waits
    assert (wait.id, wait.kind, wait.subject) == (f"t1-r{number}-w1", "budget_hold", f"t1-r{number}")
    assert wait.tool is None or wait.tool == ""
    assert len(here.model.requests) == number - 1 == asked(guard, "record")
    [event] = await events_of(session, result.run_id, "budget_threshold_hit")
    assert (event["resource"], event["kind"]) == ("tokens", "hard")
    assert "budget.denied" not in kinds(await session.facts())
    if restart:
        session = await here.reopen(budget_guard=(later := Guard()))
    else:
        later = guard
    made, checked, recorded = len(here.model.requests), asked(later, "llm"), asked(later, "record")
    await session.answer(wait.id, True)
    again = await session.resume_run(result.run_id)
    assert (again.status, again.text, again.run_id) == ("completed", "Done.", result.run_id)
    left = 3 - number
    assert len(here.model.requests) - made == left
    assert asked(later, "llm") - checked == left - 1, "the guard was asked about the approved request"
    assert asked(later, "record") - recorded == left
    assert here.effects.times() == {C0: 1}
    await ended_well(session, result.run_id)


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restart"])
@pytest.mark.parametrize("number", [1, 2])
async def test_a_held_model_request_that_is_rejected(desk, number: int, restart: bool):
    """§6: rejected it is as a deny: BudgetExhausted with the exact sentence, the run failed and resumable."""
    guard = holding(llm_at=number)
    here: Desk = desk([calls("look:0"), done()], budget_guard=guard)
    session, result = await here.parked()
    if restart:
        session = await here.reopen(budget_guard=Guard())
    await session.answer(f"t1-r{number}-w1", False)
    with pytest.raises(BudgetExhausted) as denied:
        await session.resume_run(result.run_id)
    assert str(denied.value) == SENTENCE
    assert (denied.value.run_id, denied.value.resumable) == (result.run_id, True)
    [run] = await session.runs()
    assert (run.status, run.error_code, run.resumable) == ("failed", "BUDGET_EXHAUSTED", True)
    assert await session.waits() == []
    assert here.effects.keys() == ([C0] if number == 2 else [])
    # it can be resumed as any run that failed outside of the transcript
    here.script = [calls("look:0"), done("After all.")]
    session = await here.reopen(budget_guard=Guard())
    again = await session.resume_run(result.run_id)
    assert (again.status, again.text) == ("completed", "After all.")
    await check_session(session)


async def test_a_hold_that_says_too_little_denies(desk):
    """§6 fail closed: a malformed hold is no hold."""
    for wrong in ({"decision": "hold"}, {"decision": "hold", "resource": 5, "reason": "x"}):
        here: Desk = desk([calls("put:0"), done()], budget_guard=Guard(tool=wrong))
        session = await here.open(f"s{len(wrong)}")
        result = await session.send("Go.")
        assert result.status == "completed" and here.effects.ran == []
        [(_, ok, text)] = results(await check_session(session))
        assert not ok and "budget_guard_error" in text


async def test_a_held_call_after_a_confirmation(desk):
    """§5 order of judging: first the person, then the guard; two waits of one call, each asked once."""
    guard = holding(tool_at=1)
    here: Desk = desk([calls("put:0"), done()], budget_guard=guard, permission_policy=asks("put"))
    session, result = await here.parked()
    assert (result.waits[0].kind, asked(guard, "tool")) == ("confirmation", 0)
    await session.confirm(C0, True)
    second = await session.resume_run(result.run_id)
    assert (second.status, ids(second), second.waits[0].kind) == ("parked", [f"{C0}-w2"], "budget_hold")
    session = await here.reopen(budget_guard=guard)
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert here.effects.keys() == [C0] and asked(guard, "tool") == 1
    assert len(await events_of(session, result.run_id, "confirmation_required")) == 1
    await ended_well(session, result.run_id)
