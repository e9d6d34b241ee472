"""JSON of rows that our own code builds: events, traces, checkpoints, options (§8, §10). For facts see `codec`."""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

import orjson

from .canonical import loads

UNREADABLE = "unreadable"
"""The one entry that is shown of a payload that cannot be read: its text."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode_row(value: object) -> str:
    """JSON of something that our own code built (event payloads, checkpoints): faster, not canonical.

    Integers that do not fit 64 bits, which a model's arguments may hold, are left to the standard library.

    Raises:
        ValueError: it holds NaN or infinity.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return _ENCODER.encode(value)
    # orjson writes null for NaN and infinity: what was said must not quietly become something else.
    if "null" in text and not _is_finite(value):
        raise ValueError("NaN and infinity are not JSON")
    return text


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, cast("dict[str, object]", value).values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, cast("list[object]", value)))
    return True


def read_text(data: bytes) -> str:
    """A text that another program may have written: what is no UTF-8 becomes U+FFFD."""
    return data.decode(errors="replace")


def read_payload(data: bytes) -> dict[str, Any] | None:
    """A JSON object that another program may have written, integers exact; None when it cannot be read: one damaged row
    must not hide the others."""
    try:
        # orjson makes a float of an integer that 64 bits do not hold
        value = loads(data.decode()) if _LONG.search(data) else _fast(data)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_LONG = re.compile(rb"[0-9]{19}")


def _fast(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return loads(data.decode())


def readable(data: bytes) -> dict[str, Any]:
    """The same, for eyes: what cannot be read is shown as the text that it is."""
    value = read_payload(data)
    return {UNREADABLE: read_text(data)} if value is None else value
