"""Worked examples for the local model: fixed ones for the workspace tools, made-up ones for any other tool. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..canonical import Json
from ..chat import ToolSpec


@dataclass(frozen=True, slots=True)
class Example:
    """A worked turn: a question, the call it leads to, the call's result, and the answer."""

    question: str
    tool: str
    arguments: Mapping[str, Json]
    result: str
    answer: str


def _ls(question: str, path: str, result: str, answer: str) -> Example:
    return Example(question, "ls", {"path": path}, result, answer)


def _read(question: str, path: str, *lines: str) -> Example:
    return Example(question, "read", {"path": path}, "\n".join(lines), f"It says: {' '.join(lines)}")


def _grep(question: str, pattern: str, result: str, answer: str) -> Example:
    return Example(question, "grep", {"pattern": pattern}, result, answer)


def _glob(question: str, pattern: str, first: str, second: str) -> Example:
    return Example(question, "glob", {"pattern": pattern}, f"{first}\n{second}", f"There are {first} and {second}.")


# Results look like those of the built-in workspace tools: the model learns from them what to leave out.
_WORKSPACE = (
    _ls("What is in the folder src?", "src", "main.py (90 bytes)\nlib/", "The folder src holds main.py and lib."),
    _ls(
        "List the files in music.",
        "music",
        "old.mp3 (7 bytes)\nsong.mp3 (6 bytes)",
        "The folder music holds old.mp3 and song.mp3.",
    ),
    _ls("What files are there?", ".", "src/\ntodo.md (9 bytes)", "There are src and todo.md."),
    _ls("List all files here.", ".", "day.txt (6 bytes)\nmusic/", "There are day.txt and music."),
    _read("Read the file todo.md.", "todo.md", "Buy milk.", "Call Ann."),
    _read("Read the file lib/one.txt.", "lib/one.txt", "Red hat.", "Blue hat."),
    _read("What does the file day.txt say?", "day.txt", "A day.", "Sun."),
    _read("Show me list.txt.", "list.txt", "One.", "Two."),
    _grep(
        "Which files mention 'apple'?",
        "apple",
        "home/food.txt:3: an apple a day\nplan.txt:1: apple pie",
        "The files home/food.txt and plan.txt mention 'apple'.",
    ),
    _grep("Search for the word 'error'.", "error", "log.txt:9: error 5", "The file log.txt mentions 'error'."),
    _glob("Find all files named *.csv.", "*.csv", "a.csv", "sum.csv"),
    _glob("Find files that end in .py.", "*.py", "lib/b.py", "main.py"),
)

_COMPARED = 300
"""How much of a question is compared with the examples', in characters."""

_PLACEHOLDERS: Mapping[str, Json] = {
    "integer": 2,
    "number": 2.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def most_like(question: str, tools: Sequence[ToolSpec], count: int) -> list[Example]:
    """``count`` examples of the offered tools, the one most like ``question`` last, others of its tool before it."""
    offered = [example for tool in tools for example in _examples(tool)]
    ranked = sorted(offered, key=lambda example: _likeness(question, example.question), reverse=True)
    best = ranked[0].tool if ranked else ""
    ranked.sort(key=lambda example: example.tool != best)
    return ranked[:count][::-1]


def _likeness(one: str, other: str) -> float:
    mine, theirs = _words(one), _words(other)
    return len(mine & theirs) / math.sqrt(len(mine) * len(theirs) or 1)


def _words(text: str) -> set[str]:
    """Lower-case words; what differs from question to question (quotes, patterns, file names) counts by its kind."""
    # Patterns that look for what follows a run of letters take quadratic time: not on a whole pasted file.
    plain = re.sub(r"(['\"]).*?\1", " quoted ", text[:_COMPARED].lower())
    plain = re.sub(r"\S*\*\S*", " wildcard ", plain)
    return set(re.findall(r"[a-z]+", re.sub(r"[\w/-]*\.\w+", " named ", plain)))


def _examples(tool: ToolSpec) -> list[Example]:
    properties = cast("Mapping[str, Any]", tool.parameters.get("properties") or {})
    required = cast("list[str]", tool.parameters.get("required") or [])
    known = [
        example
        for example in _WORKSPACE
        if example.tool == tool.name and set(required) <= example.arguments.keys() <= properties.keys()
    ]
    return known or [_made_up(tool, {name: properties.get(name) for name in required or list(properties)[:1]})]


def _made_up(tool: ToolSpec, schemas: Mapping[str, Any]) -> Example:
    arguments = {name: _placeholder(schema) for name, schema in schemas.items()}
    given = ", ".join(f"{name} {value}" for name, value in arguments.items())
    question = f"{tool.description.rstrip('.')}: {given}." if given else tool.description
    return Example(question, tool.name, arguments, "done", "It says: done.")


def _placeholder(schema: Any) -> Json:
    known = cast("Mapping[str, Any]", schema if isinstance(schema, Mapping) else {})
    choices = cast("Sequence[Json]", known.get("enum") or known.get("examples") or ())
    return choices[0] if choices else _PLACEHOLDERS.get(str(known.get("type")), "Rome")
