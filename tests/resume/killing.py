"""A program that is killed with SIGKILL: at its n-th commit, before or after it, or at any moment (P1, P2).

A nursery imports everything once and forks a child for each life: a real process, with its own connections and locks,
that starts in milliseconds. The file of acknowledgements is written by the child after ``send`` returned; the file of
executions by each tool, before and after its work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..processes.kit import ENGINE

TURNS = 2

PROGRAM = """
import json, os, random, signal, sys, threading, time
from thence import Agent, SessionOptions, ToolContext, tool
from thence.host.toolkit import collect
from thence.store import writer
from thence.testing import reply, call

def note(path, *words):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

class Commits:
    '''The COMMIT of the n-th transaction, and the death before or after it.'''
    def __init__(self, at, when):
        self.at, self.when, self.count = at, when, 0
    def __iter__(self):
        self.count += 1
        here = self.count == self.at
        if here and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        yield "COMMIT"
        if here and self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

class Model:
    name = "again"
    def stream(self, request):
        users = [m.text for m in request.messages if m.role == "user"]
        here = 0
        for message in reversed(request.messages):
            if message.role == "user": break
            here += message.role == "assistant"
        turn = len(users)
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        looks = [call("look", {"n": 1}), call("look", {"n": 2})]
        if here == 0: said = reply("", [*looks, call("add", {"n": turn})], usage)
        elif here == 1: said = reply("", [call("add", {"n": 8}), call("put", {"n": 9})], usage)
        else: said = reply(f"Answer {turn}.", usage=usage)
        yield from said.deltas
        yield said.reply

where = [""]

def run(context, text):
    note(where[0], "start", context.call_key, context.idempotency_key)
    note(where[0], "end", context.call_key)
    return text

@tool(effect="read")
def look(n: int, context: ToolContext) -> str: return run(context, f"look {n}")
@tool
def add(n: int, context: ToolContext) -> str: return run(context, f"add {n}")
@tool(effect="idempotent")
def put(n: int, context: ToolContext) -> str: return run(context, f"put {n}")

# described once, before any fork: that costs more than a life
tools = list(collect([look, add, put]).values())

def life(order):
    commits = writer._COMMIT = Commits(order.get("at", 0), order.get("when"))
    if order.get("after_s") is not None:
        def die():
            time.sleep(order["after_s"])
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=die, daemon=True).start()
    where[0] = order["ran"]
    with Agent(order["db"], model=Model(), tools=tools, durability=order.get("durability", "power")) as agent:
        session = agent.session("/w", SessionOptions(session_id="s"))
        last = session.runs()[-1:]
        if last and last[0].state == "interrupted":
            said = session.resume_run(last[0].id)
            note(order["acks"], said.run_id, json.dumps(said.text), session.facts()[-1].hash)
        ends = sum(fact.kind == "turn.ended" for fact in session.facts())
        for turn in range(ends + 1, order["turns"] + 1):
            said = session.send(f"Question {turn}.")
            note(order["acks"], said.run_id, json.dumps(said.text), session.facts()[-1].hash)
    return commits.count

if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                count = life(order)
                note(order["acks"] + ".commits", count)
                code = 0
            except BaseException as error:
                note(order["acks"] + ".errors", repr(error))
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(status if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) << 8, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What the tools of all lives noted: how often each call started and ended, and under which keys."""

    started: dict[str, int]
    ended: dict[str, int]
    keys: dict[str, set[str]]


class Nursery:
    """Forks lives on request. Use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(ENGINE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.kills = 0

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def live(self, folder: Path, **order: Any) -> bool:
        """One life in this folder. True when it ended by itself; raises when it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        named = {"db": folder / "a.db", "acks": folder / "acks", "ran": folder / "ran", "turns": TURNS}
        line = json.dumps({**{name: str(path) if name != "turns" else path for name, path in named.items()}, **order})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        errors = folder / "acks.errors"
        assert not errors.exists(), errors.read_text()
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0
        self.kills += killed
        return not killed


def acknowledged(folder: Path) -> list[tuple[str, str, str]]:
    """(run id, text, head hash) of each send or resume that returned."""
    path = folder / "acks"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        run_id, rest = line.split(" ", 1)
        text, head = rest.rsplit(" ", 1)
        found.append((run_id, json.loads(text), head))
    return found


def executions(folder: Path) -> Ran:
    """What ran, over all lives."""
    started: dict[str, int] = {}
    ended: dict[str, int] = {}
    keys: dict[str, set[str]] = {}
    path = folder / "ran"
    for line in path.read_text().splitlines() if path.exists() else ():
        what, key, *rest = line.split(" ")
        counts = started if what == "start" else ended
        counts[key] = counts.get(key, 0) + 1
        for one in rest:
            keys.setdefault(key, set()).add(one)
    return Ran(started, ended, keys)


@cache
def program() -> dict[str, Any]:
    """The same model and tools, to go on with in this process."""
    names: dict[str, Any] = {"__name__": "killing_program"}
    exec(compile(PROGRAM, "killing", "exec"), names)  # our own text, above
    return names
