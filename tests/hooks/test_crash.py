"""A process that dies around a hook: whoever resumes asks again for what had not landed, and the log is the undisturbed
one (§4, §7, §10)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, Hook, HookContext, SessionOptions
from thence.host.recovering import interrupted

from ..kit import check_log, check_messages, results, stored
from ..resume.hand import Died, by_hand, dies_at
from ..resume.kit import Again, Tools, calls, done, head, last_run, options, rest, resume
from .hook_kit import Told

SCRIPT = [calls("add:1", "look:2", "look:3", "add:4"), calls("add:5"), done()]


class Policy:
    """Decides by what it is told alone; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[HookContext] = []

    def __call__(self, context: HookContext) -> Any:
        self.asked.append(context)
        if context.event_type == "pre_llm":
            return {"model": "small"} if context.request == 2 else None
        number = context.arguments.get("n")
        if number == 4:
            return {"decision": "block", "reason": "no fours"}
        return {"arguments": {"n": number + 100}} if number in (2, 5) else None

    def hooks(self, watch: Told) -> list[Hook]:
        gates = [Hook("pre_tool_use", self), Hook("pre_llm", self)]
        return [*gates, *(Hook(kind, watch) for kind in ("post_tool_use", "post_llm", "session_start", "run_end"))]


def start(db: Path, policy: Policy, watch: Told, **how: Any) -> tuple[Any, Any]:
    return by_hand(db, SCRIPT, given={"hooks": policy.hooks(watch)}, **how)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.db"
    with Agent(path) as agent:
        agent.session("/w", options())
    return path


def test_before_and_after_every_effect(empty: Path) -> None:
    whole = empty.with_name("whole.db")
    shutil.copy(empty, whole)
    tools = Tools()
    hand, outcome = start(whole, Policy(), Told(), tools=tools)
    assert outcome.status == "completed" and [one.n for one in tools.ran] == [1, 102, 3, 105]
    assert [cause for cause, _ in models(whole)] == [None, "hook:t1-r2"]
    effects = len(hand.names)
    assert effects > 30
    asked_again = 0
    for at in range(1, effects + 1):
        when = ("before", "after")[at % 2]
        db = empty.with_name(f"{at}.db")
        shutil.copy(empty, db)
        before, after = Policy(), Policy()
        _, outcome = start(db, before, Told(), at=at, when=when, tools=Tools())
        assert isinstance(outcome, Died)
        found, run_id = rest(db), last_run(db)
        if not found.kinds:
            continue
        watch = Told()
        again = resume(
            ("sync", "async")[at % 3 == 0], db, run_id or "never", SCRIPT, given={"hooks": after.hooks(watch)}
        )
        assert again.error is None
        check_log(again.facts)
        check_messages(again.history)
        assert head(db) == head(whole), f"died {when} effect {at}"
        keys = {one.call_key for one in after.asked if one.event_type == "pre_tool_use"}
        assert not keys & (found.settled | found.landed), "asked again for a call that has its result"
        asked_again += bool(keys & {one.call_key for one in before.asked})
        for one in again.tools.ran:
            assert one.n == {2: 102, 5: 105}.get(int(one.call_key[-1]) + 1, one.n) or one.call_key.startswith("t1-r2")
    assert asked_again


def models(db: Path) -> list[tuple[str | None, Any]]:
    with Agent(db) as agent:
        facts = agent.resume_session("s", SessionOptions(hooks=[Hook("run_end", Told())])).facts()
    return [(fact.cause, stored(fact)["model"]) for fact in facts if fact.kind == "run.configured"]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_call_that_had_started_is_asked_about_again_and_what_is_said_now_counts(empty: Path, face: str) -> None:
    start(empty, Policy(), Told(), wrap=dies_at("inflight_start"), tools=Tools())
    changed = Told(lambda context: {"arguments": {"n": 50}} if context.call_key == "t1-r1-c0" else None)
    after = resume(face, empty, str(last_run(empty)), SCRIPT, given={"hooks": [Hook("pre_tool_use", changed)]})
    assert after.error is None
    assert changed.keys[0] == "t1-r1-c0"
    assert after.tools.ran[0].n == 50
    assert results(after.facts)[0] == ("t1-r1-c0", True, "add 50")


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize(("model", "asked"), [("again", ["small", "small"]), ("other", ["other", "other"])])
def test_a_hooks_model_holds_after_a_resume_unless_the_host_gives_another(
    empty: Path, face: str, model: str, asked: list[str]
) -> None:
    script = [calls("add:1"), calls("add:2"), done()]
    hook = Hook("pre_llm", lambda context: {"model": "small"} if context.request == 1 else None)
    by_hand(empty, script, given={"hooks": [hook]}, wrap=dies_at("inflight_start"), tools=Tools())
    tools, again = Tools(), Again(script)
    again.name = model
    given = options(hooks=[Hook("pre_llm", Told())])

    async def asynchronously() -> None:
        async with AsyncAgent(empty, model=again, tools=tools.all()) as agent:
            await (await agent.session("/w", given)).resume_run(str(last_run(empty)))

    if face == "async":
        asyncio.run(asynchronously())
    else:
        with Agent(empty, model=again, tools=tools.all()) as agent:
            agent.session("/w", given).resume_run(str(last_run(empty)))
    assert [request.model for request in again.requests] == asked


def test_recover_needs_the_hooks_and_takes_them(empty: Path) -> None:
    start(empty, Policy(), Told(), wrap=dies_at("inflight_start"), tools=Tools())
    tools, policy, watch = Tools(), Policy(), Told()
    with Agent(empty, model=Again(SCRIPT), tools=tools.all()) as agent:
        [refused] = agent.recover()
        assert "'hooks'" in str(refused.error) and tools.ran == []
        [recovered] = agent.recover(lambda session_id: options(hooks=policy.hooks(watch)))
        assert recovered.error is None and recovered.result is not None and recovered.result.status == "completed"
        assert agent._do(interrupted(agent._core)) == []
    assert watch.types[0] == "session_start" and watch.types[-1] == "run_end"
