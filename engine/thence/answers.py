"""Answers of waits: what may be said, and what is made of what other programs said (§10). Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .canonical import Json, NotJson, check_text, dumps, loads
from .facts import MAX_TEXT_BYTES, WaitKind

YES_OR_NO: frozenset[WaitKind] = frozenset({"confirmation", "budget_hold"})
OUTCOMES = ("run", "done", "failed")
UNREADABLE = "the answer cannot be read"
UNREADABLE_RESULT = f"Error: {UNREADABLE}"


def check_value(kind: WaitKind, value: Any) -> Json:
    """An answer as it is stored.

    ``confirmation`` and ``budget_hold`` take True, False or ``{"approved": bool, "reason": text}``;
    ``unknown_outcome`` takes ``{"outcome": "run"}``, ``{"outcome": "done", "result": json}`` or
    ``{"outcome": "failed", "error": text}``; a ``question`` and a ``deferred`` result take any JSON.

    Raises:
        TypeError, ValueError: naming ``value``.
    """
    if kind in YES_OR_NO:
        return _check_approval(value)
    if kind == "unknown_outcome":
        return _check_outcome(value)
    return _json(value)


def _json(value: Any) -> Json:
    try:
        text = dumps(value)
    except NotJson as error:
        raise ValueError(f"'value' has no JSON form: {error}") from None
    if len(text) * 4 > MAX_TEXT_BYTES and (size := len(text.encode())) > MAX_TEXT_BYTES:
        raise ValueError(f"'value' has {size} bytes; the limit is {MAX_TEXT_BYTES}")
    stored: Json = loads(text)
    return stored


def _check_approval(value: Any) -> Json:
    given: Any = {"approved": value} if isinstance(value, bool) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("approved"), bool):  # pyright: ignore[reportUnknownMemberType]
        raise TypeError("'value' must be True, False, or {'approved': bool, 'reason': text}")
    return _with_text(given, {"approved": given["approved"]}, "reason")  # pyright: ignore[reportUnknownArgumentType]


def _check_outcome(value: Any) -> Json:
    if not isinstance(value, Mapping) or value.get("outcome") not in OUTCOMES:  # pyright: ignore[reportUnknownMemberType]
        raise ValueError(f"'value' must be a mapping with 'outcome', one of {', '.join(OUTCOMES)}")
    given: Mapping[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    outcome: str = given["outcome"]
    if outcome == "done":
        _refuse_others(given, {"outcome", "result"})
        return _json({"outcome": outcome, "result": given.get("result")})
    if outcome == "failed" and "error" not in given:
        raise ValueError("'value' needs an 'error' that says what failed")
    return _with_text(given, {"outcome": outcome}, "error" if outcome == "failed" else None)


def _with_text(given: Mapping[str, Any], kept: dict[str, Json], name: str | None) -> Json:
    _refuse_others(given, {*kept, *([name] if name else [])})
    text = given.get(name) if name else None
    if text is not None:
        if not isinstance(text, str):
            raise TypeError(f"'value' has a '{name}' that is no text")
        kept[str(name)] = check_text(text, "value")
    return kept


def _refuse_others(given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(map(str, given.keys() - known))
    if unknown:
        raise ValueError(f"'value' has an unknown entry '{unknown[0]}'; known: {', '.join(sorted(known))}")


def read_answer(kind: WaitKind, data: bytes) -> Json:
    """What an answer says. Any program may have written it, and nobody can answer again: one that cannot be read is a
    no, a call that failed, or a result that is an error, and each says why."""
    try:
        return _json(loads(data.decode()))
    except ValueError:
        if kind in YES_OR_NO:
            return {"approved": False, "reason": UNREADABLE}
        return {"outcome": "failed", "error": UNREADABLE} if kind == "unknown_outcome" else UNREADABLE_RESULT
