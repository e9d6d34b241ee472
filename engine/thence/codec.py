"""Values to stored text and back (§4). The only place that knows how a fact looks in the file.

Facts, arguments and results are canonical JSON by the standard library; what else our own code writes is encoded by
`rows`. Texts over 64 KiB leave the payload: ``"text"`` becomes ``"text_sha256"`` and the bytes go to the blob table,
once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from .canonical import Json, dumps, dumps_checked, dumps_words, loads_stored
from .chat import Usage
from .compacted import Compacted
from .errors import UnknownCriticalFact
from .facts import (
    KINDS,
    Answered,
    Asked,
    Call,
    Configured,
    Denied,
    Ended,
    Note,
    Payload,
    Reported,
    Returned,
    Text,
    WaitAnswered,
    WaitOpened,
    Waived,
)
from .parts import Blobs, Lookup, decode_part, encode_parts, get_json, get_text, put_json, put_text
from .state_json import decode_compacted, encode_compacted

_WORDS = frozenset((str, bool))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A payload as it is stored: its kind, its text, and the blobs that the text names."""

    kind: str
    text: str
    blobs: Mapping[str, bytes]


def encode(payload: Payload) -> Encoded:
    """Stored form of a fact's payload.

    Raises:
        NotJson: a value has no canonical JSON form.
        ValueError: a text over 16 MiB.
    """
    blobs: Blobs = {}
    if isinstance(payload, Note):
        return Encoded(payload.kind, dumps(payload.payload), blobs)
    # Every value in a payload was checked at its door: arguments when parsed, results when encoded, options when set.
    fields = _ENCODERS[type(payload)](payload, blobs)
    words_only = isinstance(payload, Returned) and _is_words(payload)
    return Encoded(KINDS[type(payload)], dumps_words(fields) if words_only else dumps_checked(fields), blobs)


def _is_words(payload: Returned) -> bool:
    """Most results are a text, and nothing in them is a number."""
    return all(type(part) is Text for part in payload.parts) and _WORDS.issuperset(map(type, payload.metadata.values()))


def decode(kind: str, text: str, lookup: Lookup) -> Payload:
    """The payload of a stored fact. ``lookup`` gives the bytes of a blob by its SHA-256.

    Raises:
        UnknownCriticalFact: a kind of a later version that may not be ignored.
    """
    value = loads_stored(text)
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        return decoder(value, lookup)
    if kind.startswith("note."):
        return Note(kind, value)
    raise UnknownCriticalFact(f"the log holds a '{kind}' fact, which this version of thence does not know")


def chain(prev_hash: bytes, seq: int, kind: str, key: str, cause: str | None, text: str) -> bytes:
    """Hash of a fact: SHA-256 of the previous hash and the canonical JSON of [seq, kind, key, cause, text].

    A seq below 2**32 and four strings are the same bytes from orjson as from the standard library, four times sooner;
    every fact of a log is hashed again whenever the log is read.
    """
    link: list[Json] = [seq, kind, key, cause, text]
    try:
        encoded = orjson.dumps(link)
    except TypeError:
        encoded = dumps_checked(link).encode()  # which says what is wrong with it
    return hashlib.sha256(prev_hash + encoded).digest()


def is_known(kind: str) -> bool:
    """Whether this version can fold a fact of this kind, or may ignore it."""
    return kind in _DECODERS or kind.startswith("note.")


def encode_result(payload: Returned) -> tuple[str, Blobs]:
    """An in-flight call's result as its row keeps it; the same text that its fact will have."""
    encoded = encode(payload)
    return encoded.text, dict(encoded.blobs)


def _encode_configured(p: Configured, blobs: Blobs) -> Json:
    out: dict[str, Json] = {
        "model": p.model,
        "settings": p.settings,
        "limits": p.limits,
        "tools_sha256": p.tools_sha256,
    }
    if p.output_sha256 is not None:
        out["output_sha256"] = p.output_sha256
    if p.instead_of is not None:
        out["instead_of"] = p.instead_of
    put_text(out, "instructions", p.instructions, blobs)
    return out


