"""A budget guard in a process of its own: asked, killed when it is late, started anew; it fails closed as any (§6)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from thence import BudgetExhausted, SessionConfiguration
from thence.host.guard import stuck_threads
from thence.testing import call, reply

from ..kit import World, check_session, results, until
from .guard_kit import hits


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("THENCE_TEST_SPENT", str(tmp_path / "spent"))


def act(n: int = 0) -> int:
    return n


def guarded(name: str = "budgets:Cap", **more: Any) -> dict[str, Any]:
    return {"budget_guard": name, "budget_guard_isolation": "process", "budget_guard_timeout_ms": 20_000, **more}


def named(name: str) -> Any:
    def tool() -> str:
        raise AssertionError("must not run")

    tool.__name__ = name
    return tool


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_it_decides_in_another_process(world: World, tmp_path: Path):
    used = {"prompt_tokens": 6, "completion_tokens": 1}
    session = await world.session(
        [reply(calls=[call("act", {"n": 5})], usage=used), reply("ok", usage=used)], [act], **guarded()
    )
    assert (await session.send("go")).text == "ok"
    said = await hits(session)
    assert [(hit["kind"], hit["resource"]) for hit in said] == [("soft", session.session_id)] * 2
    pids = {int(hit["consumed"]) for hit in said}
    assert len(pids) == 1 and pids != {os.getpid()} and all(hit["limit"] > 0 for hit in said)
    assert results(await check_session(session)) == [("t1-r1-c0", True, "5")]
    assert (tmp_path / "spent").read_text() == "7\n7\n"
    await session.close()
    await until(lambda: gone(pids.pop()) if pids else True)


async def test_it_ends_with_its_agent(world: World):
    session = await world.session([reply("ok")], **guarded())
    await session.send("go")
    child = session.raw._core.guard.guard._child
    await world._agents[0].close()
    assert child.poll() is not None


@pytest.mark.parametrize(
    ("tool", "resource"),
    [
        ("leave", "budget_guard_callback"), ("odd", "budget_guard_error"), ("nan", "budget_guard_error"),
        ("true", "budget_guard_error"), ("die", "budget_guard_unavailable"), ("deny", "tokens"),
    ],
)  # fmt: skip
async def test_it_fails_closed_with_the_same_resources(world: World, tool: str, resource: str):
    session = await world.session(
        [reply(calls=[call(tool), call("act", {"n": 1})]), reply("ok")], [named(tool), act], **guarded()
    )
    assert (await session.send("go")).text == "ok"
    denied, allowed = results(await check_session(session))
    assert denied[2].startswith(f"Budget exhausted on '{resource}': ")
    assert resource == "tokens" or "check_before_tool" in denied[2]
    assert allowed == ("t1-r1-c1", True, "1")  # it was started anew where it had ended


@pytest.mark.parametrize("tool", ["hang", "hold"])
async def test_it_is_killed_when_it_is_late_and_leaves_no_thread(world: World, tool: str):
    before = stuck_threads()
    session = await world.session(
        [reply(calls=[call(tool)]), reply(calls=[call("act", {"n": 1})]), reply("ok")], [named(tool), act], **guarded()
    )
    core = session.raw._core
    await until(lambda: core.guard.guard._child is not None)
    time.sleep(1)  # noqa: ASYNC251 - let it be ready: the limit is short
    core.guard = type(core.guard)(core.guard.guard, 1500)
    first = core.guard.guard._child.pid
    assert (await session.send("go")).text == "ok"
    late, allowed = results(await check_session(session))
    assert late[2] == (
        "Budget exhausted on 'budget_guard_timeout': BudgetGuard.check_before_tool did not respond within 1500ms"
    )
    assert allowed == ("t1-r2-c0", True, "1")
    assert gone(first) or core.guard.guard._child.pid != first
    await until(lambda: stuck_threads() == before)


@pytest.mark.parametrize("name", ["budgets:Some", "budgets:an_object", "budgets:factory"])
async def test_a_class_an_object_or_a_factory(world: World, name: str):
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], **guarded(name))
    assert (await session.send("go")).text == "ok"  # a missing method allows
    assert results(await check_session(session))[0][2] == "Budget exhausted on 'tools': no"


@pytest.mark.parametrize("name", ["budgets:Nobody", "no_such_module:Cap", "budgets:broken"])
async def test_one_that_cannot_be_had_denies(world: World, name: str):
    session = await world.session([reply("never")], **guarded(name))
    with pytest.raises(BudgetExhausted, match="budget_guard_callback") as denied:
        await session.send("go")
    assert f"'{name}' cannot be had" in str(denied.value)
    assert world.model.requests == []


async def test_one_that_has_none_of_the_methods_denies(world: World):
    session = await world.session([reply("never")], **guarded("budgets:os"))
    with pytest.raises(BudgetExhausted, match="'budgets:os' has none of check_before_llm, record_after_llm, check_b"):
        await session.send("go")
    assert world.model.requests == []


@pytest.mark.parametrize(
    "options",
    [
        guarded(budget_guard="budgets"), guarded(budget_guard="budgets:"), guarded(budget_guard="a b:c"),
        guarded(budget_guard=object()), guarded(budget_guard_isolation="fork"), {"budget_guard": "budgets:Cap"},
    ],
)  # fmt: skip
async def test_what_is_no_import_name_is_refused(world: World, options: dict[str, Any]):
    with pytest.raises(SessionConfiguration, match="budget_guard"):
        await world.session([], **options)
    assert await world._agents[-1].list_sessions() == []


async def test_setting_and_clearing_it(world: World):
    session = await world.session([reply("one"), reply(calls=[call("act")]), reply("two")], [act], **guarded())
    with pytest.raises(SessionConfiguration, match="budget_guard"):
        await session.set_budget_guard(object())
    first = session.raw._core.guard.guard
    await session.set_budget_guard(None)
    assert (await session.send("go")).text == "one" and await hits(session) == []
    await until(lambda: first._child is None or first._child.poll() is not None)
    await session.set_budget_guard("budgets:Some", 20_000)
    assert (await session.send("go")).text == "two"
    assert results(await check_session(session))[0][2] == "Budget exhausted on 'tools': no"
