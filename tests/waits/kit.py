"""What the tests of waits share: a desk where agents of one face come and go, and plain eyes on what is asked there."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from thence import (
    HostEnv,
    PermissionPolicy,
    SessionOptions,
    ToolContext,
    WaitError,
    tool,
)
from thence.testing import fixed_env

from ..kit import Both, World, canonical, check_session
from ..resume.kit import Again

MS = 1_700_000_000_000
C0, C1, C2 = "t1-r1-c0", "t1-r1-c1", "t1-r1-c2"
NOT_IN_TIME = "Error: not confirmed in time"


class Effects:
    """Tools that say what they did; ``on[name]`` is called in the tool and may return its output or raise."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.on: dict[str, Callable[[str], Any]] = {}
        self.idempotency: dict[str, str] = {}
        self._lock = threading.Lock()

    def act(self, context: ToolContext, name: str, said: Any) -> Any:
        with self._lock:
            self.ran.append((context.call_key, name))
            self.idempotency[context.call_key] = context.idempotency_key
        does = self.on.get(name)
        return does(context.call_key) if does is not None else f"{name} {said}"

    def keys(self) -> list[str]:
        """Call keys in the order in which calls ran."""
        return [key for key, _ in self.ran]

    def times(self) -> Counter[str]:
        """How often each call ran."""
        return Counter(self.keys())

    def tools(self) -> list[Any]:
        @tool(effect="read")
        def look(n: int, context: ToolContext) -> Any:
            return self.act(context, "look", n)

        @tool(effect="read")
        def peek(n: int, context: ToolContext) -> Any:
            return self.act(context, "peek", n)

        @tool
        def put(n: int, context: ToolContext) -> Any:
            return self.act(context, "put", n)

        @tool
        def bash(command: str, context: ToolContext) -> Any:
            return self.act(context, "bash", command)

        @tool(effect="once")
        def charge(n: int, context: ToolContext) -> Any:
            return self.act(context, "charge", n)

        return [look, peek, put, bash, charge]


def box(ran: list[str]) -> list[Any]:
    """Plain tools of many argument types, which note that they ran."""

    def bash(command: str) -> str:
        ran.append("bash")
        return "ran"

    def put(n: int) -> str:
        ran.append("put")
        return "ran"

    def store(value: Any) -> str:
        ran.append("store")
        return "ran"

    def copy(src: str, dst: str) -> str:
        ran.append("copy")
        return "ran"

    return [bash, put, store, copy]


class Desk:
    """One file and one face. Each :meth:`open` is a new agent, so closing and opening is a restart; the clock stands
    still until it is moved."""

    def __init__(self, world: World, script: Sequence[Any], tools: Sequence[Any] = (), **options: Any) -> None:
        self.world, self.script, self.options = world, list(script), options
        self.effects = Effects()
        self.tools = list(tools)
        self.env: HostEnv = fixed_env("t", MS)
        self.model = Again(self.script)
        self.agent: Any = None
        self.agents: list[Both] = []

    @property
    def db(self) -> Path:
        return self.world.db

    def later(self, by_ms: int) -> None:
        """Move the clock."""
        clock: Any = self.env.clock
        clock.set(clock.now_ms() + by_ms)

    async def open(self, session_id: str = "s", **options: Any) -> Both:
        """A session of a new agent; a session that the file holds is opened again."""
        self.model = Again(self.script)
        self.agent = await self.world.agent(
            model=self.model, tools=[*self.effects.tools(), *self.tools], host_env=self.env, durability="process"
        )
        self.agents.append(self.agent)
        return await self.session(session_id, **options)

    async def session(self, session_id: str, **options: Any) -> Both:
        """Another session of the agent that is open."""
        given = SessionOptions(session_id=session_id, **{**self.options, **options})
        opened: Both = await self.agent.session("/w", given)
        return opened

    async def shut(self) -> None:
        """Close all agents: nobody is left."""
        for agent in self.agents:
            await agent.close()
        self.agents.clear()

    async def reopen(self, session_id: str = "s", **options: Any) -> Both:
        """Restart."""
        await self.shut()
        return await self.open(session_id, **options)

    async def parked(self, session_id: str = "s", **options: Any) -> tuple[Both, Any]:
        """A session whose first turn has parked, and what ``send`` said."""
        session = await self.open(session_id, **options)
        result = await session.send("Go.")
        assert result.status == "parked", result
        return session, result


