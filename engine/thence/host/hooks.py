"""Hooks at work: the host's handlers on daemon threads or as tasks, each under its time limit (§10).

A gate (``pre_tool_use``, ``pre_llm``) fails closed: what raises, is late or says something unknown refuses. An
observer's failure is logged and ignored.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..budget import describe
from ..effects import Flow
from ..hooking import (
    GATES,
    GO_ON,
    NOTHING,
    Hook,
    HookAnswer,
    HookContext,
    HookOutcome,
    MalformedAnswer,
    names_tool,
    read_answer,
)
from ..identity import TAG_NAMES, Tags
from .drive import Start, Take
from .jobs import Finished, Item, Job, Post, call_spawn
from .signature import target_of
from .stuck import StuckThreads

log = logging.getLogger("thence.hooks")

LEAVING_S = 1.0
"""How long all observers together may take once a run is to stop."""

STUCK = StuckThreads("hook")


@dataclass(frozen=True, slots=True, eq=False)
class Registered:
    """A hook under its id. Ids count from 1 in one session object, so that equal runs record equal ids."""

    id: str
    hook: Hook
    is_async: bool


class Hooks:
    """A session's hooks. From any thread; what is changed here holds from the next check on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_type: dict[str, tuple[Registered, ...]] = {}
        self._made = 0
        self._started = self._ended = False

    def add(self, hook: Hook) -> str:
        """Register a checked hook and return its id."""
        with self._lock:
            self._made += 1
            one = Registered(f"hook-{self._made}", hook, is_async_callable(hook.handler))
            others = self._by_type.get(hook.event_type, ())
            # sorted() is stable: of equal priorities the one that was registered first is asked first
            self._by_type[hook.event_type] = tuple(sorted((*others, one), key=lambda each: each.hook.priority))
        return one.id

    def remove(self, hook_id: str) -> bool:
        """Whether there was such a hook; now there is none."""
        with self._lock:
            for kind, those in list(self._by_type.items()):
                left = tuple(one for one in those if one.id != hook_id)
                if len(left) < len(those):
                    self._by_type[kind] = left
                    return True
        return False

    def of(self, event_type: str) -> tuple[Registered, ...]:
        """Hooks of one type, in the order in which they are asked."""
        return self._by_type.get(event_type, ())

    def __bool__(self) -> bool:
        return any(self._by_type.values())

    def start_once(self) -> bool:
        """Whether this is the session object's first operation."""
        with self._lock:
            first, self._started = not self._started, True
        return first

    def end_once(self) -> bool:
        """Whether the session object has begun something and is now closed for the first time."""
        with self._lock:
            now, self._ended = self._started and not self._ended, True
        return now


@dataclass(frozen=True, slots=True)
class Waiting:
    """How to wait for hooks at one place of work. ``stopped``: the run is to stop. ``leave_by``: monotonic seconds."""

    post: Post
    take: Callable[[float | None], Flow[Item | None]]
    stopped: Callable[[], bool]
    leave_by: float | None = None


def take_plainly(until: float | None) -> Flow[Item | None]:
    """The next item for those who wait for nothing but hooks; None at the monotonic time ``until``."""
    item: Item | None = yield Take(None if until is None else max(0.0, until - time.monotonic()))
    return item


