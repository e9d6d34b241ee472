"""What a tool returned, as text for the log and the model (§4, §5). Pure; never raises.

Text stays text and None is empty text; everything else becomes canonical JSON without loss. What has no such form
makes a *failed* result that names the type: the tool did run, and the model must know that.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from .. import canonical
from ..canonical import Json


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A result with more to say than its value. A tool may return it.

    Attributes:
        value: what the model sees; anything that :func:`encode_result` takes.
        ok: False makes it a failed result.
        changed_paths: files of the workspace that the call changed, failed or not; they close the completion gate until
            they are verified or waived (§5).
        metadata: JSON for the log and events, not shown to the model.

    Raises:
        TypeError: ``changed_paths`` is one path instead of several.
    """

    value: object = ""
    ok: bool = True
    changed_paths: Iterable[str | os.PathLike[str]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if isinstance(self.changed_paths, str | bytes | os.PathLike):
            raise TypeError("changed_paths takes several paths: wrap the one in a tuple")
        object.__setattr__(self, "changed_paths", tuple(os.fspath(path) for path in self.changed_paths))


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """A result that can be stored: ``text`` holds no lone surrogate, and is canonical JSON when ``is_json``."""

    text: str
    ok: bool = True
    is_json: bool = False
    changed_paths: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])


class _NoForm(ValueError):
    """``problem`` lies at ``path``, which is collected from the inside out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def __str__(self) -> str:
        place = "".join(["$", *reversed(self.path)])
        return f"{place if len(place) <= 200 else place[:80] + ' ... ' + place[-80:]}: {self.problem}"


class _NoType(_NoForm):
    """A type without a form here."""


def encode_result(value: object) -> EncodedResult:
    """Return what is recorded for a tool that returned ``value``. Never raises.

    =========================================  ==============================================
    returned                                   recorded
    =========================================  ==============================================
    ``str``, UTF-8 ``bytes``, ``None``         the text itself; empty text
    ``bool int float list tuple dict``         JSON; integers exact, keys by their JSON text
    ``set frozenset``                          a sorted list
    dataclass, pydantic model                  an object of its fields
    ``date datetime time``                     ISO 8601
    ``UUID Decimal Path``, ``Enum``            its text; its value
    other ``bytes``                            ``{"base64": ...}``
    :class:`ToolOutput`                        its value, with ``ok``, paths and metadata
    NaN, infinity, a cycle, depth over 200,    failed: ``Error: the tool ran, but its result
    a lone surrogate, over 4,000 digits,       cannot be recorded: ...``
    any other type
    =========================================  ==============================================
    """
    if type(value) is str and value.isascii():
        return EncodedResult(value)  # what most tools return
    changed: tuple[str, ...] = ()
    try:
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        paths = cast("tuple[str, ...]", output.changed_paths)
        changed = tuple(path.encode("utf-8", "backslashreplace").decode() for path in paths)
        text, is_json = _content(output.value)
        metadata = _plain(dict(output.metadata), [])
        canonical.dumps(metadata)
        return EncodedResult(text, bool(output.ok), is_json, changed, cast("dict[str, Json]", metadata))
    except (_NoForm, canonical.NotJson) as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - reported: a property or serialiser of the tool's own object failed
        problem = f"reading a {_type_name(value)} raised {type(error).__name__}"
    return EncodedResult(
        f"Error: the tool ran, but its result cannot be recorded: {_safe(problem)}", ok=False, changed_paths=changed
    )


def _content(value: object) -> tuple[str, bool]:
    while isinstance(value, Enum):
        value = value.value
    if value is None:
        return "", False
    if isinstance(value, bytes | bytearray | memoryview):
        value = _bytes(cast("bytes", value))
    if isinstance(value, str):
        return _text(value), False
    return canonical.dumps(_plain(value, [])), True


def _plain(value: object, above: list[int]) -> Json:
    """``value`` as exact JSON types. ``above`` holds the identities of the containers around it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, above)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoForm(f"the {_type_name(value)} {float.__repr__(value)} is not JSON")
        return float.__float__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(cast("bytes", value))
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal | PurePath):
        return _text(str(value))
    if id(value) in above:
        raise _NoForm(f"a {_type_name(value)} that contains itself")
    if len(above) >= canonical.MAX_DEPTH:
        raise _NoForm(f"nested deeper than {canonical.MAX_DEPTH}")
    above.append(id(value))
    plain = _container(value, above)
    above.pop()
    return plain


def _container(value: object, above: list[int]) -> Json:
    if isinstance(value, Mapping):
        return _object(cast("Mapping[object, object]", value).items(), above)
    if isinstance(value, list | tuple | set | frozenset):
        items: list[Json] = []
        for item in cast("Iterable[object]", value):
            try:
                items.append(_plain(item, above))
            except _NoForm as error:
                error.path.append(f"[{len(items)}]")
                raise
        return items if isinstance(value, list | tuple) else sorted(items, key=_sort_key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(((each.name, getattr(value, each.name)) for each in dataclasses.fields(value)), above)
    # Only where some tool has loaded pydantic can a value be a model of it: never import it for this question.
    models = sys.modules.get("pydantic.main")
    if models is not None and isinstance(value, models.BaseModel):
        return _model(value, above)
    raise _NoType(f"a {_type_name(value)} has no JSON form")


def _model(model: Any, above: list[int]) -> Json:
    depth = len(above)
    try:
        # Python mode first: JSON mode gives sets in an order that differs between processes.
        return _dumped(model.model_dump(), above)
    except _NoType:
        del above[depth:]
    return _dumped(model.model_dump(mode="json"), above)


def _dumped(dump: object, above: list[int]) -> Json:
    return _object(cast("dict[object, object]", dump).items(), above) if isinstance(dump, dict) else _plain(dump, above)


def _object(items: Iterable[tuple[object, object]], above: list[int]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for raw_key, item in items:
        key = _key(raw_key, above)
        if key in result:
            raise _NoForm(f"two keys have the JSON text {key[:80]!r}")
        try:
            result[key] = _plain(item, above)
        except _NoForm as error:
            error.path.append(f".{key[:80]}")
            raise
    return result


def _key(key: object, above: list[int]) -> str:
    plain = _plain(key, above)
    if isinstance(plain, str):
        return plain
    if plain is None or isinstance(plain, bool | int | float):
        return canonical.dumps(plain)
    raise _NoForm(f"a {_type_name(key)} cannot be a key")


def _sort_key(item: Json) -> tuple[int, float | int, str]:
    if isinstance(item, int | float) and not isinstance(item, bool):
        return (0, item, "")
    return (1, 0, item if isinstance(item, str) else canonical.dumps(item))


def _bytes(value: bytes) -> str | dict[str, Json]:
    raw = bytes(value)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _NoForm("a str with a lone surrogate cannot be stored as UTF-8") from None
    return str.__str__(value)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
