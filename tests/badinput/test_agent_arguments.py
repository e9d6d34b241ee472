"""Wrong arguments of an agent: one clear typed error each, and no file is made (§1, §12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thence import ToolError, tool

from .kit import LONE, NAN, Face, nested


def no_hints(x):
    return x


def one(text: str) -> str:
    return text


def same_name() -> Callable[[str], str]:
    @tool(name="one")
    def other(text: str) -> str:
        return text

    return other


def star(*args: str) -> str:
    return "".join(args)


class Named:
    def __init__(self, name: Any) -> None:
        self.name = name

    def stream(self, request: Any) -> Any: ...


AGENT: dict[str, tuple[dict[str, Any], Any, str]] = {
    "db: a number": ({"db": 5}, TypeError, "'db'"),
    "db: bytes": ({"db": b"a.db"}, TypeError, "'db'"),
    "db: blank": ({"db": "  "}, ValueError, "'db'"),
    "db: empty": ({"db": ""}, ValueError, "'db'"),
    "db: NUL": ({"db": "a\0b"}, ValueError, "'db'"),
    "db: SQLite's memory": ({"db": ":memory:"}, ValueError, "'db'.*give None"),
    "db: SQLite's memory as a path": ({"db": Path(":memory:")}, ValueError, "'db'.*give None"),
    "db: an address": ({"db": "file:a.db?mode=ro"}, ValueError, "'db'.*not supported"),
    "db: an address in memory": ({"db": "FILE::memory:?cache=shared"}, ValueError, "'db'.*not supported"),
    "db: lone surrogate": ({"db": LONE}, ValueError, "'db'"),
    "model: a number": ({"model": 5}, TypeError, "model"),
    "model: a class": ({"model": object}, TypeError, "model"),
    "model: unknown name": ({"model": "nonsense"}, ValueError, "nonsense"),
    "model: blank": ({"model": " "}, ValueError, "model"),
    "model: a name that is a number": ({"model": Named(5)}, TypeError, "'name'.*int"),
    "model: no name": ({"model": Named(None)}, TypeError, "'name'.*NoneType"),
    "model: a name with a lone surrogate": ({"model": Named(LONE)}, ValueError, "surrogate"),
    "tools: a number": ({"tools": 5}, TypeError, "tools"),
    "tools: a name": ({"tools": "one"}, (TypeError, ToolError), "tool"),
    "tools: not callable": ({"tools": [5]}, (TypeError, ToolError), "tool|callable"),
    "tools: None": ({"tools": None}, TypeError, "tools"),
    "tools: twice": ({"tools": [one, one]}, ToolError, "two tools are called 'one'"),
    "tools: one name twice": ({"tools": [one, same_name()]}, ToolError, "two tools are called 'one'"),
    "tools: no hints": ({"tools": [no_hints]}, ToolError, "no_hints.*'?x'?"),
    "tools: star": ({"tools": [star]}, ToolError, "star"),
    "tools: lambda": ({"tools": [lambda: 1]}, ToolError, "lambda"),
    "tools: a class": ({"tools": [dict]}, ToolError, "dict"),
    "instructions: a number": ({"instructions": 5}, TypeError, "'instructions'"),
    "instructions: lone surrogate": ({"instructions": LONE}, ValueError, "'instructions'.*surrogate"),
    "settings: a number": ({"model_settings": 5}, TypeError, "'model_settings'"),
    "settings: NaN": ({"model_settings": {"temperature": NAN}}, ValueError, "'model_settings'.*nan"),
    "settings: a set": ({"model_settings": {"stop": {1}}}, (ValueError, TypeError), "'model_settings'.*set"),
    "settings: key": ({"model_settings": {1: 2}}, (ValueError, TypeError), "'model_settings'"),
    "settings: deep": ({"model_settings": {"x": nested(201)}}, ValueError, "'model_settings'.*deep"),
    "settings: lone surrogate": ({"model_settings": {"x": LONE}}, ValueError, "'model_settings'.*surrogate"),
    "host_env: a number": ({"host_env": 5}, TypeError, "host_env"),
    "allow_network_fs: a text": ({"allow_network_fs": "yes"}, TypeError, "'allow_network_fs'"),
    "allow_network_fs: a number": ({"allow_network_fs": 1}, TypeError, "'allow_network_fs'"),
    "durability: unknown": ({"durability": "none"}, ValueError, "durability"),
    "durability: a number": ({"durability": 5}, (ValueError, TypeError), "durability"),
    "unknown keyword": ({"modell": "x"}, TypeError, "modell"),
}


@pytest.mark.parametrize("what", AGENT)
def test_an_agent_is_refused_and_no_file_is_made(face: Face, db, tmp_path, what):
    given, kind, words = AGENT[what]
    with pytest.raises(kind, match=words):
        face.agent(**{"db": db, **given})
    assert list(db.parent.iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