def asks(*patterns: str, **more: Any) -> PermissionPolicy:
    """A policy that asks for these and allows all else."""
    return PermissionPolicy(ask=patterns, **more)


def ids(waiting: Any) -> list[str]:
    """The ids of ``.waits``, whether it holds waits or their ids."""
    return [one if isinstance(one, str) else one.id for one in waiting.waits]


def digest(name: str, arguments: Any) -> str:
    """The digest of a call as §10 and the public API define it, said anew here."""
    return hashlib.sha256(canonical([name, arguments]).encode()).hexdigest()


def said_yes(value: Any) -> bool:
    """Whether a confirmation's recorded value approves: both written forms are legal answers."""
    found = value if isinstance(value, bool) else value["approved"]
    assert isinstance(found, bool)
    return found


@contextmanager
def wait_error(*codes: str) -> Iterator[None]:
    """The block must fail with a WaitError of one of these codes."""
    with pytest.raises(WaitError) as caught:
        yield
    assert caught.value.code in codes, caught.value


async def approve_all(session: Both, run_id: str, at_most: int = 9) -> Any:
    """Approve whatever is open and go on, until the run is parked no more; returns its result."""
    for _ in range(at_most):
        for wait in await session.waits():
            await session.answer(wait.id, True)
        result = await session.resume_run(run_id)
        if result.status != "parked":
            return result
    raise AssertionError(f"parked {at_most} times")


async def events_of(session: Both, run_id: str, kind: str) -> list[dict[str, Any]]:
    """Payloads of a run's events of one type, in order."""
    return [dict(event.payload) for event in await session.run_events(run_id) if event.type == kind]


async def ended_well(session: Both, run_id: str) -> list[Any]:
    """What must hold after a run that parked has completed: one run, one branch, a good log, gapless events."""
    facts = await check_session(session)
    run = await session.run_snapshot(run_id)
    assert (run.status, run.state, run.resumed_from) == ("completed", "completed", None)
    assert [one.id for one in await session.runs()] == [run_id]
    assert await session.waits() == []
    events = await session.run_events(run_id)
    assert [event.metadata["sequence"] for event in events] == list(range(len(events)))
    said = [event.type for event in events]
    # the run never ended in between, so it neither starts nor ends twice
    assert said.count("agent_start") == said.count("agent_end") == 1 and said[-1] == "agent_end"
    return facts


class Plain:
    """`sqlite3` and nothing of thence."""

    def __init__(self, db: Path) -> None:
        self.db = sqlite3.connect(f"file:{db}?mode=rw", uri=True, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA wal_autocheckpoint=0")

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> Any:
        found = self.db.execute(sql, values).fetchone()
        return None if found is None else found[0]

    def answer(self, verb: str = "INSERT", **other: Any) -> None:
        """An answer row for the only wait of the file; ``other`` overrides what would be right."""
        pk, said, opened = self.rows("SELECT wait_pk, digest, opened_ms FROM wait")[0]
        row = {"wait_pk": pk, "value": "true", "by": "plain", "digest": said, "answered_ms": opened + 1, **other}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.db.execute(f"{verb} INTO wait_answer({names}) VALUES({marks})", tuple(row.values()))

    def state(self) -> dict[str, list[Any]]:
        """All that could have been changed by an answer."""
        tables = ("wait", "wait_answer", "inbox", "fact", "run", "inflight")
        return {name: self.rows(f"SELECT * FROM {name} ORDER BY 1") for name in tables}
