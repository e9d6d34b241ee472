"""Verification at work: the session's commands, one after the other, then the host's verifier (§5).

The first that fails ends it. Whatever goes wrong - a time-out, an exception, an answer that is none - is a failed
report, never an error of the turn.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from ..canonical import Json, clean, dumps_checked, loads
from ..effects import Flow, RunVerification, Stopped, Verified
from ..verification import Command, VerificationContext, VerificationReport, Verifier
from .children import Child, Exit
from .drive import Start
from .jobs import Finished, Job, call_spawn
from .result import encode_result
from .signature import target_of
from .station import Station

MAX_WHY = 200
_KILLED_S = 5.0


def verify(station: Station, effect: RunVerification) -> Flow[Verified | Stopped]:
    """Run what the session verifies with. A stop kills what runs and is the answer."""
    plan = station.around.verification
    report: dict[str, Json] = {}
    ran: list[Json] = []
    why = ""
    for command in plan.commands:
        said = yield from _run_command(station, command, plan.timeout_ms)
        if isinstance(said, Stopped):
            return said
        ran.append(said)
        report["commands"] = ran
        if said["passed"] is not True:
            return Verified(False, report, _why_command(said))
    if plan.verifier is not None:
        said = yield from _ask_verifier(station, plan.verifier, effect, plan.timeout_ms)
        if isinstance(said, Stopped):
            return said
        report["verifier"] = said
        if said["passed"] is not True:
            why = f"the verifier says no: {said['error']}" if "error" in said else "the verifier says no"
            return Verified(False, report, _short(why))
    return Verified(True, report)


def _run_command(station: Station, command: Command, timeout_ms: int) -> Flow[dict[str, Json] | Stopped]:
    folder = station.around.workspace
    child = Child(command, folder)
    job = Job("verify", "command", cancel=child.kill)
    ended = yield from _run(station, job, child.run, timeout_ms, is_async=False)
    if isinstance(ended, Stopped):
        return ended
    said: dict[str, Json] = {"command": [*command] if isinstance(command, list) else command, "passed": False}
    if ended is None:
        return {**said, "timed_out": True, "output": clean(child.output.text())}
    if not isinstance(ended.value, Exit):
        return {**said, "error": _error_text(ended.error, folder)}
    code = ended.value.code
    return {**said, "passed": code == 0, "exit_code": code, "output": ended.value.output}


def _ask_verifier(
    station: Station, verifier: Verifier, effect: RunVerification, timeout_ms: int
) -> Flow[dict[str, Json] | Stopped]:
    ids = station.ids
    job = Job("verify", "verifier")
    tags: dict[str, Any] = dict.fromkeys(("tenant_id", "principal", "agent_template_id", "correlation_id"))
    tags.update(station.around.tags.given())
    context = VerificationContext(
        session_id=ids.session_id if ids else "",
        run_id=ids.run_id if ids else "",
        digest=effect.digest,
        workspace=station.around.workspace,
        text=effect.text,
        tags=tags,
        is_cancelled=lambda: job.dropped or station.stopped is not None,
    )
    is_async = not isinstance(verifier, type) and inspect.iscoroutinefunction(target_of(verifier))
    ended = yield from _run(station, job, lambda: verifier(context), timeout_ms, is_async=is_async)
    if isinstance(ended, Stopped):
        return ended
    if ended is None:
        return {"passed": False, "error": f"timed out after {timeout_ms} ms"}
    if ended.error is not None:
        return {"passed": False, "error": _error_text(ended.error)}
    return _judged(ended.value)


def _judged(value: object) -> dict[str, Json]:
    if isinstance(value, bool):
        return {"passed": value}
    if not isinstance(value, VerificationReport):
        error = f"a verifier returns a bool or a VerificationReport, not {type(value).__name__}"
        return {"passed": False, "error": error}
    passed: object = value.passed
    if not isinstance(passed, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        return {"passed": False, "error": f"'passed' must be a bool, not {type(passed).__name__}"}
    if value.report is None:
        return {"passed": passed}
    encoded = encode_result(value.report)
    if not encoded.ok:
        return {"passed": False, "error": "its report has no JSON form"}
    return {"passed": passed, "report": cast("Json", loads(encoded.text)) if encoded.is_json else encoded.text}


def _run(
    station: Station, job: Job, function: Callable[[], object], timeout_ms: int, *, is_async: bool
) -> Flow[Finished | Stopped | None]:
    """How the job ended; None when its time was over. It is told to end then, and when the run is to stop."""
    deadline = time.monotonic() + timeout_ms / 1000
    kill = job.cancel
    yield Start(call_spawn(job, station.post, function, station.now_ms, is_async=is_async))
    ended: Finished | None = None
    while station.stopped is None and ended is None and time.monotonic() < deadline:
        ended = yield from _finished(station, job, deadline)
    if station.stopped is None and ended is not None:
        return ended
    job.dropped = True
    if job.cancel is not None:
        job.cancel()
    if kill is not None:
        # A command is dead at once, and then the workspace is quiet; one that the system does not let die is left.
        until = time.monotonic() + _KILLED_S
        while not job.finished and time.monotonic() < until:
            yield from _finished(station, job, until)
    return station.stopped


def _finished(station: Station, job: Job, until: float) -> Flow[Finished | None]:
    item = yield from station.take(until)
    return item if isinstance(item, Finished) and item.job is job else None


def _why_command(said: dict[str, Json]) -> str:
    command = said["command"]
    name = command if isinstance(command, str) else " ".join(str(word) for word in cast("list[Json]", command))
    if "error" in said:
        return _short(f"{dumps_checked(name)} could not be run: {said['error']}")
    if "timed_out" in said:
        return _short(f"{dumps_checked(name)} timed out")
    return _short(f"{dumps_checked(name)} exited with {said['exit_code']}")


def _short(text: str) -> str:
    return text if len(text) <= MAX_WHY else f"{text[:MAX_WHY]}…"


def _error_text(error: BaseException | None, folder: Path | None = None) -> str:
    if folder is not None and not folder.is_dir():
        return "the workspace is no folder"
    try:
        return clean(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - an exception of a verifier may fail to say what it is
        return type(error).__name__
