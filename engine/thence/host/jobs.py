"""What runs beside a turn: model streams and tools, on threads or as tasks, each posting what happens to a mailbox.

A job never raises into its thread or loop: an exception is what happened. Posts of a job that was dropped are ignored
by whoever reads the mailbox.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..chat import Delta, Model, Reply, Request


@dataclass(slots=True, eq=False)
class Job:
    """One thing that runs. ``dropped``: nobody waits for it any more."""

    kind: str
    key: str
    dropped: bool = False
    finished: bool = False
    cancel: Callable[[], None] | None = None


@dataclass(slots=True)
class Said:
    """A piece of a model's answer."""

    job: Job
    item: Delta


@dataclass(slots=True)
class Finished:
    """A job is over: with a value (a tool's result, a model's reply), or with what it raised."""

    job: Job
    value: object = None
    error: BaseException | None = None
    at_ms: int = 0


@dataclass(slots=True)
class Wake:
    """Look again: somebody set a stop."""


Item: TypeAlias = "Said | Finished | Progress | Wake"
Post: TypeAlias = Callable[[Any], None]


@dataclass(slots=True)
class Progress:
    """A tool shows what it is doing."""

    job: Job
    text: str


@dataclass(slots=True)
class Spawn:
    """How to run a job: ``plain`` on a thread, or ``coroutine`` on a loop. Exactly one is given."""

    job: Job
    plain: Callable[[], None] | None = None
    coroutine: Callable[[], Coroutine[Any, Any, None]] | None = None
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


def model_spawn(model: Model, request: Request, job: Job, post: Post, *, prefer_async: bool) -> Spawn:
    """A model's stream as a job, in the face that suits the caller if the model has both. Its last reply counts, and
    is told with the stream's end: only then is it an answer."""
    # Looked up by name: a protocol's isinstance costs more than the rest of a round's bookkeeping.
    stream = getattr(model, "astream", None)
    pull = getattr(model, "stream", None)
    if stream is not None and (prefer_async or pull is None):

        async def coroutine() -> None:
            reply: Reply | None = None
            error: BaseException | None = None
            try:
                async for item in stream(request):
                    if job.dropped:
                        break
                    if isinstance(item, Reply):
                        reply = item
                    else:
                        post(Said(job, item))
            except BaseException as raised:  # noqa: BLE001 - what a job raises is its result
                error = raised
            job.finished = True
            post(Finished(job, reply, error))

        return Spawn(job, coroutine=coroutine)
    if pull is None:
        raise TypeError("a model needs a stream() or an astream() method")

    def plain() -> None:
        reply: Reply | None = None
        error: BaseException | None = None
        try:
            for item in pull(request):
                if job.dropped:
                    break
                if isinstance(item, Reply):
                    reply = item
                else:
                    post(Said(job, item))
        except BaseException as raised:  # noqa: BLE001 - what a job raises is its result
            error = raised
        job.finished = True
        post(Finished(job, reply, error))

    return Spawn(job, plain=plain)


def call_spawn(
    job: Job, post: Post, function: Callable[[], object], now_ms: Callable[[], int], *, is_async: bool
) -> Spawn:
    """A host callable as a job. An awaitable that it returns is awaited, on a loop."""

    async def coroutine() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = function()
            if inspect.isawaitable(value):
                value = await value
        except BaseException as raised:  # noqa: BLE001 - what a job raises is its result
            error = raised
        job.finished = True
        post(Finished(job, value, error, _time(now_ms)))

    if is_async:
        return Spawn(job, coroutine=coroutine)

    def plain() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = function()
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("a plain function returned a coroutine: define it with 'async def'")
        except BaseException as raised:  # noqa: BLE001 - what a job raises is its result
            error = raised
        job.finished = True
        post(Finished(job, value, error, _time(now_ms)))

    return Spawn(job, plain=plain)


def _time(now_ms: Callable[[], int]) -> int:
    """When a job ended. A clock that fails is told by the flow's own next look at it; the job's end must be posted."""
    try:
        return now_ms()
    except Exception:  # noqa: BLE001 - a host's clock may raise anything
        return 0
