"""What the tests of resume share: a model that can be asked again, tools that say what they ran, eyes on the file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thence import Agent, AsyncAgent, Fact, SendResult, SessionOptions, ToolContext, tool
from thence.host.toolkit import collect
from thence.models.scripted import ScriptedReply
from thence.testing import call, reply

FACES = ("sync", "async")
SESSION = "s"
OUTCOME_UNKNOWN = "interrupted, outcome unknown"


class Again:
    """Answers a request with the script's item number k, k being how many answers the conversation has: whoever asks
    the same again, in whatever process, gets the same. An item that is an exception is raised (once, unless
    ``for_ever``)."""

    name = "again"

    def __init__(self, script: Sequence[Any], *, for_ever: bool = False) -> None:
        self.script, self.for_ever = list(script), for_ever
        self.requests: list[Any] = []
        self._raised: set[int] = set()

    def stream(self, request):
        self.requests.append(request)
        number = sum(message.role == "assistant" for message in request.messages)
        item = self.script[number]
        if isinstance(item, tuple):
            first, item = item
            if number not in self._raised:
                self._raised.add(number)
                raise first
        if isinstance(item, BaseException):
            raise item
        said: ScriptedReply = item(request) if callable(item) else item
        yield from said.deltas
        yield said.reply


@dataclass(frozen=True, slots=True)
class Ran:
    """One execution of a tool."""

    call_key: str
    name: str
    n: int
    idempotency_key: str
    run_id: str


class Tools:
    """Tools of every effect. ``ran`` is what they did; ``on`` is called with each call's key before it does anything."""

    def __init__(self, on: Callable[[str], Any] | None = None) -> None:
        self.ran: list[Ran] = []
        self.on = on or (lambda key: None)
        self._lock = threading.Lock()

    def run(self, context: ToolContext, name: str, n: int) -> str:
        with self._lock:
            self.ran.append(Ran(context.call_key, name, n, context.idempotency_key, context.run_id))
        self.on(context.call_key)
        return f"{name} {n}"

    def keys(self) -> list[str]:
        """Call keys in the order in which calls ran."""
        return [one.call_key for one in self.ran]

    def times(self) -> Counter[str]:
        """How often each call ran."""
        return Counter(self.keys())

    def all(self) -> list[Any]:
        """The tools, from now on bound to this record. (They are described once: that costs more than a turn.)"""
        _bound[0] = self
        if not _described:
            _described.extend(_describe(lambda: _bound[0]))
        return _described

    def own(self) -> list[Any]:
        """Tools of this record alone, for two agents that run at the same time."""
        return _describe(lambda: self)


_bound: list[Tools] = [Tools()]
_described: list[Any] = []


def _describe(whose: Callable[[], Tools]) -> list[Any]:
    @tool(effect="read")
    def look(n: int, context: ToolContext) -> str:
        return whose().run(context, "look", n)

    @tool
    def add(n: int, context: ToolContext) -> str:
        return whose().run(context, "add", n)

    @tool(effect="idempotent")
    def put(n: int, context: ToolContext) -> str:
        return whose().run(context, "put", n)

    @tool(effect="once")
    def charge(n: int, context: ToolContext) -> str:
        return whose().run(context, "charge", n)

    @tool
    def fail(n: int, context: ToolContext) -> str:
        whose().run(context, "fail", n)
        raise ValueError(f"cannot {n}")

    return list(collect([look, add, put, charge, fail]).values())


def calls(*named: str) -> ScriptedReply:
    """An answer with calls, each written as ``name:n``; ``name:{...`` passes the raw text on."""
    made = []
    for one in named:
        name, _, n = one.partition(":")
        made.append(call(name, n if n.startswith("{") else {"n": int(n)}))
    return reply("", calls=made, usage={"prompt_tokens": 10, "completion_tokens": 1})


def done(text: str = "Done.") -> ScriptedReply:
    """A last answer."""
    return reply(text, usage={"prompt_tokens": 100, "completion_tokens": 5})


# ---------------------------------------------------------------- agents that die without a word
def die(agent: Agent | AsyncAgent) -> None:
    """What the kernel does when a process dies: its lock is free, nothing was said, the owner's file stays."""
    core: Any = agent._core
    store: Any = core.store
    store._owner_file.forget()
    writing = store._thread.stop()
    if writing is not None:
        writing.join()
    store._let_go()
    store._broken = "this process is dead"
    core.closed = True
    core.workers.close()


def options(**given: Any) -> SessionOptions:
    """Options of the session that these tests use."""
    return SessionOptions(session_id=SESSION, **given)


