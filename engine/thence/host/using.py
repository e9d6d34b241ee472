"""Tools at work: starting calls, their time limits, and what their ends look like to a model (§5, §12)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..canonical import Json, loads
from ..effects import AwaitTool, Drained, DrainTools, Flow, Landed, Postponed, StartTool, Stopped
from ..events import NewEvent
from ..facts import Data, Part, Returned, Text
from .context import Defer, Question, ToolContext
from .drive import Start
from .jobs import Finished, Job, Progress, call_spawn
from .output import Cut, cut
from .overdue import OVERDUE, Late, TurnPlace
from .result import EncodedResult, encode_result
from .station import Station
from .toolkit import BadArguments, Tool


@dataclass(slots=True)
class _Running:
    job: Job
    tool: Tool
    started_ms: int
    deadline: float | None
    limit_ms: int | None
    late: Mapping[str, Json] | None


class ToolBench:
    """Calls that run."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._running: dict[str, _Running] = {}

    def start(self, effect: StartTool) -> Flow[bool]:
        """Start one call, unless the run is to stop. A call that is not ``read`` first waits for an overdue tool, up to
        its own limit (§5)."""
        station, call = self._station, effect.call
        tool = station.around.tools[call.call.name]
        limit_ms = tool.timeout_ms or station.around.limits.tool_timeout_ms
        late = None if tool.effect == "read" else (yield from self.wait_for_overdue(limit_ms, _turn_of(call.key)))
        if station.stopped is not None:
            return False
        job = Job("tool", call.key)
        arguments = dict(call.call.arguments or {})
        context = self._context(effect, job) if tool.wants_context else None

        def run() -> object:
            return tool.call(tool.bind(arguments), context)

        deadline = None if limit_ms is None else time.monotonic() + limit_ms / 1000
        self._running[call.key] = _Running(job, tool, station.now_ms(), deadline, limit_ms, late)
        yield Start(call_spawn(job, station.post, run, station.now_ms, is_async=tool.is_async))
        return True

    def take_landed(self, effect: AwaitTool) -> Flow[Landed | Postponed | Stopped]:
        """The next call that returns, raises, is handed over or runs out of time."""
        while True:
            if self._station.stopped is not None:
                return self._station.stopped
            landed = yield from self._next(None)
            if landed is not None:
                return landed

    def drain(self, effect: DrainTools) -> Flow[Drained]:
        """Tell running calls to stop; collect what lands in time and leave the rest behind."""
        landed: list[Landed | Postponed] = []
        for running in self._running.values():
            running.job.dropped = True
        until = time.monotonic() + effect.grace_ms / 1000
        while self._running and time.monotonic() < (until := min(until, self._station.drained_by)):
            one = yield from self._next(until)
            if one is not None:
                landed.append(one)
        for running in self._running.values():
            if running.job.cancel is not None:
                running.job.cancel()
        self._running.clear()
        return Drained(tuple(landed), self._station.stopped)

    def _next(self, until: float | None) -> Flow[Landed | Postponed | None]:
        dues = [r.deadline for r in self._running.values() if r.deadline is not None]
        item = yield from self._station.take(min([*dues, *([until] if until is not None else [])], default=None))
        if isinstance(item, Progress) and item.job.key in self._running:
            self._station.add_piece(
                item.job.key, NewEvent("tool_output_delta", {"id": item.job.key, "delta": item.text})
            )
        elif isinstance(item, Finished):
            running = self._running.get(item.job.key)
            if running is not None and running.job is item.job:
                del self._running[item.job.key]
                self._station.drop_pieces(item.job.key)
                if isinstance(item.error, Defer):
                    return _postponed(item.job.key, item.error)
                return self._landed(running, item)
        now = time.monotonic()
        for running in self._running.values():
            if running.deadline is not None and now >= running.deadline:
                return self._timed_out(running)
        return None

    def _timed_out(self, running: _Running) -> Landed:
        del self._running[running.job.key]
        running.job.dropped = True
        if running.job.cancel is not None:
            running.job.cancel()
        else:
            OVERDUE.add(self._place(_turn_of(running.job.key)), Late(running.job, running.tool.name))
        text = f"Error: '{running.tool.name}' timed out after {running.limit_ms} ms"
        return self._landed_as(running, EncodedResult(text, ok=False), self._station.now_ms())

    def _landed(self, running: _Running, item: Finished) -> Landed:
        if item.error is None:
            encoded = encode_result(item.value)
        elif isinstance(item.error, BadArguments):
            encoded = EncodedResult(f"Error: {item.error}", ok=False)
        else:
            encoded = EncodedResult(_error_text(item.error), ok=False)
        return self._landed_as(running, encoded, item.at_ms)

    def _landed_as(self, running: _Running, encoded: EncodedResult, at_ms: int) -> Landed:
        key, tool = running.job.key, running.tool
        text, limit = encoded.text, self._station.around.limits.max_tool_output_bytes
        # Most results are short and plain: nothing to measure, hash or cut.
        short = len(text) <= limit and text.isascii()
        shown = Cut(text, len(text), False, "") if short else cut(text, limit, call_key=key)
        metadata: dict[str, Json] = {}
        if tool.effect is not None:
            metadata["effect"] = tool.effect
        if tool.workspace and tool.effect != "read":
            metadata["workspace"] = True
        if tool.repeatable:
            metadata["repeatable"] = True
        if encoded.metadata:
            metadata["tool"] = dict(encoded.metadata)
        if encoded.changed_paths:
            metadata["changed_paths"] = list(encoded.changed_paths)
        if running.late is not None:
            metadata["late"] = running.late
        kept: dict[str, bytes] = {}
        part: Part = Text(shown.text)
        if shown.truncated:
            metadata["output"] = {"bytes": shown.total_bytes, "sha256": shown.sha256, "kept": shown.kept}
            if shown.kept:
                kept[shown.sha256] = encoded.text.encode()
        elif encoded.is_json:
            part = Data(loads(encoded.text))
        result = Returned(key, encoded.ok, (part,), metadata)
        took = max(0, at_ms - running.started_ms)
        return Landed(result, 0 if encoded.ok else 1, took, shown.total_bytes, kept)

    def wait_for_overdue(self, limit_ms: int | None, turn: str) -> Flow[Mapping[str, Json] | None]:
        """Wait for tools of the turn that outlived their limit; None without such, else metadata that says so."""
        place = self._place(turn)
        late = OVERDUE.of(place)
        if not late:
            return None
        names: list[Json] = [*sorted({one.tool for one in late})]
        until = None if limit_ms is None else time.monotonic() + limit_ms / 1000
        # One that was called before the run parked does not post here: looked at as often as the inbox.
        while late and self._station.stopped is None and (until is None or time.monotonic() < until):
            yield from self._next(until)
            late = OVERDUE.of(place)
        return {"waited_for": names, "still_running": bool(late)}

    def _place(self, turn: str) -> TurnPlace:
        ids = self._station.ids
        return self._station.around.file, ids.session_id if ids else "", turn

    def _context(self, effect: StartTool, job: Job) -> ToolContext:
        station, ids = self._station, self._station.ids
        tags: dict[str, Any] = dict.fromkeys(("tenant_id", "principal", "agent_template_id", "correlation_id"))
        tags.update(station.around.tags.given())
        return ToolContext(
            session_id=ids.session_id if ids else "",
            run_id=ids.run_id if ids else "",
            call_key=effect.call.key,
            idempotency_key=effect.idempotency_key,
            workspace=station.around.workspace,
            tags=tags,
            forbidden_files=station.around.forbidden_files,
            is_cancelled=lambda: job.dropped or station.stopped is not None,
            on_progress=lambda text: station.post(Progress(job, text)),
        )


def _turn_of(key: str) -> str:
    return key.partition("-")[0]


def _postponed(key: str, deferred: Defer) -> Postponed:
    return Postponed(
        key, "question" if isinstance(deferred, Question) else "deferred", deferred.subject, deferred.deadline_ms
    )


def _error_text(error: BaseException) -> str:
    try:
        text = f"Error: {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  an exception of a tool may fail to say what it is
        text = f"Error: {type(error).__name__}"
    return text.encode("utf-8", "replace").decode()
