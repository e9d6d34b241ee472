"""Calls that have started and are not facts yet, as a resuming run finds them (§7). Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .codec import decode
from .errors import StoreError
from .facts import Returned
from .plan import Params, Query, Rows, Select
from .reads import RESTORE


@dataclass(frozen=True, slots=True)
class InflightCall:
    """A call that has started and is not a fact yet; ``result`` once it has landed."""

    call_key: str
    tool: str
    effect: str | None
    result: Returned | None


def calls_in_flight(session_pk: int) -> Query[list[InflightCall]]:
    """Calls that have started and are not facts yet, in call order."""
    params: Params = {"session_pk": session_pk}
    return Query((Select("inflight_list", params), Select("inflight_blobs", params)), _inflight)


def _inflight(results: Sequence[Rows]) -> list[InflightCall]:
    blobs: dict[str, bytes] = dict(results[1])
    calls: list[InflightCall] = []
    for key, _, tool, effect, _, text, _ in results[0]:
        try:
            result = None if text is None else decode("tool.result", text, blobs.__getitem__)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"the landed result of call '{key}' cannot be read: {error!r}; {RESTORE}") from error
        calls.append(InflightCall(key, tool, effect, result if isinstance(result, Returned) else None))
    return calls
