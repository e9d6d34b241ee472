"""The schema that is made without pydantic is pydantic's, to the order of its keys (§12)."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Optional

import pytest
from pydantic import Field

from thence import ToolContext
from thence.host import signature
from thence.host.signature import read_signature


class Colour(StrEnum):
    RED = "red"


HINTS: tuple[Any, ...] = (str, int, float, bool, str | None, Optional[int], None | bool, "float | None")  # noqa: UP045
OTHERS: tuple[Any, ...] = (
    list[str], dict[str, int], Any, bytes, str | int, str | int | None, None, Colour, "list[int]", object,
)  # fmt: skip
DEFAULTS: tuple[Any, ...] = (inspect.Parameter.empty, None, "x", "é\n", 3, 2**70, 1.5, True)


def made(hints: dict[str, Any], defaults: dict[str, Any], doc: str) -> Callable[..., object]:
    """A function with these parameters."""

    def function(**given: object) -> object:
        return given

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = dict(hints)
    function.__doc__ = doc
    return function


def by_pydantic(function: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(signature, "plain_schema", lambda parameters: None)
        return json.dumps(read_signature(function, "f").schema)


@pytest.mark.parametrize("default", DEFAULTS, ids=repr)
@pytest.mark.parametrize("hint", HINTS, ids=repr)
def test_it_is_what_pydantic_says(hint: Any, default: Any, monkeypatch: pytest.MonkeyPatch):
    empty = inspect.Parameter.empty
    for doc in ("Does.", "Does.\n\nArgs:\n    a: The a.\n    schema: Longer,\n        than one line.\n"):
        for names in (("a",), ("schema", "a", "_x"), ("title", "description", "b")):
            hints = dict.fromkeys(names, hint)
            defaults: dict[str, Any] = {name: default if i != 1 else empty for i, name in enumerate(names)}
            function = made(hints, defaults, doc)
            found = read_signature(function, "f")
            assert json.dumps(found.schema) == by_pydantic(function, monkeypatch)
            assert tuple(found.model().model_fields) == tuple(f"f{i}" for i in range(len(names)))


def test_no_parameters_and_a_context(monkeypatch: pytest.MonkeyPatch):
    for hints in ({}, {"context": ToolContext}):
        function = made(hints, dict.fromkeys(hints, inspect.Parameter.empty), "")
        assert json.dumps(read_signature(function, "f").schema) == by_pydantic(function, monkeypatch)


def ask(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> list[str]:
    """Notes for which functions pydantic is asked."""
    asked: list[str] = []

    def schema_of(model: object, label: str) -> dict[str, Any]:
        asked.append(label)
        return answer

    monkeypatch.setattr(signature, "_schema_of", schema_of)
    return asked


@pytest.mark.parametrize("hint", OTHERS, ids=repr)
def test_every_other_hint_is_pydantics(hint: Any, monkeypatch: pytest.MonkeyPatch):
    asked = ask(monkeypatch, {})
    read_signature(made({"a": str, "b": hint}, dict.fromkeys("ab", inspect.Parameter.empty), ""), "f")
    assert asked == ["f"]


@pytest.mark.parametrize("default", [Colour.RED, [1], {}, (1, 2)], ids=repr)
def test_every_other_default_is_pydantics(default: Any, monkeypatch: pytest.MonkeyPatch):
    asked = ask(monkeypatch, {"properties": {"a": {}}})
    read_signature(made({"a": str}, {"a": default}, ""), "f")
    assert asked == ["f"]


def test_pydantic_comes_with_the_first_call():
    code = """
import sys
from thence import tool
from thence.host.toolkit import describe
def look(path: str, lines: int = 3, deep: bool | None = None) -> str: ...
found = describe(look)
assert "pydantic" not in sys.modules
assert found.bind({"path": "x"}) == {"path": "x", "lines": 3, "deep": None}
assert "pydantic" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_field_is_still_refused_or_taken_as_before():
    def look(path: str = Field(min_length=1)) -> str:
        return path

    with pytest.raises(Exception, match="default of parameter 'path' is not JSON"):
        read_signature(look, "tool 'look'")
