"""Events: for eyes, bounded (§10). Values and the vocabulary; the engine folds facts, never events."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .canonical import Json

ENVELOPE_VERSION = 1

RECORDED = frozenset(
    {
        "agent_start", "turn_start", "tool_start", "tool_execution_start", "tool_end", "turn_end", "agent_end", "error",
        "permission_denied", "confirmation_required", "confirmation_received", "confirmation_timeout", "user_question",
        "context_compacted", "subagent_start", "subagent_progress", "subagent_end", "run_control_applied",
        "budget_threshold_hit",
    }
)  # fmt: skip
"""Types that the engine records with a sequence. Hosts may emit others; unknown types are kept whole."""

PROVISIONAL = frozenset({"text_delta", "reasoning_delta", "tool_input_delta", "tool_output_delta"})
"""Types that live readers see at once and that are gone when their answer or call is recorded."""

CLUSTER = frozenset({"budget_threshold_hit", "passivation_requested", "peer_invocation"})
"""Types with a fixed schema across hosts. None of them is a hook type."""


_TEXT, _NUMBER, _WHOLE = "a string", "a finite number", "an integer"
_FIELDS: dict[str, dict[str, str]] = {
    "budget_threshold_hit": {
        "resource": _TEXT, "kind": _TEXT, "consumed": _NUMBER, "limit": _NUMBER, "message?": _TEXT,
    },
    "passivation_requested": {"reason": _TEXT, "deadline_ms?": _WHOLE},
    "peer_invocation": {"from_session_id": _TEXT, "from_tenant_id?": _TEXT, "correlation_id?": _TEXT},
}  # fmt: skip
"""Fields of the cluster types; those with a question mark are left out when there is nothing to say."""


def check_cluster(type: str, payload: Mapping[str, Json]) -> None:
    """Refuse a cluster event that its readers could not rely on. Other types, and other fields, are anybody's own.

    Raises:
        ValueError: a field is missing, or ``kind`` is neither ``soft`` nor ``hard``.
        TypeError: a field has another type.
    """
    for field_name, kind in _FIELDS.get(type, {}).items():
        name = field_name.rstrip("?")
        if name not in payload:
            if field_name == name:
                raise ValueError(f"a {type} event needs '{name}'")
            continue
        value = payload[name]
        accepted: tuple[builtins.type, ...] = (str,) if kind == _TEXT else (int,) if kind == _WHOLE else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise TypeError(f"'{name}' of a {type} event must be {kind}")
    if type == "budget_threshold_hit" and payload["kind"] not in ("soft", "hard"):
        raise ValueError("'kind' of a budget_threshold_hit event must be 'soft' or 'hard'")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that is about to be recorded."""

    type: str
    payload: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a reader gets it: its ``type`` and ``payload`` in an envelope of ``version`` 1 (§10).

    ``metadata`` holds ``run_id``, ``session_id``, ``sequence`` (None for provisional ones), ``timestamp_ms`` and the
    tags that are set. ``damaged`` marks a row whose payload could not be read; its ``payload`` is then
    the text that it is, as ``{"unreadable": text}``.
    """

    type: str
    payload: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: int = ENVELOPE_VERSION
    damaged: bool = False

    @property
    def text(self) -> str:
        """Text of a delta or of an ended turn; empty for other events."""
        value = self.payload.get("text", self.payload.get("delta", ""))
        return value if isinstance(value, str) else ""

    def to_dict(self) -> dict[str, Any]:
        """The envelope as JSON."""
        return {
            "version": self.version,
            "type": self.type,
            "payload": dict(self.payload),
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class EventPage:
    """Part of a run's events, read in one snapshot (§10).

    Attributes:
        events: in order, at most as many as were asked for.
        first_available_sequence: of the oldest event that is kept; None when none is.
        latest_sequence_exclusive: one past the newest event ever.
        next_after_sequence: the cursor for the next page.
        retention_gap: events after the cursor were evicted before they could be returned.
        has_more: there are events after this page.
    """

    events: tuple[Event, ...]
    first_available_sequence: int | None
    latest_sequence_exclusive: int
    next_after_sequence: int | None
    retention_gap: bool
    has_more: bool

    def to_dict(self) -> dict[str, Any]:
        """The page as JSON."""
        return {
            "events": [event.to_dict() for event in self.events],
            "first_available_sequence": self.first_available_sequence,
            "latest_sequence_exclusive": self.latest_sequence_exclusive,
            "next_after_sequence": self.next_after_sequence,
            "retention_gap": self.retention_gap,
            "has_more": self.has_more,
        }


def page_of(
    events: tuple[Event, ...], first: int | None, latest_exclusive: int, after: int | None, *, more: bool
) -> EventPage:
    """Make a page of what a snapshot returned for the cursor ``after``."""
    start = 0 if after is None else after + 1
    gap = start < latest_exclusive and (first is None or start < first)
    last = events[-1].metadata["sequence"] if events else after
    return EventPage(events, first, latest_exclusive, last, gap, more)
