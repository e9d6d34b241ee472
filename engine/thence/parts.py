"""Texts and parts of a fact as they are stored (§4): short ones in the payload, those over 64 KiB in the blob table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .canonical import Json, dumps_checked, loads_stored
from .facts import MAX_INLINE_BYTES, MAX_TEXT_BYTES, Data, File, Part, Text

Blobs: TypeAlias = dict[str, bytes]
"""Bytes by their SHA-256 (lower-case hex)."""

Lookup: TypeAlias = Callable[[str], bytes]


def blob_sha(data: bytes) -> str:
    """Name of a blob."""
    return hashlib.sha256(data).hexdigest()


def put_text(into: dict[str, Json], name: str, text: str, blobs: Blobs) -> None:
    # Most texts are short: a length in characters decides nearly always, without encoding them.
    data = text.encode() if len(text) * 4 > MAX_INLINE_BYTES else b""
    if len(data) <= MAX_INLINE_BYTES:
        into[name] = text
        return
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"'{name}' has {len(data)} bytes; the limit is {MAX_TEXT_BYTES}")
    sha = blob_sha(data)
    blobs[sha] = data
    into[f"{name}_sha256"] = sha


def get_text(value: Mapping[str, Any], name: str, lookup: Lookup, default: str = "") -> str:
    sha = value.get(f"{name}_sha256")
    return lookup(sha).decode() if sha is not None else value.get(name, default)


def encode_part(part: Part, blobs: Blobs) -> Json:
    out: dict[str, Json] = {}
    if isinstance(part, Text):
        out["type"] = "text"
        put_text(out, "text", part.text, blobs)
    elif isinstance(part, Data):
        text = dumps_checked(part.value)
        if len(text) * 4 <= MAX_INLINE_BYTES or len(text.encode()) <= MAX_INLINE_BYTES:
            return {"type": "json", "value": part.value}
        out["type"] = "json"
        put_text(out, "value", text, blobs)
    else:
        out.update(type="file", sha256=part.sha256, size=part.size, media_type=part.media_type)
        if part.name is not None:
            out["name"] = part.name
    return out


def decode_part(value: Mapping[str, Any], lookup: Lookup) -> Part:
    if value["type"] == "text":
        return Text(get_text(value, "text", lookup))
    if value["type"] == "json":
        return Data(loads_stored(get_text(value, "value", lookup)) if "value_sha256" in value else value["value"])
    return File(value["sha256"], value["size"], value["media_type"], value.get("name"))


def encode_parts(parts: tuple[Part, ...], blobs: Blobs) -> list[Json]:
    return [encode_part(part, blobs) for part in parts]
