"""Calls that have started and are not facts yet: their rows, and how a resuming run finds them (§5, §7). Values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .canonical import dumps
from .codec import decode, encode_result
from .errors import StoreError
from .facts import Returned
from .pages import RESTORE
from .plan import Op, Params, Query, Rows, Select
from .steps import OpenCall, Traits
from .writes import RunIds, keep_blobs


@dataclass(frozen=True, slots=True)
class InflightCall:
    """A call that has started and is not a fact yet; ``result`` once it has landed. ``starts``: how often it did."""

    call_key: str
    tool: str
    effect: str | None
    result: Returned | None
    starts: int = 1


def calls_in_flight(session_pk: int) -> Query[list[InflightCall]]:
    """Calls that have started and are not facts yet, in call order."""
    params: Params = {"session_pk": session_pk}
    return Query((Select("inflight_list", params), Select("inflight_blobs", params)), _inflight)


def _inflight(results: Sequence[Rows]) -> list[InflightCall]:
    blobs: dict[str, bytes] = dict(results[1])
    calls: list[InflightCall] = []
    for key, _, tool, effect, _, text, _, starts in results[0]:
        try:
            result = None if text is None else decode("tool.result", text, blobs.__getitem__)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the landed result of call '{key}' cannot be read: {error!r}; {RESTORE}") from error
        calls.append(InflightCall(key, tool, effect, result if isinstance(result, Returned) else None, starts))
    return calls


def adopt_calls(ids: RunIds) -> Op:
    """A run that goes on takes over the calls of the one before it."""
    return Op("inflight_adopt", ({"session_pk": ids.session_pk, "run_id": ids.run_id, "fence": ids.fence},))


def start_calls(ids: RunIds, calls: Sequence[OpenCall], tools: Mapping[str, Traits], now_ms: int) -> Op:
    """From here on a crash leaves a trace of these calls."""
    rows = tuple[Params, ...](
        {
            "session_pk": ids.session_pk,
            "run_pk": ids.run_pk,
            "fence": ids.fence,
            "call_key": call.key,
            "position": call.position,
            "tool": call.call.name,
            "effect": tools[call.call.name].effect,
            "started_ms": now_ms,
        }
        for call in calls
    )
    return Op("inflight_start", rows)


def land_call(ids: RunIds, result: Returned, now_ms: int) -> tuple[Op, ...]:
    """A call's result, durable before its batch is complete."""
    text, blobs = encode_result(result)
    row: Params = {
        "session_pk": ids.session_pk,
        "call_key": result.call_key,
        "fence": ids.fence,
        "landed_ms": now_ms,
        "result": text,
        "blobs": dumps(sorted(blobs)) if blobs else None,
    }
    return (*keep_blobs(ids.session_pk, blobs), Op("inflight_land", (row,), expect=1, refusal="OWNERSHIP_LOST"))


def unstart_call(ids: RunIds, call: OpenCall) -> Op:
    """The call was about to start, and did not."""
    return Op("inflight_unstart", ({"session_pk": ids.session_pk, "position": call.position},))


def restart_calls(ids: RunIds, calls: Sequence[OpenCall]) -> Op:
    """Calls that had started before start again."""
    rows = tuple[Params, ...](
        {"session_pk": ids.session_pk, "position": call.position, "fence": ids.fence} for call in calls
    )
    return Op("inflight_restart", rows)


def refuse_call(ids: RunIds, call: OpenCall, result: Returned) -> Op:
    """A call that was refused before its answer was complete: its result, kept while the run waits for others."""
    text, _ = encode_result(result)
    row: Params = {
        "session_pk": ids.session_pk,
        "run_id": ids.run_id,
        "fence": ids.fence,
        "call_key": call.key,
        "position": call.position,
        "tool": call.call.name,
        "result": text,
    }
    return Op("inflight_refuse", (row,))


def clear_calls(ids: RunIds) -> Op:
    """The results are facts now."""
    return Op("inflight_clear", ({"session_pk": ids.session_pk},))
