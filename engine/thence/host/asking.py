"""One attempt at a model request: its deltas to whoever watches, its answer or its failure to the turn (§5, §12)."""

from __future__ import annotations

import time

from ..canonical import clean
from ..chat import Delta, ReasoningDelta, Reply, TextDelta, ToolCallDelta
from ..effects import AskModel, Flow, ModelFailed, Stopped
from ..errors import ModelError, RunFailed, ThenceError
from ..events import NewEvent
from .drive import Start
from .jobs import Finished, Job, Said, model_spawn
from .station import Station

DELTAS = (TextDelta, ReasoningDelta, ToolCallDelta)


def ask_model(station: Station, effect: AskModel) -> Flow[Reply | ModelFailed | Stopped]:
    """Stream one answer. A stop, a time limit or a broken stream drops the job; it is told to end and then ignored."""
    around = station.around
    if around.model is None:
        return ModelFailed(RunFailed("SESSION_CONFIGURATION_ERROR", "no model was given to the agent or the session"))
    job = Job("model", effect.step)
    limit = around.limits.llm_api_timeout_ms
    deadline = None if limit is None else time.monotonic() + limit / 1000
    yield Start(model_spawn(around.model, effect.request, job, station.post, prefer_async=around.prefer_async))
    while True:
        item = yield from station.take(deadline)
        if station.stopped is not None:
            _drop(job)
            return station.stopped
        if isinstance(item, Said) and item.job is job:
            said: object = item.item  # a model is somebody else's code: it may say anything
            wrong = _what_is_wrong(said)
            if wrong is None:
                if not effect.quiet:
                    station.add_piece(effect.step, _delta_event(effect.step, said))  # type: ignore[arg-type]
            else:
                _drop(job)
                return ModelFailed(ModelError("bad_reply", f"the model's stream gave a {wrong}", retryable=False))
        elif isinstance(item, Finished) and item.job is job:
            station.drop_pieces(effect.step)
            reply = item.value
            if item.error is None and isinstance(reply, Reply):
                return reply
            return ModelFailed(*_failure(item.error))
        if deadline is not None and time.monotonic() >= deadline:
            _drop(job)
            return ModelFailed(ModelError("timeout", f"LLM call timed out after {limit} ms", retryable=True))


def _what_is_wrong(said: object) -> str | None:
    """What a model's stream gave that is no delta; None for one."""
    if not isinstance(said, DELTAS):
        return type(said).__name__
    texts: list[object] = [said.name, said.delta] if isinstance(said, ToolCallDelta) else [said.text]
    wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
    return f"{type(said).__name__} with a {wrong[0]} as its text" if wrong else None


def _delta_event(step: str, delta: Delta) -> NewEvent:
    if isinstance(delta, TextDelta):
        return NewEvent("text_delta", {"text": clean(delta.text)})
    if isinstance(delta, ReasoningDelta):
        return NewEvent("reasoning_delta", {"text": clean(delta.text)})
    identity = f"{step}-c{delta.index}"
    return NewEvent("tool_input_delta", {"id": identity, "name": clean(delta.name), "delta": clean(delta.delta)})


def _failure(error: BaseException | None) -> tuple[ThenceError, float | None]:
    if error is None:
        return ModelError("truncated_stream", "the model's stream ended without an answer", retryable=True), None
    if isinstance(error, ModelError):
        return error, error.retry_after_s
    if isinstance(error, ThenceError):
        return error, None
    try:
        said = clean(str(error))
    except Exception:  # noqa: BLE001 - an exception may fail to say what it is
        said = "(it cannot say what)"
    failure = ModelError("model_raised", f"the model raised {type(error).__name__}: {said}", retryable=False)
    failure.__cause__ = error
    return failure, None


def _drop(job: Job) -> None:
    job.dropped = True
    if job.cancel is not None:
        job.cancel()
