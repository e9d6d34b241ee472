"""What the tests of turns share: one scenario for both faces, scripts, and the laws that every log must keep.

A scenario is written once, with ``await``. :class:`Both` makes the blocking face awaitable by giving each of its calls
a thread of its own, so that a scenario may do two things at once in either face.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from thence import Agent, AsyncAgent, AsyncSession, Event, Fact, Session, SessionOptions
from thence.host.streams import AsyncRunStream, RunStream
from thence.testing import ScriptedModel

PATIENCE_S = 20.0
"""How long a test waits for what must happen. Never asserted: only a broken engine ever waits so long."""

_DONE = object()


async def in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Run a blocking call on a thread of its own; raises what it raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(put: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            put(value)

    def body() -> None:
        try:
            value = function(*args, **named)
        except BaseException as error:
            loop.call_soon_threadsafe(settle, future.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, value)

    threading.Thread(target=body, name="scenario", daemon=True).start()
    return await future


class Both:
    """An agent or a session of either face; methods are awaited, properties are read."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.blocking = isinstance(raw, Agent | Session)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.raw, name)
        if not callable(value):
            return value

        async def method(*args: Any, **named: Any) -> Any:
            if self.blocking:
                return wrapped(await in_thread(value, *args, **named))
            answer = value(*args, **named)
            return wrapped(await answer if inspect.isawaitable(answer) else answer)

        return method

    async def tail_list(self, *args: Any, **named: Any) -> list[Event]:
        """All that ``tail`` gives until it ends by itself."""
        if self.blocking:
            events: list[Event] = await in_thread(lambda: list(self.raw.tail(*args, **named)))
            return events
        return [event async for event in self.raw.tail(*args, **named)]


class BothStream:
    """A stream of either face."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if isinstance(self.raw, AsyncRunStream):
            return await self.raw.__anext__()
        taken: Any = await in_thread(next, self.raw, _DONE)
        if taken is _DONE:
            raise StopAsyncIteration
        event: Event = taken
        return event

    async def leave(self) -> None:
        """What the end of a ``with`` block does."""
        await (self.raw.aclose() if isinstance(self.raw, AsyncRunStream) else in_thread(self.raw.close))

    async def result(self) -> Any:
        """How the run ended."""
        if isinstance(self.raw, AsyncRunStream):
            return await self.raw.wait()
        return await in_thread(self.raw.wait)


def wrapped(value: Any) -> Any:
    """``value``, with a face of its own put behind the common one."""
    if isinstance(value, Session | AsyncSession):
        return Both(value)
    return BothStream(value) if isinstance(value, RunStream | AsyncRunStream) else value


@cache
def new_file() -> bytes:
    """A database that was made and closed."""
    with tempfile.TemporaryDirectory() as folder:
        Agent(Path(folder) / "a.db").close()
        return (Path(folder) / "a.db").read_bytes()


def fill(path: Path) -> None:
    """Put a new database there, unless there is one: to make it is a third of the work of a short test."""
    with contextlib.suppress(FileExistsError):
        path.touch(0o600, exist_ok=False)
        path.write_bytes(new_file())


class World:
    """A folder, a face, and the agents that a test opens there. ``model`` is that of the agent opened last."""

    def __init__(self, face: str, folder: Path) -> None:
        self.face, self.folder = face, folder
        self.model = ScriptedModel([])
        self._agents: list[Both] = []

    @property
    def db(self) -> Path:
        return self.folder / "a.db"

    async def agent(self, script: Iterable[Any] = (), db: Path | None | str = "a.db", **given: Any) -> Both:
        """An agent with a scripted model (or the one given), on a file of the folder or in memory."""
        self.model = ScriptedModel(script)
        given.setdefault("model", self.model)
        path = self.folder / db if isinstance(db, str) else db
        if isinstance(db, str):
            fill(self.folder / db)
        make = Agent if self.face == "sync" else AsyncAgent
        agent = Both(make(path, **given))
        self._agents.append(agent)
        return agent

    async def session(self, script: Iterable[Any] = (), tools: Sequence[Any] = (), **options: Any) -> Both:
        """A new session of a new agent; ``options`` are the session's."""
        agent = await self.agent(script, tools=tools)
        session: Both = await agent.session(self.folder / "work", SessionOptions(**options))
        return session

    async def close(self) -> None:
        for agent in reversed(self._agents):
            await agent.close()


class Gate:
    """A tool or a model waits here until the test opens it; ``waiting`` counts who came. Works in both faces."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def open(self) -> None:
        self._open.set()

    def _came(self) -> None:
        with self._lock:
            self.waiting += 1

    def wait(self) -> None:
        self._came()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"

    async def await_(self) -> None:
        self._came()
        await until(self._open.is_set)

    async def came(self, number: int = 1) -> None:
        """Wait until ``number`` have come."""
        await until(lambda: self.waiting >= number)


async def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fails the test when it never comes true."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        await asyncio.sleep(0.002)


def canonical(value: Any) -> str:
    """Canonical JSON as §11 defines it, said anew here."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def check_log(facts: Sequence[Fact]) -> None:
    """The laws of one branch (§4): seq 1..n, keys unique, and a SHA-256 chain over what is stored."""
    previous = "00" * 32
    for seq, fact in enumerate(facts, 1):
        assert fact.seq == seq
        assert fact.prev_hash == previous
        body = canonical([fact.seq, fact.kind, fact.key, fact.cause, fact.text])
        assert fact.hash == hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()
        previous = fact.hash
    assert len({fact.key for fact in facts}) == len(facts)


def check_messages(messages: Iterable[Any]) -> None:
    """What every provider demands (§4): each call has exactly one result, in call order, right after its answer."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message.role == "tool":
            assert waiting and message.call_key == waiting.pop(0), f"a result out of place: {message.call_key}"
            continue
        assert not waiting, f"calls without a result: {waiting}"
        if message.role == "assistant":
            waiting = [call.key for call in message.calls]
            assert len(set(waiting)) == len(waiting) and not seen & set(waiting)
            seen |= set(waiting)
            assert all(isinstance(json.loads(call.arguments), dict) for call in message.calls)
    assert not waiting, f"calls without a result: {waiting}"


async def check_session(session: Both) -> list[Fact]:
    """Both laws over a whole session; returns its facts."""
    facts: list[Fact] = await session.facts()
    check_log(facts)
    check_messages(await session.history())
    return facts


def stored(fact: Fact) -> dict[str, Any]:
    """The payload of a fact as it is in the file."""
    payload: Any = fact.to_dict()["payload"]
    assert isinstance(payload, dict)
    return payload


def results(facts: Iterable[Fact]) -> list[tuple[str, bool, str]]:
    """(call key, ok, text) of each result in a log, denials included, in order."""
    found: list[tuple[str, bool, str]] = []
    for fact in facts:
        payload = stored(fact)
        if fact.kind == "tool.result":
            found.append((fact.key, bool(payload["ok"]), _shown(payload["parts"])))
        elif fact.kind == "budget.denied":
            found.append((fact.key, False, f"Budget exhausted on '{payload['resource']}': {payload['reason']}"))
    return found


def _shown(parts: Any) -> str:
    return "\n".join(part["text"] if part["type"] == "text" else canonical(part["value"]) for part in parts)


def kinds(facts: Iterable[Fact]) -> list[str]:
    """The kinds of a log, in order."""
    return [fact.kind for fact in facts]


def types(events: Iterable[Event]) -> list[str]:
    """The types of events, in order."""
    return [event.type for event in events]
