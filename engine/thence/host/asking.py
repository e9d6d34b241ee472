"""One attempt at a model request: its deltas to whoever watches, its answer or its failure to the turn (§5, §12)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .. import writes
from ..chat import Delta, ReasoningDelta, Reply, TextDelta
from ..effects import AskModel, Commit, Flow, ModelFailed, Stopped
from ..errors import ModelError, RunFailed, ThenceError
from ..events import NewEvent
from .drive import Start
from .jobs import Finished, Job, Said, model_spawn
from .station import Station

DELTA_S = 0.05
"""Readers in other processes see a piece of an answer at the latest this long after it came (§10)."""


def ask_model(station: Station, effect: AskModel) -> Flow[Reply | ModelFailed | Stopped]:
    """Stream one answer. A stop, a time limit or a broken stream drops the job; it is told to end and then ignored."""
    around = station.around
    if around.model is None:
        return ModelFailed(RunFailed("SESSION_CONFIGURATION_ERROR", "no model was given to the agent or the session"))
    job = Job("model", effect.step)
    pieces = _Pieces(station, effect.step)
    limit = around.limits.llm_api_timeout_ms
    deadline = None if limit is None else time.monotonic() + limit / 1000
    yield Start(model_spawn(around.model, effect.request, job, station.post, prefer_async=around.prefer_async))
    reply: Reply | None = None
    while True:
        due = [t for t in (deadline, pieces.due) if t is not None]
        item = yield from station.take(min(due) if due else None)
        if station.stopped is not None:
            _drop(job)
            return station.stopped
        if isinstance(item, Said) and item.job is job:
            if isinstance(item.item, Reply):
                reply = item.item
            else:
                pieces.add(item.item)
        elif isinstance(item, Finished) and item.job is job:
            return reply if item.error is None and reply is not None else ModelFailed(*_failure(item.error))
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            _drop(job)
            return ModelFailed(ModelError("timeout", f"LLM call timed out after {limit} ms", retryable=True))
        if pieces.due is not None and now >= pieces.due:
            yield from pieces.flush()


class _Pieces:
    """Deltas of one answer: shown to live readers at once, to the file in bundles."""

    def __init__(self, station: Station, step: str) -> None:
        self._station, self._step = station, step
        self._waiting: list[tuple[str, Mapping[str, Any]]] = []
        self.due: float | None = None

    def add(self, delta: Delta) -> None:
        event = _delta_event(self._step, delta)
        self._station.show(event, None)
        self._waiting.append((event.type, event.payload))
        if self.due is None:
            self.due = time.monotonic() + DELTA_S

    def flush(self) -> Flow[None]:
        waiting, self._waiting, self.due = self._waiting, [], None
        ids = self._station.ids
        if ids is not None and ids.run_pk is not None:
            first, self._station.next_delta = self._station.next_delta, self._station.next_delta + len(waiting)
            yield from Commit(writes.add_deltas(ids, self._step, first, waiting))


def _delta_event(step: str, delta: Delta) -> NewEvent:
    if isinstance(delta, TextDelta):
        return NewEvent("text_delta", {"text": delta.text})
    if isinstance(delta, ReasoningDelta):
        return NewEvent("reasoning_delta", {"text": delta.text})
    return NewEvent("tool_input_delta", {"id": f"{step}-c{delta.index}", "name": delta.name, "delta": delta.delta})


def _failure(error: BaseException | None) -> tuple[ThenceError, float | None]:
    if error is None:
        return ModelError("truncated_stream", "the model's stream ended without an answer", retryable=True), None
    if isinstance(error, ModelError):
        return error, error.retry_after_s
    if isinstance(error, ThenceError):
        return error, None
    failure = ModelError("model_raised", f"the model raised {type(error).__name__}: {error}", retryable=False)
    failure.__cause__ = error
    return failure, None


def _drop(job: Job) -> None:
    job.dropped = True
    if job.cancel is not None:
        job.cancel()
