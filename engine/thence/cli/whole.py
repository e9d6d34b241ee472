"""One fact with nothing left out: long texts are kept beside the log, under their hash (§4, §13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from .. import reads
from ..canonical import NotJson, loads
from ..reads import SessionRow
from .looking import Look, RawFact
from .text import fields, json_text, one_line, visible

_BESIDE = "_sha256"
_SHORT = 64
_JSON_NAMES = frozenset({"value", "report", "tools", "output"})
"""What is kept as JSON there; all else is text."""


def is_cut(payload: Any) -> bool:
    """Whether something of a fact's own words is kept beside the log."""
    if isinstance(payload, list):
        return any(map(is_cut, payload))  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(payload, dict):
        return False
    value = cast("dict[str, Any]", payload)
    named = any(name.endswith(_BESIDE) and name not in ("tools_sha256", "output_sha256") for name in value)
    return named or any(map(is_cut, value.values()))


def whole(look: Look, session: SessionRow, payload: Any) -> Any:
    """A fact's payload with what is kept beside the log put in its place, next to its hash."""
    if isinstance(payload, list):
        return [whole(look, session, one) for one in payload]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(payload, dict):
        return payload
    found: dict[str, Any] = {}
    given = cast("dict[str, Any]", payload)
    for name, value in given.items():
        found[name] = whole(look, session, value)
        # an output of which the model was shown a part says so beside its hash
        own = "text" if name == "sha256" and given.get("kept") is True else name.removesuffix(_BESIDE)
        stored = look.ask(reads.blob(session.session_pk, str(value))) if own != name else None
        if stored is not None:
            found[own] = _read(own, stored)
    return found


def _read(name: str, stored: bytes) -> Any:
    text = stored.decode(errors="backslashreplace")
    if name not in _JSON_NAMES:
        return text
    try:
        return loads(text)
    except NotJson:
        return text


def fact_text(fact: RawFact, payload: Any) -> str:
    """The fact for people: what is short as a list, every longer text as it is under its name."""
    short: dict[str, object] = {"seq": fact.seq, "kind": fact.kind, "key": fact.key, "run": fact.run_id}
    long: list[str] = []
    for name, value in _leaves("", payload):
        text = value if isinstance(value, str) else json_text(value, indent=None)
        if len(text) > _SHORT or "\n" in text:
            long.append(f"{one_line(name)}:\n{visible(text)}")
        else:
            short[one_line(name)] = text
    return "\n\n".join([fields(short), *long])


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, one in cast("Mapping[str, Any]", value).items():
            yield from _leaves(f"{place}.{name}" if place else name, one)
    elif isinstance(value, list) and value:
        for at, one in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            yield from _leaves(f"{place}[{at}]", one)
    else:
        yield place, value