def _decode_configured(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Configured(
        v["model"],
        get_text(v, "instructions", lookup),
        v["settings"],
        v["limits"],
        v["tools_sha256"],
        v.get("output_sha256"),
        v.get("instead_of"),
    )


def _encode_asked(p: Asked, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"origin": p.origin, "parts": encode_parts(p.parts, blobs)}
    if p.request_id is not None:
        out["request_id"] = p.request_id
    return out


def _decode_asked(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Asked(tuple(decode_part(part, lookup) for part in v["parts"]), v["origin"], v.get("request_id"))


def _encode_call(call: Call, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"id": call.id, "name": call.name}
    if call.arguments is None:
        out["problem"] = call.problem
        put_text(out, "raw", call.raw, blobs)
        return out
    put_json(out, "arguments", call.arguments, blobs, call.text)
    return out


def _decode_call(v: Mapping[str, Any], lookup: Lookup) -> Call:
    if "problem" in v:
        return Call(v["id"], v["name"], None, get_text(v, "raw", lookup), v["problem"])
    return Call(v["id"], v["name"], get_json(v, "arguments", lookup))


def _encode_answered(p: Answered, blobs: Blobs) -> Json:
    out: dict[str, Json] = {
        "calls": [_encode_call(call, blobs) for call in p.calls],
        "usage": None if p.usage is None else dict[str, Json](p.usage.to_dict()),
        "stop_reason": p.stop_reason,
        "model": p.model,
    }
    if p.opaque is not None:
        out["opaque"] = p.opaque
    put_text(out, "text", p.text, blobs)
    return out


def _decode_answered(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    usage = None if v["usage"] is None else Usage(**v["usage"])
    calls = tuple(_decode_call(call, lookup) for call in v["calls"])
    return Answered(get_text(v, "text", lookup), calls, usage, v["stop_reason"], v["model"], v.get("opaque"))


def _encode_returned(p: Returned, blobs: Blobs) -> Json:
    return {"call_key": p.call_key, "ok": p.ok, "parts": encode_parts(p.parts, blobs), "metadata": p.metadata}


def _decode_returned(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    parts = tuple(decode_part(part, lookup) for part in v["parts"])
    return Returned(v["call_key"], v["ok"], parts, v["metadata"])


def _encode_denied(p: Denied, blobs: Blobs) -> Json:
    return {"call_key": p.call_key, "scope": p.scope, "resource": p.resource, "reason": p.reason}


def _decode_denied(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Denied(v["call_key"], v["scope"], v["resource"], v["reason"])


def _encode_opened(p: WaitOpened, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"wait_id": p.wait_id, "kind": p.kind, "subject": p.subject, "digest": p.digest}
    if p.deadline_ms is not None:
        out["deadline_ms"] = p.deadline_ms
    if p.about:
        out["about"] = p.about
    return out


def _decode_opened(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return WaitOpened(v["wait_id"], v["kind"], v["subject"], v["digest"], v.get("deadline_ms"), v.get("about", {}))


def _encode_wait_answered(p: WaitAnswered, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"wait_id": p.wait_id, "value": p.value}
    if p.by is not None:
        out["by"] = p.by
    if p.expired:
        out["expired"] = True
    return out


def _decode_wait_answered(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return WaitAnswered(v["wait_id"], v["value"], v.get("by"), v.get("expired", False))


def _encode_reported(p: Reported, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"digest": p.digest, "passed": p.passed}
    put_json(out, "report", p.report, blobs)
    return out


def _decode_reported(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Reported(v["digest"], v["passed"], get_json(v, "report", lookup))


def _encode_waived(p: Waived, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"digest": p.digest}
    put_text(out, "reason", p.reason, blobs)
    return out


def _decode_waived(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Waived(v["digest"], get_text(v, "reason", lookup))


def _encode_ended(p: Ended, blobs: Blobs) -> Json:
    out: dict[str, Json] = {"status": p.status}
    if p.code is not None:
        out["code"] = p.code
    if p.message is not None:
        out["message"] = p.message
    return out


def _decode_ended(v: Mapping[str, Any], lookup: Lookup) -> Payload:
    return Ended(v["status"], v.get("code"), v.get("message"))


_ENCODERS: dict[type[Any], Callable[[Any, Blobs], Json]] = {
    Configured: _encode_configured,
    Asked: _encode_asked,
    Answered: _encode_answered,
    Returned: _encode_returned,
    Denied: _encode_denied,
    WaitOpened: _encode_opened,
    WaitAnswered: _encode_wait_answered,
    Reported: _encode_reported,
    Waived: _encode_waived,
    Compacted: encode_compacted,
    Ended: _encode_ended,
}
_DECODERS: dict[str, Callable[[Mapping[str, Any], Lookup], Payload]] = {
    "run.configured": _decode_configured,
    "user.message": _decode_asked,
    "model.turn": _decode_answered,
    "tool.result": _decode_returned,
    "budget.denied": _decode_denied,
    "wait.opened": _decode_opened,
    "wait.answered": _decode_wait_answered,
    "verification.reported": _decode_reported,
    "gate.waived": _decode_waived,
    "compaction.done": decode_compacted,
    "turn.ended": _decode_ended,
}
