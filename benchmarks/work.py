"""The standard work: the same bytes for thence and for the floor.

One round is an answer of 400 characters with one call of 200 bytes of arguments, and a result of 2,000 characters.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thence import Agent, ScriptedModel, SessionOptions, tool
from thence.chat import RawCall, Reply, Request

_random = random.Random(7)
_words = ["".join(_random.choices("abcdefghijklmnopqrstuvwxyz", k=_random.randint(3, 9))) for _ in range(4000)]
_text = " ".join(_random.choices(_words, k=60_000))


def cut(number: int, length: int) -> str:
    """``length`` characters that differ from round to round."""
    start = number * 7919 % (len(_text) - length)
    return _text[start : start + length]


def arguments(number: int) -> dict[str, Any]:
    """The arguments of a round's call."""
    return {"path": f"src/module_{number % 97}/file_{number}.py", "offset": number, "note": cut(number, 130)}


@tool(effect="read", repeatable=True)
def look(path: str, offset: int, note: str) -> str:
    """Read part of a file."""
    return cut(offset, 2000)


@tool(repeatable=True)
def act(path: str, offset: int, note: str) -> str:
    """Do something that is not declared to be a read."""
    return cut(offset, 2000)


class Rounds:
    """A model that asks for ``count`` rounds and then answers; it notes the CPU time of each request."""

    def __init__(self, count: int, name: str = "look") -> None:
        self.count, self.tool, self.asked = count, name, 0
        self.cpu: list[float] = []

    def __call__(self, request: Request) -> Reply:
        self.cpu.append(time.process_time())
        self.asked += 1
        if self.asked > self.count:
            return Reply(cut(0, 400))
        call = RawCall(f"c{self.asked}", self.tool, json.dumps(arguments(self.asked)))
        return Reply(cut(self.asked, 400), (call,), stop_reason="tool_calls")


def run_thence(folder: Path, count: int, name: str = "look") -> list[float]:
    """One turn of ``count`` rounds at full durability; CPU seconds at each model request."""
    script = Rounds(count, name)
    options = SessionOptions(max_tool_rounds=count + 1)
    with Agent(folder / "thence.db", model=ScriptedModel(itertools.repeat(script)), tools=[look, act]) as agent:
        agent.session(folder, options).send(cut(1, 100))
    return script.cpu


SCHEMA = """
CREATE TABLE fact(id INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT, body TEXT, at REAL);
CREATE UNIQUE INDEX fact_seq ON fact(session, seq);
CREATE TABLE event(id INTEGER PRIMARY KEY, session TEXT NOT NULL, run INTEGER NOT NULL, kind TEXT, body TEXT, at REAL);
CREATE INDEX event_run ON event(session, run);
CREATE TABLE trace(id INTEGER PRIMARY KEY, session TEXT NOT NULL, run INTEGER NOT NULL, body TEXT, at REAL);
CREATE INDEX trace_run ON trace(session, run);
CREATE TABLE checkpoint(session TEXT PRIMARY KEY, round INTEGER, body TEXT, at REAL) WITHOUT ROWID;
"""


def run_floor(folder: Path, count: int) -> list[float]:
    """The same rounds as plain SQLite writes, one FULL transaction a round: two facts, four events, a trace, a
    checkpoint. No promises beyond that. CPU seconds at each round."""
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.executescript(SCHEMA)
    cpu: list[float] = []
    history: list[str] = []
    for number in range(1, count + 1):
        cpu.append(time.process_time())
        _floor_round(db.execute, number, history)
    cpu.append(time.process_time())
    db.close()
    return cpu


def _floor_round(execute: Callable[..., object], number: int, history: list[str]) -> None:
    answer = json.dumps({"role": "assistant", "text": cut(number, 400), "calls": [arguments(number)]})
    result = json.dumps({"role": "tool", "id": f"c{number}", "text": cut(number, 2000)})
    history += [answer, result]
    now = time.time()
    execute("BEGIN IMMEDIATE")
    for place, body in enumerate((answer, result)):
        execute(
            "INSERT INTO fact(session, seq, kind, body, at) VALUES(?, ?, ?, ?, ?)",
            ("s", 2 * number + place, "message", body, now),
        )
    for kind in ("turn_start", "turn_end", "tool_start", "tool_end"):
        body = json.dumps({"round": number, "kind": kind, "detail": "x" * 100})
        execute("INSERT INTO event(session, run, kind, body, at) VALUES(?, ?, ?, ?, ?)", ("s", 1, kind, body, now))
    body = json.dumps({"round": number, "ms": 0.1, "detail": "y" * 200})
    execute("INSERT INTO trace(session, run, body, at) VALUES(?, ?, ?, ?)", ("s", 1, body, now))
    body = json.dumps({"round": number, "usage": {"in": 1, "out": 2}, "detail": "z" * 300})
    execute("INSERT OR REPLACE INTO checkpoint VALUES(?, ?, ?, ?)", ("s", number, body, now))
    execute("COMMIT")


def per_round(cpu: list[float], at: int, width: int) -> float:
    """Median microseconds of CPU of the ``width`` rounds that end at round ``at``."""
    steps = sorted(b - a for a, b in itertools.pairwise(cpu[max(0, at - width) : at + 1]))
    return steps[len(steps) // 2] * 1e6


def mean_per_round(cpu: list[float], first: int, last: int) -> float:
    """Mean microseconds of CPU of the rounds from ``first`` to ``last``: work that is put off is in it."""
    return (cpu[last] - cpu[first]) / (last - first) * 1e6


def chunks(values: list[float], size: int) -> Iterator[list[float]]:
    """``values`` in pieces of ``size``."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
