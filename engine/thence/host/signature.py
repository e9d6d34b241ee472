"""From a Python callable to what a model may send it: parameters, JSON Schema, docstring (§12).

pydantic does the work, and is loaded when there is some: at the first call of a tool, or the first description of one
that is not `plain`. ``import thence`` stays free of it.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union, cast

from .. import canonical
from ..canonical import Json
from ..errors import ToolError
from .context import ToolContext
from .plain import Parameters, plain_schema
from .result import encode_result

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Signature:
    """What :func:`read_signature` found. Field ``f<i>`` of ``model()`` is parameter ``names[i]``."""

    model: Callable[[], type[BaseModel]]
    names: tuple[str, ...]
    context_names: tuple[str, ...]
    schema: Mapping[str, Json]
    description: str


def target_of(function: Callable[..., object]) -> Any:
    """The function behind partials and callable objects: its name, hints, docstring and marks count.

    Raises:
        ToolError: ``function`` is a class or cannot be called.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[object]", inner).func
    if isinstance(inner, type):
        raise ToolError(f"class {inner.__qualname__} is no tool: give a function, method or callable object")
    if not callable(inner):
        raise ToolError(f"a {type(cast('object', inner)).__qualname__} is no tool: it cannot be called")
    if inspect.isroutine(inner) or hasattr(inner, "__wrapped__"):
        return inner
    return cast("Any", inner).__call__


def read_signature(function: Callable[..., object], label: str) -> Signature:
    """Read parameters, schema and description of ``function``; ``label`` names it in errors.

    Raises:
        ToolError: a parameter without a type hint, ``*args``, ``**kwargs``, a positional-only parameter, hints that
            cannot be resolved or have no JSON Schema, or a default that is not JSON.
    """
    target = target_of(function)
    description, documented = split_docstring(_docstring(function, target))
    hints = _hints(target, label)
    parameters: dict[str, tuple[inspect.Parameter, Any, str | None]] = {}
    context_names: list[str] = []
    defaults: dict[str, Json] = {}
    for parameter in _parameters(function, label):
        name = parameter.name
        if name not in hints:
            raise ToolError(f"{label}: parameter '{name}' has no type hint")
        if _is_context(hints[name]):
            context_names.append(name)
            continue
        if parameter.default is not inspect.Parameter.empty:
            defaults[name] = _json_default(parameter.default, name, label)
        parameters[name] = (parameter, hints[name], documented.get(name))
    model = functools.cache(lambda: _make_model(parameters))
    schema = plain_schema(parameters) or _schema_of(model, label)
    for name, default in defaults.items():
        schema["properties"][name]["default"] = default
    schema.setdefault("properties", {})
    try:
        canonical.dumps([description, schema])
    except canonical.NotJson as error:
        raise ToolError(f"{label}: its schema or docstring cannot be stored: {error}") from None
    return Signature(model, tuple(parameters), tuple(context_names), schema, description)


