"""Which JSON Schemas a provider's strict mode takes as they are (§12). Pure.

In strict mode OpenAI lets the model write nothing that the schema does not allow, and refuses a schema with a word that
it does not know: the whole request fails. So strict is asked for only where every word is one it has long known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..canonical import Json

_PLAIN = {
    *("type", "enum", "const", "description", "additionalProperties", "required", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def is_strict(schema: Mapping[str, Json]) -> bool:
    """Whether ``schema`` is in strict form: each object says all its fields, demands each, and takes no other."""
    return schema.get("type") == "object" and _is_strict(schema)


def _is_strict(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    given = cast("Mapping[str, Any]", schema)
    if "$ref" in given:
        return len(given) == 1
    if given.get("type") == "object":
        fields = given.get("properties")
        closed = isinstance(fields, Mapping) and given.get("additionalProperties") is False
        if not closed or set(given.get("required", ())) != set(cast("Mapping[str, Any]", fields)):
            return False
    elif not given.keys() & {"type", "anyOf", "enum", "const"}:
        return False  # it takes anything
    return all(_is_known(word, value) for word, value in given.items())


def _is_known(word: str, value: Any) -> bool:
    if word in ("properties", "$defs"):
        return all(_is_strict(each) for each in value.values())
    if word == "anyOf":
        return all(_is_strict(each) for each in value)
    if word == "items":
        return _is_strict(value)
    return value in _FORMATS if word == "format" else word in _PLAIN
