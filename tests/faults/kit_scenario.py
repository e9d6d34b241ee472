"""A life that is the same each time: sessions, rounds, spawned, failed and resumed runs, in either face.

Imported by the tests that look at what is left, and run as a program by the process that lives it:
``kit_scenario.py FACE DB MARKS DURABILITY LAPS``. What the program is told by the library (acknowledgements), and what
its tools do to the world (effects), it writes into the file MARKS, one JSON line each.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thence import (
    Agent,
    AsyncAgent,
    HostEnvConfig,
    ModelError,
    Reply,
    Request,
    RunFailed,
    SessionOptions,
    ToolContext,
    tool,
)
from thence.chat import RawCall

Mark = Callable[..., None]
WORK = "/nowhere/work"
READS = frozenset({"peek", "bulk"})


def no_mark(what: str, **more: object) -> None:
    """For those who do not keep marks."""


class Planner:
    """A model without a memory: what it answers follows from the request alone.

    A prompt is ``NAME:ROUND|ROUND|...``, a round ``TOOL,TOOL,...``; a ``!`` before a round makes this process fail
    there once. After the last round the answer is ``done PROMPT``.
    """

    name = "planner"

    def __init__(self, mark: Mark = no_mark, *, failing: bool = False) -> None:
        self._mark, self._failing = mark, failing
        self._failed: set[str] = set()

    def stream(self, request: Request) -> Iterator[Reply]:
        messages = list(request.messages)
        start = max(at for at, message in enumerate(messages) if message.role == "user")
        prompt = messages[start].text
        done = sum(message.role == "assistant" for message in messages[start:])
        turn = sum(message.role == "user" for message in messages)
        session, _, plan = prompt.partition(":")
        settled = [m.call_key for m in messages[start:] if m.role == "tool" and m.name not in READS]
        self._mark("asked", session=session, keys=settled)
        rounds = plan.split("|") if plan else []
        if done >= len(rounds):
            yield Reply(f"done {prompt}")
            return
        if rounds[done].startswith("!") and self._failing and prompt not in self._failed:
            self._failed.add(prompt)
            raise ModelError("planned", "a failure that was planned", retryable=False)
        names = rounds[done].removeprefix("!").split(",")
        yield Reply(
            "",
            tuple(
                RawCall(f"c{at}", name, json.dumps({"n": (turn * 100 + done) * 100 + at}))
                for at, name in enumerate(names)
            ),
            stop_reason="tool_calls",
        )


def make_tools(mark: Mark = no_mark) -> list[Any]:
    """The tools of the life; all but the reads tell ``mark`` that they have changed the world."""

    def changed(name: str, context: ToolContext) -> str:
        mark("effect", session=context.session_id, key=context.call_key, tool=name)
        return f"{name} ok"

    @tool(effect="read")
    def peek(n: int) -> str:
        """Look."""
        return f"saw {n}"

    @tool(effect="read")
    def bulk(n: int) -> str:
        """Look at much."""
        return f"{n} " * (70_000 // (len(str(n)) + 1))

    @tool(effect="idempotent")
    def poke(n: int, context: ToolContext) -> str:
        """Change something that may be changed again."""
        return changed("poke", context)

    @tool
    def prod(n: int, context: ToolContext) -> str:
        """Change something without saying what a second time would mean."""
        return changed("prod", context)

    @tool(effect="once")
    def fire(n: int, context: ToolContext) -> str:
        """Change something that must not be changed again."""
        return changed("fire", context)

    return [peek, bulk, poke, prod, fire]


async def now(value: Any) -> Any:
    """What a method of either face gives."""
    return await value if inspect.isawaitable(value) else value


async def live(agent: Any, name: str, mark: Mark) -> None:
    """One session: created, told things, run, spawned on, failed, resumed. Each promise is marked once it is made."""
    session = await now(agent.session(WORK, SessionOptions(session_id=name)))
    mark("session", session=name)

    async def sent(result: Any) -> None:
        mark("sent", session=name, run=result.run_id, text=result.text, facts=len(await now(session.facts())))

    await now(session.emit({"type": "note", "payload": {"n": f"{name} 1"}}))
    mark("emit", session=name, payload=f"{name} 1")
    await sent(await now(session.send(f"{name}:poke|peek,peek|fire")))
    await now(session.set_retention({"max_trace_events": 777}))
    mark("retention", session=name, value=777)
    spawned = await now(session.spawn_run_with_id(f"{name}-r1", f"{name}:bulk|prod,poke,peek"))
    mark("spawned", session=name, run=f"{name}-r1")
    await sent(await now(spawned.wait()))
    try:
        await now(session.send(f"{name}:fire|!poke,peek|peek"))
        raise AssertionError("this run was to fail")
    except RunFailed as error:
        failed = error.run_id
        mark("failed", session=name, run=failed)
    spawned = await now(session.spawn_recovery_with_run_id(failed, f"{name}-r2"))
    mark("spawned", session=name, run=f"{name}-r2")
    await sent(await now(spawned.wait()))
    await now(session.emit({"type": "note", "payload": {"n": f"{name} 2"}}))
    mark("emit", session=name, payload=f"{name} 2")


async def main(face: str, db: str, marks: str, durability: Any, laps: int) -> None:
    descriptor = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(what: str, **more: object) -> None:
        os.write(descriptor, json.dumps({"what": what, **more}).encode() + b"\n")

    make = Agent if face == "sync" else AsyncAgent
    # ids and times that are the same each time: so is nearly every byte
    fixed = HostEnvConfig("life", 1_700_000_000_000)
    agent: Any = make(
        db, model=Planner(mark, failing=True), tools=make_tools(mark), durability=durability, host_env=fixed
    )
    for lap in range(laps):
        names = [f"s{lap}"] if face == "sync" else [f"s{lap}{letter}" for letter in "abc"]
        await asyncio.gather(*(live(agent, name, mark) for name in names))
    await now(agent.close())
    mark("closed")


if __name__ == "__main__":
    # small steps, so that a short life holds checkpoints and new beginnings of the WAL too
    from thence.store import checkpoint

    checkpoint.SOFT_BYTES, checkpoint.HARD_BYTES = 300_000, 900_000
    asyncio.run(main(sys.argv[1], str(Path(sys.argv[2])), sys.argv[3], sys.argv[4], int(sys.argv[5])))