def _make_model(parameters: Parameters) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model

    # Field names of our own: a parameter may be called "schema", "copy" or "_x", which a model class takes badly.
    fields: dict[str, Any] = {f"f{i}": (each[1], _field(*each)) for i, each in enumerate(parameters.values())}
    # A cast, since a field name is no keyword that a type checker could know.
    made: type[BaseModel] = cast("Any", create_model)("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return made


def _schema_of(model: Callable[[], type[BaseModel]], label: str) -> Any:
    from pydantic.errors import PydanticUserError

    try:
        return tidy(model().model_json_schema())
    except (PydanticUserError, TypeError, ValueError) as error:
        raise ToolError(f"{label}: no JSON Schema for its parameters: {str(error).splitlines()[0]}") from error


def _parameters(function: Callable[..., object], label: str) -> Iterable[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise ToolError(f"{label}: its signature cannot be read: {error}") from None
    # What a partial fixes by keyword is the host's own (a key, a client): a model must neither see nor change it.
    fixed = set(cast("functools.partial[object]", function).keywords) if isinstance(function, functools.partial) else ()
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise ToolError(f"{label}: '*{parameter.name}' has no JSON Schema; name each parameter")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise ToolError(f"{label}: '**{parameter.name}' has no JSON Schema; name each parameter")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ToolError(f"{label}: parameter '{parameter.name}' is positional-only; arguments come by name")
        if parameter.name not in fixed:
            yield parameter


def _hints(target: Any, label: str) -> dict[str, Any]:
    plain: Any = inspect.unwrap(getattr(target, "__func__", target))
    try:
        annotations: dict[str, Any] = dict(getattr(plain, "__annotations__", {}))
        # The result's hint is nobody's business here: it may name what only a type checker imports.
        annotations.pop("return", None)
        holder = types.SimpleNamespace(__annotations__=annotations)
        return typing.get_type_hints(holder, getattr(plain, "__globals__", {}), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ToolError(f"{label}: its type hints cannot be resolved: {error}") from error


def _is_context(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return any(_is_context(part) for part in typing.get_args(hint)[: 1 if origin is Annotated else None])
    return isinstance(hint, type) and issubclass(hint, ToolContext)


def _json_default(default: object, name: str, label: str) -> Json:
    encoded = encode_result([default])
    if not encoded.ok:
        raise ToolError(f"{label}: the default of parameter '{name}' is not JSON: {encoded.text.rpartition(': ')[2]}")
    return cast("Json", canonical.loads(encoded.text)[0])


def _field(parameter: inspect.Parameter, hint: Any, documented: str | None) -> Any:
    from pydantic import Field

    name = parameter.name
    extra: dict[str, Any] = {"alias": name, "validation_alias": name, "serialization_alias": name}
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    if documented and not any(getattr(each, "description", None) for each in metadata):
        extra["description"] = documented
    if parameter.default is not inspect.Parameter.empty:
        extra["default"] = parameter.default
    return Field(**extra)


_SCHEMA_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_VALUES = ("default", "const", "enum", "examples", "example")


def tidy(schema: Any, *, close: bool = False) -> Any:
    """Drop the titles, which repeat the names; a *property* called ``title`` stays. ``close``: an object that does not
    say what else it takes takes nothing else."""
    if isinstance(schema, list):
        return [tidy(item, close=close) for item in cast("Iterable[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tidied: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in _SCHEMA_MAPS:
            tidied[key] = {name: tidy(each, close=close) for name, each in value.items()}
        elif key in _VALUES:
            tidied[key] = value
        elif key != "title":
            tidied[key] = tidy(value, close=close)
    if close and tidied.get("type") == "object" and "properties" in tidied:
        tidied.setdefault("additionalProperties", False)
    return tidied


def _docstring(function: object, target: Any) -> str:
    if hasattr(target, "__self__") and target is not function and getattr(target, "__name__", "") == "__call__":
        # inspect.getdoc would find the text of type.__call__ here.
        owner = cast("type[object]", type(target.__self__))
        return inspect.cleandoc(owner.__call__.__doc__ or owner.__doc__ or "")
    return inspect.getdoc(target) or ""


_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?):\s*$|:\w+[^:]*:")
_ARGS = re.compile(r"(?:Args|Arguments|Parameters|Params):\s*$")
_ITEM = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s+(.+)$")
_FIELD = re.compile(r":(?:param|parameter|arg|argument)(?:\s[^:]*)?\s(\w+):\s*(.*)$")


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split into (what the tool does, description by parameter).

    The first ends at the first section (``Args:``, ``Returns:``, ``:param x:`` ...). Parameter texts are read from
    Google style and from reST fields; other styles stay part of nothing but the first.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    found: dict[str, str] = {}
    current, indent, in_args = "", -1, False
    for line in lines[first:]:
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if stripped and depth == 0:
            current, indent, in_args = "", -1, bool(_ARGS.match(stripped))
            if field := _FIELD.match(stripped):
                current = field[1]
                found[current] = field[2]
        elif stripped and in_args and (indent in (-1, depth)):
            item = _ITEM.match(stripped)
            current, indent = (item[1] if item else ""), depth
            if item:
                found[current] = item[2]
        elif stripped and current:
            found[current] += f" {stripped}"
    return "\n".join(lines[:first]).strip(), found
