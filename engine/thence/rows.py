"""JSON of rows that our own code builds: events, traces, checkpoints, options (§8, §10). For facts see `codec`."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import orjson

from .canonical import loads

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
    """An event's payload, or None when it cannot be read: one damaged row must not hide the others."""
    try:
        text = data.decode()
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = loads(text)
        if isinstance(value, dict):
            return value  # pyright: ignore[reportUnknownVariableType]
    except ValueError:
        return None
    return None
