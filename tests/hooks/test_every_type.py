"""Every type, with every way a handler can end: gates fail closed, observers are logged and ignored (§10)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from thence import Hook, HookContext, RunFailed

from ..kit import Gate, World, check_session, results, until
from ..turn.guard_kit import Guard
from .hook_kit import BLOCKED, GATES, TYPES, Acts, Told, one_round, register


class Boom(BaseException):
    """Not even an Exception."""


def handler(way: str, is_async: bool, gate: Gate) -> Callable[[HookContext], Any]:
    """A handler that ends in one way."""

    def plain(context: HookContext) -> Any:
        if way == "raises":
            raise Boom("no")
        if way == "hangs":
            gate.wait()
        return "nonsense" if way == "malformed" else None

    async def later(context: HookContext) -> Any:
        if way == "hangs":
            await gate.await_()
        return plain(context)

    return later if is_async else plain


REASON = {
    "raises": "hook 'hook-2' raised Boom: no",
    "hangs": "hook 'hook-2' did not answer within 60 ms",
    "malformed": "hook 'hook-2' returned what {} does not know: expected None or a dict, not str",
}


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async handler"])
@pytest.mark.parametrize("way", ["fine", "raises", "hangs", "malformed"])
@pytest.mark.parametrize("kind", TYPES)
async def test_a_type_and_a_way_to_end(
    world: World, caplog: pytest.LogCaptureFixture, kind: str, way: str, is_async: bool
):
    gate, before, after, acts = Gate(), Told(), Told(), Acts()
    hooks = [
        Hook(kind, before),
        Hook(kind, handler(way, is_async, gate), timeout_ms=60 if way == "hangs" else 20_000),
        Hook(kind, after.later if is_async else after),
    ]
    session = await world.session(one_round(), [acts.tool()], hooks=hooks)
    caplog.set_level(logging.WARNING, "thence.hooks")
    reason = "" if way == "fine" else REASON[way].format(kind)
    if kind == "pre_llm" and reason:
        with pytest.raises(RunFailed) as failed:
            await session.send("go")
        assert (failed.value.code, str(failed.value), failed.value.resumable) == ("HOOK_FAILED", reason, True)
        assert world.model.requests == []
    else:
        assert (await session.send("go")).text == "ok"
        [(_, ok, text)] = results(await check_session(session))
        blocked = kind == "pre_tool_use" and bool(reason)
        assert (ok, text) == ((False, BLOCKED + reason) if blocked else (True, "did 1"))
        assert acts.ran == ([] if blocked else [1])
    await session.close()
    gate.open()
    times = {"pre_llm": 2, "post_llm": 2}.get(kind, 1)
    if kind in GATES and reason:
        assert (before.types, after.types) == ([kind], [])
        assert caplog.messages == []
    else:
        assert before.types == after.types == [kind] * times
        ignored = kind not in GATES and way in ("raises", "hangs")
        said = REASON[way].removeprefix("hook 'hook-2' ") if ignored else ""
        assert caplog.messages == [f"{kind} hook 'hook-2' is ignored: it {said}"] * (times if ignored else 0)


RAISED = [
    ValueError("v"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError(), asyncio.CancelledError(),
    StopIteration(),
]  # fmt: skip


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
async def test_whatever_is_raised_blocks_the_call(world: World, error: BaseException):
    def fail(context: HookContext) -> None:
        raise error

    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("pre_tool_use", fail)])
    await session.send("go")
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith(f"{BLOCKED}hook 'hook-1' raised {type(error).__name__}")


async def test_a_plain_handler_that_gives_a_coroutine_blocks_the_call(world: World):
    """It is not known to be async, so nobody would await it: it must not let the call through."""
    session = await world.session(
        one_round(), [Acts().tool()], hooks=[Hook("pre_tool_use", lambda context: Told().later(context))]
    )
    await session.send("go")
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith(f"{BLOCKED}hook 'hook-1' raised TypeError")


async def test_a_go_on_that_comes_late_is_a_refusal_however_busy_the_reader_was(world: World):
    """Judged by the monotonic clock read where it ended: here nobody looks at the answer until it is long there."""
    told = Told(lambda context: time.sleep(0.1))
    hooks = [Hook("pre_tool_use", told, timeout_ms=50)]
    session = await world.session(one_round(), [Acts().tool()], hooks=hooks)
    task = asyncio.ensure_future(session.send("go"))
    await until(lambda: told.contexts)
    time.sleep(0.3)  # noqa: ASYNC251  the async face's loop stands still on purpose
    await task
    [(_, ok, text)] = results(await check_session(session))
    assert (ok, text) == (False, f"{BLOCKED}hook 'hook-1' did not answer within 50 ms")


async def test_hung_threads_are_bounded(world: World):
    gate = Gate()
    session = await world.session(
        one_round(*range(10)), [Acts().tool()], hooks=[Hook("pre_tool_use", lambda _: gate.wait(), timeout_ms=10)]
    )
    await session.send("go")
    texts = [text for _, _, text in results(await check_session(session))]
    late = f"{BLOCKED}hook 'hook-1' did not answer within 10 ms"
    unasked = f"{BLOCKED}hook 'hook-1' could not be asked: 8 of its calls are still running past their time limit"
    assert texts == [late] * 8 + [unasked] * 2
    assert gate.waiting == 8
    gate.open()


async def test_a_hung_async_handler_is_cancelled_and_holds_no_thread(world: World):
    begun: list[str] = []
    ended: list[str] = []

    async def hang(context: HookContext) -> None:
        begun.append(str(context.call_key))
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(str(context.call_key))

    session = await world.session(
        one_round(*range(10)), [Acts().tool()], hooks=[Hook("pre_tool_use", hang, timeout_ms=10)]
    )
    await session.send("go")
    facts = await check_session(session)
    assert {text for _, _, text in results(facts)} == {f"{BLOCKED}hook 'hook-1' did not answer within 10 ms"}
    until = time.monotonic() + 20  # the last one may still be on its way out
    while len(ended) < len(begun) and time.monotonic() < until:  # noqa: ASYNC110 - it may never come
        await asyncio.sleep(0.01)
    assert ended == begun and len(begun) > 0


async def test_hung_hooks_leave_the_guard_its_threads(world: World, caplog: pytest.LogCaptureFixture):
    """All that the process may have of hung hooks: one more is not asked, a guard is."""
    gate, guard = Gate(), Guard()

    def hung() -> Hook:
        return Hook("post_tool_use", lambda _: gate.wait(), timeout_ms=5)

    session = await world.session(
        [*one_round(*range(8)), *one_round(8)], [Acts().tool()], hooks=[hung() for _ in range(8)]
    )
    await session.send("go")
    assert gate.waiting == 64
    await register(session, "post_tool_use", lambda _: gate.wait(), None, 5)
    await session.set_budget_guard(guard)
    assert (await session.send("more")).text == "ok"
    assert gate.waiting == 64 and "64 hook calls of this process" in caplog.messages[-1]
    assert guard.asked
    gate.open()
