"""``compaction.done``: a summary has taken the place of the older part of the conversation (§4, §5). A value only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .canonical import Json
from .chat import Usage

Trigger: TypeAlias = Literal["threshold", "hook", "overflow", "request"]
"""What asked for a compaction: the filled window, a hook, a provider whose window overflowed, or the host."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """``compaction.done``. Its key is ``t3-compact1``: the first of the third turn, or behind its end.

    A provider is shown ``summary``, then the host's last message if it lies before the tail (the ``user.message`` with
    seq ``kept_message``), then what the facts from seq ``kept_from`` on say. ``kept_from`` is this fact's own seq when
    nothing else was kept. ``state`` is all else that the facts up to here, this one included, fold into
    (`state_json`): whoever opens the log reads nothing before ``kept_from`` but that message.
    """

    trigger: Trigger
    summary: str
    kept_message: int | None
    kept_from: int
    state: Mapping[str, Json]
    usage: Usage | None = None
    model: str = ""
