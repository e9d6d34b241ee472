"""Canonical JSON: the one encoding of everything that is hashed, signed or compared (§4, §11).

Sorted keys, no spaces, exact integers of any size, no NaN or infinity, depth at most :data:`MAX_DEPTH`, no lone
surrogates, UTF-8 unescaped. Only the standard library encodes numbers: a faster encoder turns 2**70 into a float and
NaN into null.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import orjson

Json: TypeAlias = "None | bool | int | float | str | Sequence[Json] | Mapping[str, Json]"
"""A JSON value. Integers are exact; mappings have string keys."""

MAX_DEPTH = 200
"""Deepest nesting of lists and objects that is accepted, on the way in and on the way out."""

MAX_DIGITS = 4000
"""Longest integer, in decimal digits: Python itself refuses to print more than 4,300."""


def _as_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    raise NotJson(f"a {type(value).__name__} has no JSON form")


_TOO_LONG = 10**MAX_DIGITS

_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), default=_as_dict
)


class NotJson(ValueError):
    """The value has no canonical JSON form; the message says where and why."""


def dumps(value: Json) -> str:
    """Return the canonical text of ``value``.

    Raises:
        NotJson: NaN, infinity, a lone surrogate, a depth over 200, a cycle, a key that is not a string, an integer
            of more than 4,000 digits, or a type that JSON does not have (named in the message).
    """
    _check_whole(value)
    return _encoder.encode(value)


def dumps_checked(value: Json) -> str:
    """The canonical text of a value whose parts were all checked when they came in: a few times faster than
    :func:`dumps`. What slipped through still fails closed (NaN here, a lone surrogate when the text is encoded)."""
    return _encoder.encode(value)


def dumps_words(value: Json) -> str:
    """The canonical text of a value without numbers, whose keys are ours: there the two encoders agree to the byte, and
    a long text is encoded ten times sooner."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return dumps_checked(value)  # which says what is wrong with it


def loads(text: str) -> Any:
    """Parse JSON strictly: no NaN, no depth over 200, no lone surrogate, integers exact.

    Raises:
        NotJson: with the parser's position.
    """
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error) or "too deep") from None
    _check_whole(value)
    return value


def loads_stored(text: str) -> Any:
    """Parse a text that we stored: what is in it was checked, and wrapped in a few more levels, before it was written.

    Raises:
        NotJson: it is no JSON.
    """
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error) or "too deep") from None


def sha256_hex(text: str) -> str:
    """SHA-256 of the UTF-8 bytes of ``text``, in lower-case hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_text(value: str, field: str) -> str:
    """Return ``value`` if it can be stored as text.

    Raises:
        ValueError: naming ``field``, for a lone surrogate.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"'{field}' holds a lone surrogate: it cannot be stored as UTF-8") from None
    return value


def clean(text: str) -> str:
    """Lone surrogates cannot be stored as UTF-8; a provider's text gets U+FFFD in their place."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _no_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


# Made once: a decoder with a hook of its own is otherwise built anew for every text.
_decoder = json.JSONDecoder(parse_constant=_no_constant)


class _Fault(Exception):
    """What is wrong with a value; ``steps`` lead to it, innermost first, and are taken down only on the way out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.steps: list[str | int] = []


def _check_whole(value: object) -> None:
    try:
        _check(value, 1)
    except _Fault as fault:
        raise NotJson(f"{_path(fault.steps[::-1])}: {fault}") from None


def _path(steps: Sequence[str | int]) -> str:
    """Where ``steps`` lead from ``$``, as JSONPath writes it; the middle of a very long way is left out."""
    shown = [*steps[:10], None, *steps[-3:]] if len(steps) > 15 else steps
    path = "$"
    for step in shown:
        if step is None:
            path += "[...]"
        elif isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{json.dumps(step[:40])}]"
    return path


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


def _check(value: object, depth: int) -> None:
    if value is None or value is True or value is False:
        return
    kind = type(value)
    if kind is str:
        _check_string(value)  # type: ignore[arg-type]
    elif kind is int:
        _check_integer(value)  # type: ignore[arg-type]
    elif kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise _Fault(f"{value} is not JSON")
    elif isinstance(value, Mapping):
        _enter(depth)
        _check_items(value, depth)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        _enter(depth)
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            try:
                _check(item, depth + 1)  # pyright: ignore[reportUnknownArgumentType]
            except _Fault as fault:
                fault.steps.append(index)
                raise
    else:
        raise _Fault(f"a {kind.__name__} has no JSON form")


def _check_items(value: Mapping[Any, object], depth: int) -> None:
    for key, item in value.items():
        if type(key) is not str:
            raise _Fault(f"key {key!r} is not a string")
        _check_string(key)
        try:
            _check(item, depth + 1)
        except _Fault as fault:
            fault.steps.append(key)
            raise


def _enter(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Fault(f"nested deeper than {MAX_DEPTH}")


def _check_string(value: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Fault("holds a lone surrogate") from None


def _check_integer(value: int) -> None:
    if not -_TOO_LONG < value < _TOO_LONG:
        raise _Fault(f"an integer of more than {MAX_DIGITS} digits")
