"""The folded state as a checkpoint row carries it: a cache of the fold, bound to the log it was folded from (§4, §7).

Opening a session after a thousand rounds would otherwise fold two thousand facts to learn what is small. Facts decide
all the same: the text is believed only with a proof over the chain hash of the fact it stands at, so for exactly this
log up to there, and only from a version that folds as this one does. In every other case the facts are folded.

What a fact says anyway is not kept: the configuration and the last answer are read where they stand. So the text is
small whatever was said, and a state that would make it large, or that has something this file does not know, is not
kept at all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import orjson

from .chat import Usage
from .facts import Answered, Configured
from .gate import Gate
from .loopguard import LoopGuard
from .state import Phase, State

FOLD = 1
"""Goes up when the same facts come to fold into another state."""

MAX_BYTES = 8192
"""Largest text that is kept: a checkpoint's size does not grow (§7)."""

_PLAIN = (
    "turn", "request", "rounds", "capped", "continuations", "steers", "without_usage", "tool_calls", "cut", "configs",
    "compactions", "overflowed", "context_tokens",
)  # fmt: skip
_BUILT = ("phase", "fatal", "loop", "gate", "continued", "usage")
_IN_FACTS = ("text", "stop_reason", "config")
_plain_of = attrgetter(*_PLAIN)
_FIELDS = tuple(field.name for field in fields(State))
_MUST_BE_UNSET = tuple(name for name in _FIELDS if name not in (*_PLAIN, *_BUILT, *_IN_FACTS))
_UNSET = State()
_VERSION = [FOLD, hashlib.sha256(" ".join(_FIELDS).encode()).hexdigest()[:8]]
"""A state with other fields is another state: nobody has to remember to count up for that."""


@dataclass(frozen=True, slots=True)
class KeptState:
    """A checkpoint's state: the seq it stands at, its JSON text, and the proof that binds the two to a log."""

    seq: int
    text: bytes
    proof: bytes


def keep_state(state: State, digest: bytes) -> tuple[str, bytes] | None:
    """Text and proof of ``state``, folded up to the fact with the hash ``digest``; None for one that is not kept."""
    for name in _MUST_BE_UNSET:
        if getattr(state, name) != getattr(_UNSET, name):
            return None
    loop, gate, usage = state.loop, state.gate, state.usage
    value: dict[str, Any] = dict(zip(_PLAIN, _plain_of(state), strict=True))
    value["version"] = _VERSION
    value["phase"] = state.phase.value
    value["fatal"] = state.fatal
    value["loop"] = [loop.window, loop.refused, loop.malformed]
    value["gate"] = [gate.changes, gate.verified, gate.waived, gate.reports, gate.waivers]
    value["continued"] = state.continued
    value["usage"] = usage.to_dict()
    try:
        text = orjson.dumps(value)
    except TypeError:
        return None  # a count beyond 64 bits: no provider's, and not worth a second encoder
    return (text.decode(), _proof(digest, text)) if len(text) <= MAX_BYTES else None


def restore_state(kept: KeptState, digest: bytes, config: Configured | None, answer: Answered | None) -> State | None:
    """The state that was kept at the fact with the hash ``digest``; None when it is not of this log or this version.

    ``config`` and ``answer`` are what the newest facts of their kinds up to there say.
    """
    if _proof(digest, kept.text) != kept.proof:
        return None
    value: dict[str, Any] = orjson.loads(kept.text)
    if value["version"] != _VERSION:
        return None
    window, refused, malformed = value["loop"]
    return State(
        phase=Phase(value["phase"]),
        fatal=None if value["fatal"] is None else tuple(value["fatal"]),
        loop=LoopGuard(tuple(window), refused, malformed),
        gate=Gate(*value["gate"]),
        continued=tuple(value["continued"]),
        usage=Usage(**value["usage"]),
        config=config,
        text=answer.text if answer is not None and value["request"] else "",
        stop_reason=answer.stop_reason if answer is not None and value["request"] else "",
        **{name: value[name] for name in _PLAIN},
    )


def _proof(digest: bytes, text: bytes) -> bytes:
    return hashlib.sha256(digest + text).digest()
