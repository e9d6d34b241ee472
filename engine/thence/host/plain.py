"""The JSON Schema of parameters that are text, numbers, truth values, or those or None: made without pydantic (§12).

Importing pydantic costs more than opening a session of a thousand rounds. Most tools have only such parameters, and
most processes that open a session have called none of them by the time the model is asked. So pydantic comes with the
first call, or with the first parameter of another kind; what it would say here is the same, and a test holds it to it.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias

from ..canonical import Json

Parameters: TypeAlias = "Mapping[str, tuple[inspect.Parameter, Any, str | None]]"
"""By name: the parameter, its type hint, and what the docstring says of it."""

_TYPES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_PLAIN_VALUES = (str, int, float, bool, type(None))


def plain_schema(parameters: Parameters) -> dict[str, Any] | None:
    """The schema without its defaults, or None when a parameter is of another kind."""
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for name, (parameter, hint, documented) in parameters.items():
        schema = _schema_of(hint)
        if schema is None:
            return None
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif type(parameter.default) in _PLAIN_VALUES:
            schema["default"] = None  # its place; the caller puts the value there
        else:
            return None
        if documented:
            schema["description"] = documented
        properties[name] = dict(sorted(schema.items()))
    whole: dict[str, Any] = {"additionalProperties": False, "properties": properties}
    if required:
        whole["required"] = required
    whole["type"] = "object"
    return whole


def _schema_of(hint: Any) -> dict[str, Json] | None:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        if len(parts) == 1 and parts[0] in _TYPES:
            return {"anyOf": [{"type": _TYPES[parts[0]]}, {"type": "null"}]}
        return None
    return {"type": _TYPES[hint]} if isinstance(hint, type) and hint in _TYPES else None
