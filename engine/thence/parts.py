"""Texts, JSON values and parts inside a stored payload, and back (§4): what is over 64 KiB goes to the blob table.

``"text"`` then becomes ``"text_sha256"``, and the bytes are kept once, under their hash.
"""

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
    """Put a text in, or its hash. Raises ValueError for one over 16 MiB."""
    # Most texts are short: a length in characters decides nearly always, without encoding them.
    data = text.encode() if len(text) * 4 > MAX_INLINE_BYTES else b""
    if len(data) <= MAX_INLINE_BYTES:
        into[name] = text
        return
    _put_blob(into, name, data, blobs)


def get_text(value: Mapping[str, Any], name: str, lookup: Lookup, default: str = "") -> str:
    """The text that :func:`put_text` put in."""
    sha = value.get(f"{name}_sha256")
    return lookup(sha).decode() if sha is not None else value.get(name, default)


def put_json(into: dict[str, Json], name: str, value: Json, blobs: Blobs, text: str | None = None) -> None:
    """Put a JSON value in, or the hash of its canonical ``text``. Raises ValueError for one over 16 MiB."""
    text = dumps_checked(value) if text is None else text
    data = text.encode() if len(text) * 4 > MAX_INLINE_BYTES else b""
    if len(data) <= MAX_INLINE_BYTES:
        into[name] = value
        return
    _put_blob(into, name, data, blobs)


def get_json(value: Mapping[str, Any], name: str, lookup: Lookup) -> Any:
    """The value that :func:`put_json` put in."""
    return loads_stored(get_text(value, name, lookup)) if f"{name}_sha256" in value else value[name]


def _put_blob(into: dict[str, Json], name: str, data: bytes, blobs: Blobs) -> None:
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"'{name}' has {len(data)} bytes; the limit is {MAX_TEXT_BYTES}")
    sha = blob_sha(data)
    blobs[sha] = data
    into[f"{name}_sha256"] = sha


def encode_parts(parts: tuple[Part, ...], blobs: Blobs) -> list[Json]:
    """Parts as they are stored."""
    return [_encode_part(part, blobs) for part in parts]


def _encode_part(part: Part, blobs: Blobs) -> Json:
    out: dict[str, Json] = {}
    if isinstance(part, Text):
        out["type"] = "text"
        put_text(out, "text", part.text, blobs)
    elif isinstance(part, Data):
        out["type"] = "json"
        put_json(out, "value", part.value, blobs)
    else:
        out.update(type="file", sha256=part.sha256, size=part.size, media_type=part.media_type)
        if part.name is not None:
            out["name"] = part.name
    return out


def decode_part(value: Mapping[str, Any], lookup: Lookup) -> Part:
    """One part as it was before it was stored."""
    if value["type"] == "text":
        return Text(get_text(value, "text", lookup))
    if value["type"] == "json":
        return Data(get_json(value, "value", lookup))
    return File(value["sha256"], value["size"], value["media_type"], value.get("name"))
