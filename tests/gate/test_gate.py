"""The gate in whole turns (§5), in both faces: what closes it, what the run says then, and what resuming does."""

from __future__ import annotations

from typing import Any

import pytest

from thence import GateClosed, RunFailed, SessionError, SessionOptions, ToolOutput, VerificationContext, tool
from thence.testing import ScriptedModel, call, reply

from ..kit import Gate, World, check_session, kinds, stored, types, until
from .kit import TOOLS, closed, digest, last_run, let_go, outcome_of, write, writes, written

CLOSED = "completion gate: workspace changes {} have no passed verification and no waiver; "
FIX = ": correct it and resume the run, or waive the digest and resume"
NOTHING = "this session has nothing that verifies them: report a verification or waive the digest, then resume"


class Verifier:
    """Says what it is told to say, once for each item, then the last one again."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.seen: list[VerificationContext] = []

    def __call__(self, context: VerificationContext) -> Any:
        self.seen.append(context)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, BaseException):
            raise said
        return said


def reports(facts: Any) -> list[dict[str, Any]]:
    return [stored(fact) for fact in facts if fact.kind == "verification.reported"]


async def test_a_turn_that_changed_nothing_is_not_verified(world: World):
    verifier = Verifier(False)
    script = [reply(calls=[call("look"), call("say", {"text": "x"}), call("fail", {"n": 1})]), reply("done")]
    session = await world.session(script, TOOLS, verifier=verifier, verify_commands=["false"])
    assert (await session.send("go")).status == "completed"
    assert verifier.seen == [] and reports(await check_session(session)) == []


@pytest.mark.parametrize(
    ("name", "arguments", "paths"),
    [
        ("write", {"text": "x"}, ()),
        ("report", {"paths": ["b", "a"]}, ("a", "b")),
        ("report", {"paths": ["b"], "ok": False}, ("b",)),
    ],
)
async def test_a_change_is_verified_before_the_turn_ends(world: World, name: str, arguments: Any, paths: Any):
    verifier = Verifier(True)
    session = await world.session([reply(calls=[call(name, arguments)]), reply("done")], TOOLS, verifier=verifier)
    result = await session.send("go")
    assert (result.text, result.status) == ("done", "completed")
    [context] = verifier.seen
    assert context.digest == digest((name, arguments, paths))
    assert (context.session_id, context.run_id) == (session.session_id, result.run_id)
    assert (context.text, context.workspace, context.cancelled) == ("done", world.folder / "work", False)
    facts = await check_session(session)
    assert kinds(facts)[-2:] == ["verification.reported", "turn.ended"]
    assert (facts[-2].key, facts[-2].cause) == ("t1-verify1", "verify:t1-verify1")
    assert stored(facts[-2]) == {"digest": context.digest, "passed": True, "report": {"verifier": {"passed": True}}}
    events = await session.run_events(result.run_id)
    assert events[-1].payload["verification_summary"] == {"digest": context.digest, "status": "verified"}


async def test_what_failed_ends_the_run_and_not_the_turn(world: World):
    session = await world.session(writes("x"), TOOLS, verifier=Verifier(False))
    error = await closed(session.send("go"))
    assert str(error) == CLOSED.format(written("x")) + "the verification failed (the verifier says no)" + FIX
    assert (error.digest, error.run_id, error.retryable) == (written("x"), (await last_run(session)).id, False)
    assert issubclass(GateClosed, RunFailed) and error.why in str(error)
    facts = await check_session(session)
    assert kinds(facts)[-1] == "verification.reported"
    assert reports(facts) == [
        {"digest": written("x"), "passed": False, "report": {"verifier": {"passed": False}}},
    ]
    run = await last_run(session)
    assert (run.status, run.resumable, run.error_code) == ("failed", True, "COMPLETION_GATE")
    assert run.error_message == str(error) and run.result_text is None
    assert types(await session.run_events(run.id))[-1] == "error"
    assert run.owner is None


async def test_a_resume_verifies_anew_and_asks_no_model(world: World):
    session = await world.session(writes("x"), TOOLS, verifier=Verifier(False, False, True))
    await closed(session.send("go"))
    asked = len(world.model.requests)
    again = await closed(session.resume_run((await last_run(session)).id))
    assert again.digest == written("x")
    result = await session.resume_run((await last_run(session)).id)
    assert (result.text, result.status, result.tool_calls_count) == ("done", "completed", 1)
    assert len(world.model.requests) == asked
    facts = await check_session(session)
    assert [fact.key for fact in facts][-4:] == ["t1-verify1", "t1-verify2", "t1-verify3", "t1-end"]
    assert [one["passed"] for one in reports(facts)] == [False, False, True]


async def test_the_next_send_closes_the_turn_and_forgets_its_changes(world: World):
    script = [*writes("x"), reply("short"), *writes("y")]
    session = await world.session(script, TOOLS, verifier=Verifier(False, True))
    error = await closed(session.send("go"))
    assert (await session.send("next")).text == "short"
    end = next(stored(fact) for fact in await session.facts() if fact.kind == "turn.ended")
    assert end == {"status": "failed", "code": "COMPLETION_GATE", "message": str(error)}
    with pytest.raises(GateClosed) as recorded:
        await session.resume_run(error.run_id)
    assert (str(recorded.value), recorded.value.digest) == (str(error), error.digest)
    assert not recorded.value.resumable
    await session.send("third")
    assert reports(await check_session(session))[-1]["digest"] == written("y")


async def test_an_edit_after_a_passed_verification_is_verified_again(world: World):
    """The first run passes the verifier and is stopped before it ends; what comes then has another digest."""
    script = [*writes("x")[:-1], reply("half", stop_reason="length"), *writes("y")]
    verifier = Verifier(False, True)
    session = await world.session(script, TOOLS, verifier=verifier, continuation_enabled=False)
    error = await closed(session.send("go"))
    assert error.digest == written("x")
    # a host that changes its mind about continuations makes the same turn go on
    agent = await world.agent(writes("y"), model=ScriptedModel(writes("y")), tools=TOOLS)
    more = SessionOptions(verifier=verifier, continuation_enabled=True)
    session = await agent.resume_session(session.session_id, more)
    await session.report_verification(written("x"), True)
    assert (await session.resume_run(error.run_id)).status == "completed"
    assert [context.digest for context in verifier.seen] == [written("x"), written("x", "y")]


@pytest.mark.parametrize(
    ("options", "closes"),
    [
        ({}, False),
        ({"completion_gate": "auto"}, False),
        ({"completion_gate": True}, True),
        ({"completion_gate": False, "verify_commands": ["false"]}, False),
        ({"completion_gate": True, "verify_commands": ["true"]}, False),
        ({"completion_gate": True, "verify_commands": ["false"]}, True),
        ({"verify_commands": ["false"]}, True),
        ({"verify_commands": []}, False),
        ({"verifier": lambda context: False}, True),
        ({"verify_commands": ["true"], "verifier": lambda context: False}, True),
        ({"verify_commands": ["false"], "verifier": lambda context: True}, True),
        ({"verify_commands": ["true", ["true"]], "verifier": lambda context: True}, False),
    ],
)
async def test_when_the_gate_is_on_and_all_must_pass(world: World, options: dict[str, Any], closes: bool):
    session = await world.session(writes("x"), TOOLS, **options)
    if closes:
        await closed(session.send("go"))
    else:
        assert (await session.send("go")).status == "completed"


async def test_a_gate_with_nothing_to_verify_says_so_and_writes_no_report(world: World):
    session = await world.session(writes("x"), TOOLS, completion_gate=True)
    error = await closed(session.send("go"))
    assert str(error) == CLOSED.format(written("x")) + NOTHING
    assert kinds(await session.facts())[-1] == "model.turn"
    assert str(await closed(session.resume_run(error.run_id))) == str(error)


async def test_a_gate_that_is_off_leaves_no_word_of_it(world: World):
    session = await world.session(writes("x"), TOOLS)
    result = await session.send("go")
    assert (await session.run_events(result.run_id))[-1].payload["verification_summary"] is None


async def test_a_capped_turn_is_verified(world: World):
    script = [
        reply(calls=[call("write", {"text": "x"})]),
        reply("out of rounds", calls=[call("write", {"text": "y"})]),
    ]
    verifier = Verifier(False, True)
    session = await world.session(script, TOOLS, max_tool_rounds=1, verifier=verifier)
    error = await closed(session.send("go"))
    assert error.digest == written("x")  # the denied call changed nothing
    result = await session.resume_run(error.run_id)
    assert (result.text, result.status) == ("out of rounds", "completed")


async def test_the_continuation_comes_first(world: World):
    script = [*writes("x")[:-1], reply("half", stop_reason="length"), reply("whole")]
    verifier = Verifier(True)
    session = await world.session(script, TOOLS, verifier=verifier)
    assert (await session.send("go")).text == "whole"
    assert [context.text for context in verifier.seen] == ["whole"]


async def test_the_run_says_that_it_verifies(world: World):
    gate = Gate()

    def verifier(context: VerificationContext) -> bool:
        gate.wait()
        return True

    session = await world.session(writes("x"), TOOLS, verifier=verifier)
    stream = await session.stream("go")
    seen: list[str] = []
    async for event in stream:
        seen.append(event.type)
        if event.type == "turn_end" and event.payload["text"] == "done":
            await gate.came()
            run = await session.current_run()
            assert (run.status, run.state) == ("verifying", "verifying")
            gate.open()
    assert seen[-1] == "agent_end" and (await stream.result()).status == "completed"


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_a_stop_ends_the_verification(world: World, how: str):
    gate = Gate()
    cancelled: list[bool] = []

    def verifier(context: VerificationContext) -> bool:
        if gate.waiting:
            return True
        gate.wait()
        cancelled.append(context.cancelled)
        return True

    session = await world.session(writes("x"), TOOLS, verifier=verifier)
    spawned = await session.spawn_run_with_id("r", "go")
    await gate.came()
    assert await getattr(session, how)()
    run = await let_go(session)
    gate.open()
    await until(lambda: cancelled == [True])
    facts = await check_session(session)
    assert reports(facts) == []
    if how == "cancel":
        assert (run.status, kinds(facts)[-1]) == ("cancelled", "turn.ended")
        return
    assert (run.status, run.state) == ("verifying", "interrupted")
    assert spawned.run.id == "r"
    assert (await session.resume_run("r")).status == "completed"


async def test_the_time_limit_of_the_run_holds_for_its_verification(world: World):
    gate = Gate()

    def verifier(context: VerificationContext) -> bool:
        gate.wait()
        return True

    session = await world.session(writes("x"), TOOLS, verifier=verifier, max_execution_time_ms=400)
    with pytest.raises(RunFailed) as error:
        await session.send("go")
    gate.open()
    assert (error.value.code, error.value.resumable) == ("EXECUTION_TIMEOUT", True)


async def test_a_tool_that_outlived_its_limit_is_waited_for(world: World):
    gate = Gate()
    order: list[str] = []

    @tool(timeout_ms=50)
    def slow() -> ToolOutput:
        gate.wait()
        order.append("tool")
        return ToolOutput("late")

    def verifier(context: VerificationContext) -> bool:
        order.append("verifier")
        return True

    script = [reply(calls=[call("write", {"text": "x"})]), reply(calls=[call("slow")]), reply("done")]
    session = await world.session(script, [write, slow], verifier=verifier)
    spawned = await session.spawn_run_with_id("r", "go")
    await until(lambda: len(world.model.requests) == 3)
    gate.open()
    waited = await outcome_of(spawned)
    assert waited.status == "completed" and order == ["tool", "verifier"]


async def test_the_same_turn_leaves_the_same_log_in_both_faces(tmp_path: Any):
    """Facts equal byte for byte, report and waiver included."""
    heads: set[str] = set()
    for face in ("sync", "async"):
        world = World(face, tmp_path / face)
        (world.folder / "work").mkdir(parents=True)
        session = await world.session(
            writes("x"), TOOLS, verify_commands=["echo out; exit 3"], session_id="s", instructions="same"
        )
        error = await closed(session.send("go"))
        await session.waive(error.digest, "seen by eye")
        await session.resume_run(error.run_id)
        heads.add((await check_session(session))[-1].hash)
        await world.close()
    assert len(heads) == 1


async def test_a_waived_turn_says_so(world: World):
    session = await world.session(writes("x"), TOOLS, completion_gate=True)
    error = await closed(session.send("go"))
    await session.waive(error.digest, "fine")
    result = await session.resume_run(error.run_id)
    end = (await session.run_events(result.run_id))[-1]
    assert end.payload["verification_summary"] == {"digest": error.digest, "status": "waived"}
    with pytest.raises(SessionError):
        await session.waive(error.digest, "again")