class HookDesk:
    """Asks the hooks of one type, one after the other."""

    def __init__(self, hooks: Hooks, tags: Tags, waiting: Waiting) -> None:
        self._hooks, self._waiting = hooks, waiting
        self._tags = {name: getattr(tags, name) for name in TAG_NAMES}
        self._leave_by = waiting.leave_by

    def ask(self, context: HookContext) -> Flow[HookOutcome]:
        """What the hooks of ``context.event_type`` come to; the first refusal is the last word."""
        kind = context.event_type
        context = replace(context, tags=self._tags)
        outcome = NOTHING
        for one in self._hooks.of(kind):
            if not names_tool(one.hook, context):
                continue
            answer = yield from self._call(one, context.copy())
            if answer is None:
                return NOTHING
            if isinstance(answer, HookAnswer):
                outcome = outcome.after(one.id, answer)
            elif kind in GATES:
                outcome = outcome.failed(one.id, answer)
            else:
                log.warning("%s hook '%s' is ignored: it %s", kind, one.id, answer)
            if outcome.refused is not None:
                return outcome
            context = outcome.shown(context)
        return outcome

    def _call(self, one: Registered, context: HookContext) -> Flow[HookAnswer | str | None]:
        """A handler's answer, or why it gave none that counts; None when the run is to stop."""
        hook, is_async, waiting, gate = one.hook, one.is_async, self._waiting, context.event_type in GATES
        reason = None if is_async else STUCK.no_room(hook.handler)
        if reason is not None:
            return f"could not be asked: {reason}"
        job = Job("hook", one.id)
        deadline = time.monotonic() + hook.timeout_ms / 1000
        said: list[tuple[Finished, float]] = []

        def ended(item: Finished) -> None:
            said.append((item, time.monotonic()))
            STUCK.leave(hook.handler, job)
            waiting.post(item)

        call = _async_call(hook, context) if is_async else _plain_call(hook, context)
        yield Start(call_spawn(job, ended, call, _no_clock, is_async=is_async))
        while not said and not (gate and waiting.stopped()):
            until = self._until(deadline)
            if time.monotonic() >= until:
                break
            yield from waiting.take(until)
        if not said:
            _leave_alone(hook, job, is_async=is_async)
            if gate and waiting.stopped():
                return None
            return f"did not answer within {hook.timeout_ms} ms{_or_leaving(deadline)}"
        item, at = said[0]
        if at > deadline:
            return f"did not answer within {hook.timeout_ms} ms"
        if isinstance(item.error, MalformedAnswer):
            return f"returned what {context.event_type} does not know: {item.error}"
        if item.error is not None:
            return f"raised {describe(item.error)}"
        return item.value if isinstance(item.value, HookAnswer) else GO_ON

    def _until(self, deadline: float) -> float:
        if self._waiting.stopped() and self._leave_by is None:
            self._leave_by = time.monotonic() + LEAVING_S
        return deadline if self._leave_by is None else min(deadline, self._leave_by)


def is_async_callable(handler: Callable[..., object]) -> bool:
    """Whether calling it gives an awaitable, as far as can be seen beforehand."""
    return not isinstance(handler, type) and inspect.iscoroutinefunction(target_of(handler))


def _plain_call(hook: Hook, context: HookContext) -> Callable[[], object]:
    def call() -> object:
        if not _matches(hook, context):
            return GO_ON
        value: Any = hook.handler(context)
        if inspect.iscoroutine(value):
            return value  # refused by whoever runs plain functions
        return _read(context.event_type, value)

    return call


def _async_call(hook: Hook, context: HookContext) -> Callable[[], object]:
    async def call() -> object:
        if not _matches(hook, context):
            return GO_ON
        value: Any = hook.handler(context)
        return _read(context.event_type, await value)

    return call


def _matches(hook: Hook, context: HookContext) -> bool:
    matcher = hook.matcher
    if matcher is None or isinstance(matcher, str):
        return True
    answer: Any = matcher(context)
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("a matcher must not be async")
    return bool(answer)


def _read(event_type: str, value: object) -> HookAnswer:
    return read_answer(event_type, value) if event_type in GATES else GO_ON


def _leave_alone(hook: Hook, job: Job, *, is_async: bool) -> None:
    if not is_async:
        STUCK.enter(hook.handler, job)
        return
    # A task holds no thread, and one that never began would never say that it is over: it is not counted.
    if job.cancel is not None:
        job.cancel()


def _or_leaving(deadline: float) -> str:
    return "" if time.monotonic() >= deadline else ", or before the run had to let go"


def _no_clock() -> int:
    """Nobody asks at what time a hook ended by the session's clock."""
    return 0
