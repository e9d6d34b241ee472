"""What the tests of resume share: a model that can be asked again, tools that say what they ran, eyes on the file."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thence import Agent, AsyncAgent, Fact, SendResult, SessionBusy, SessionOptions, ToolContext, Wait, tool
from thence.chat import Delta, Reply, Request
from thence.host.toolkit import collect
from thence.models.scripted import ScriptedReply
from thence.testing import call, reply

from .eyes import SESSION, Eyes, Rest, dump, head, last_run, rest, run_rows

__all__ = ["SESSION", "Eyes", "Rest", "dump", "head", "last_run", "rest", "run_rows"]

FACES = ("sync", "async")
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

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
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
        said: ScriptedReply = item
        for delta in said.deltas:
            if isinstance(delta, BaseException):
                raise delta
            yield delta
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
    """Tools of every effect. ``ran`` is what they did; ``on`` is called with the key of each call that runs."""

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
    core.ended = True
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


def as_it_was(wait: Wait) -> Any:
    """What these tests say of a `once` call that had started: it was done, with the result that it has undisturbed."""
    assert wait.kind == "unknown_outcome" and wait.arguments is not None
    return {"outcome": "done", "result": f"{wait.tool} {wait.arguments['n']}"}


def answer_all(db: Path, say: Callable[[Wait], Any] = as_it_was, session: str = SESSION) -> list[Wait]:
    """Answer every open wait, by an agent of its own that runs nothing; what was asked."""
    with Agent(db, model=Again([]), durability="process") as agent:
        opened = agent.resume_session(session)
        found = [wait for wait in opened.waits() if wait.state == "open"]
        for wait in found:
            opened.answer(wait.id, say(wait))
    return found


def resume_to_its_end(face: str, db: Path, run_id: str, script: Sequence[Any]) -> After:
    """``resume``; if the run waits for an answer then, it gets one and goes on. What both ran is in one record."""
    first = resume(face, db, run_id, script)
    parked = first.result is not None and first.result.status == "parked"
    if not parked and not (isinstance(first.error, SessionBusy) and first.error.waits):
        return first
    assert answer_all(db)
    after = resume(face, db, run_id, script)
    after.tools.ran[:0] = first.tools.ran
    return after


def with_agent(face: str, db: Path, model: Any, tools: Tools, body: Callable[[Any, Callable[[Any], Any]], Any]) -> Any:
    """``body(agent, await_)`` with an agent of one face; its methods' values go through ``await_``."""
    named = {"model": model, "tools": tools.all(), "durability": "process"}
    if face == "sync":
        with Agent(db, **named) as agent:
            return body(agent, lambda value: value)

    async def asynchronously() -> Any:
        async with AsyncAgent(db, **named) as agent:
            loop = asyncio.get_running_loop()
            wait = lambda value: asyncio.run_coroutine_threadsafe(value, loop).result(30)  # noqa: E731
            return await asyncio.to_thread(body, agent, wait)

    return asyncio.run(asynchronously())


def texts(messages: Iterable[Any]) -> list[tuple[str, str]]:
    """(role, text) of a conversation."""
    return [(message.role, message.text) for message in messages]