@dataclass(slots=True)
class After:
    """A resume that was tried: its result or its error, and what was called."""

    tools: Tools
    model: Again
    result: SendResult | None = None
    error: BaseException | None = None
    facts: list[Fact] = field(default_factory=list)
    history: list[Any] = field(default_factory=list)

    @property
    def nothing_called(self) -> bool:
        return not self.tools.ran and not self.model.requests


def resume(
    face: str,
    db: Path,
    run_id: str,
    script: Sequence[Any] = (),
    *,
    tools: Tools | None = None,
    new_id: str | None = None,
    session: str = SESSION,
    given: Mapping[str, Any] | None = None,
    read: bool = True,
) -> After:
    """``resume_run`` by a new agent of one face, in this process but under an owner of its own."""
    after = After(tools or Tools(), Again(script))
    named: dict[str, Any] = {"model": after.model, "tools": after.tools.all(), "durability": "process"}
    opts = SessionOptions(**given) if given else None

    async def asynchronously() -> None:
        async with AsyncAgent(db, **named) as agent:
            opened = await agent.resume_session(session, opts)
            try:
                after.result = await opened.resume_run(run_id, run_id=new_id)
            except Exception as error:
                after.error = error
            if read:
                after.facts, after.history = await opened.facts(), await opened.history()

    if face == "async":
        asyncio.run(asynchronously())
        return after
    with Agent(db, **named) as agent:
        opened = agent.resume_session(session, opts)
        try:
            after.result = opened.resume_run(run_id, run_id=new_id)
        except Exception as error:
            after.error = error
        if read:
            after.facts, after.history = opened.facts(), opened.history()
    return after


# ---------------------------------------------------------------- eyes
class Eyes:
    """Plain `sqlite3`, reading and, where a test damages a file on purpose, writing."""

    def __init__(self, db: Path) -> None:
        self.db = sqlite3.connect(f"file:{db}?mode=rw", uri=True, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA wal_autocheckpoint=0")

    def __enter__(self) -> Eyes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> Any:
        found = self.db.execute(sql, values).fetchone()
        return None if found is None else found[0]


def head(db: Path, session: str = SESSION) -> str:
    """The head hash of a session's live branch: equal for equal logs (§4)."""
    with Eyes(db) as eyes:
        return eyes.one("SELECT head_hash FROM sessions WHERE session_id = ?", session)


def run_rows(db: Path) -> dict[str, Any]:
    """Every run's own row and identity, whole."""
    with Eyes(db) as eyes:
        found = eyes.rows("SELECT i.run_id, i.*, r.* FROM run_identity i LEFT JOIN run r USING(run_pk) ORDER BY 1")
    return {row[0]: row for row in found}


def last_run(db: Path, session: str = SESSION) -> str | None:
    """The id of the newest run."""
    with Eyes(db) as eyes:
        return eyes.one(
            "SELECT run_id FROM run_identity i JOIN session s USING(session_pk) WHERE session_id = ?"
            " ORDER BY run_pk DESC",
            session,
        )


def dump(db: Path) -> list[str]:
    """Everything that is in the file, but for who has it open."""
    with Eyes(db) as eyes:
        kept = []
        for line in eyes.db.iterdump():
            if not line.startswith('INSERT INTO "owner"'):
                kept.append(line)
        return kept


@dataclass(frozen=True, slots=True)
class Rest:
    """What a dead process left: facts on the live branch, and calls in flight by state."""

    kinds: tuple[str, ...]
    settled: frozenset[str]
    landed: frozenset[str]
    started: Mapping[str, str | None]

    @property
    def closed(self) -> bool:
        return not self.kinds or self.kinds[-1] == "turn.ended"


def rest(db: Path) -> Rest:
    """Read what is there, with nothing but SQLite."""
    with Eyes(db) as eyes:
        facts = eyes.rows("SELECT kind, key FROM facts WHERE session_id = ? ORDER BY seq", SESSION)
        flight = eyes.rows("SELECT call_key, effect, state FROM inflight")
    return Rest(
        tuple(kind for kind, _ in facts),
        frozenset(key for kind, key in facts if kind in ("tool.result", "budget.denied")),
        frozenset(key for key, _, state in flight if state == "landed"),
        {key: effect for key, effect, state in flight if state == "started"},
    )


def texts(messages: Iterable[Any]) -> list[tuple[str, str]]:
    """(role, text) of a conversation."""
    return [(message.role, message.text) for message in messages]
