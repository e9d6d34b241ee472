"""A flow driven by hand over a real file: each effect is counted, and the process can die before or after any of them.

The model and the tools are real; they run on this thread, when the flow waits for something, so that a death between
"started" and "ran" is as reachable as one between "ran" and "landed".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from thence import Agent, SessionOptions, inbox
from thence.effects import Commit, Now, Read, Stopped
from thence.host.admitting import Assignment, make_order
from thence.host.drive import Start, SyncMailbox, Take
from thence.host.resuming import resume_flow
from thence.host.sending import send_flow
from thence.host.world import RunWorld

from .kit import SESSION, Again, Tools, die

COUNTED = (Commit, Start, Take)
"""What can change anything, in the file or outside. All other effects are questions, or made of these: dying beside
one of those is dying beside its neighbour, or before its first part or after its last."""


STEER = "And the rest."
"""What is said to a run that is steered."""


class Died(BaseException):
    """The process is gone. No ``except Exception`` and no write may follow."""


class Hand:
    """Performs a flow's effects, and dies ``before`` or after effect number ``at`` (from 1; 0 never)."""

    def __init__(
        self, store: Any, world: RunWorld, mailbox: SyncMailbox, at: int, when: str, ending: Sequence[int]
    ) -> None:
        self.store, self.world, self.mailbox = store, world, mailbox
        self.at, self.when, self.ending = at, when, ending
        self.names: list[str] = []
        self._jobs: deque[Any] = deque()

    def drive(self, flow: Any) -> Any:
        """Perform the whole flow, or die."""
        try:
            effect = next(flow)
            while True:
                try:
                    answer = self._counted(effect)
                except Exception as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as stop:
            return stop.value

    def _counted(self, effect: Any) -> Any:
        if not isinstance(effect, COUNTED):
            return self._perform(effect)
        self.names.append(type(effect).__name__)
        number = len(self.names)
        if number == self.at and self.when == "before":
            raise Died
        answer = self._perform(effect)
        if number == self.at and self.when == "after":
            raise Died
        return answer

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Commit():
                returned = self.store.commit(effect.plan)
                self.world.committed(effect)
                return returned
            case Read():
                return self.store.read(effect.query)
            case Now():
                return self.world.now_ms()
            case Start():
                self._jobs.append(effect.spawn)
                return None
            case Take():
                return self._take(effect)
            case _:
                return self.drive(self.world.interpret(effect))

    def _take(self, effect: Take) -> Any:
        item = self.mailbox.take(0)
        if item is None and self._jobs:
            spawn = self._next_job()
            if spawn.coroutine is not None:
                asyncio.run(spawn.coroutine())
            else:
                spawn.plain()
            item = self.mailbox.take(0)
        return item if item is not None else self.mailbox.take(effect.timeout_s)

    def _next_job(self) -> Any:
        """The job that comes first in ``ending``, by its call's position in the answer; else the one started first."""
        for position in self.ending:
            for spawn in self._jobs:
                if spawn.job.kind == "tool" and spawn.job.key.endswith(f"-c{position}"):
                    self._jobs.remove(spawn)
                    return spawn
        return self._jobs.popleft()


class DiesAt:
    """A store that does its last commit when that is of a certain kind: the process dies after it, or before it."""

    def __init__(
        self, store: Any, statement: str, kind: str | None = None, count: int = 1, when: str = "after"
    ) -> None:
        self._store, self._statement, self._kind = store, statement, kind
        self._left, self._when = count, when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, plan: Any) -> Any:
        self._left -= any(self._is(op) for op in plan.ops)
        if self._left == 0 and self._when == "before":
            raise Died
        returned = self._store.commit(plan)
        if self._left == 0:
            raise Died
        return returned

    def _is(self, op: Any) -> bool:
        if op.statement != self._statement:
            return False
        return self._kind is None or any(row["kind"] == self._kind for row in op.rows)


def dies_at(statement: str, kind: str | None = None, count: int = 1, when: str = "after") -> Callable[[Any], DiesAt]:
    """For ``wrap``: die with the ``count``-th commit that has this statement (and a fact of this kind)."""
    return lambda store: DiesAt(store, statement, kind, count, when)


def by_hand(
    db: Path,
    script: Sequence[Any],
    *,
    prompt: str = "Go.",
    resume: str | None = None,
    at: int = 0,
    when: str = "after",
    ending: Sequence[int] = (),
    session: str = SESSION,
    tools: Tools | None = None,
    stop_in: str | None = None,
    steer_in: str | None = None,
    given: dict[str, Any] | None = None,
    wrap: Callable[[Any], Any] | None = None,
) -> tuple[Hand, Any]:
    """Send ``prompt``, or resume a run, as a process of its own that dies at effect ``at`` and leaves no word.

    Args:
        ending: positions of the calls that end first; the others end in the order in which they started.
        stop_in: a cancel comes in while the call with this key is running.
        steer_in: somebody says ``STEER`` while the call with this key is running.
        wrap: what takes the store's place.

    Returns:
        The hand, and the outcome, the error, or ``Died``.
    """
    tools = tools or Tools()
    agent = Agent(db, model=Again(script), tools=tools.all(), durability="process")
    opened = agent.session("/w", SessionOptions(session_id=session, **(given or {})))
    core: Any = opened._core
    mailbox = SyncMailbox()
    setup = core.setup(streaming=False)
    world = RunWorld(core.surroundings(setup, None, prefer_async=False), mailbox.post)
    order = make_order(core, Assignment(prompt), setup)
    store = core.agent.store if wrap is None else wrap(core.agent.store)
    hand = Hand(store, world, mailbox, at, when, ending)
    if stop_in is not None:
        cancel = Stopped("cancel", "enough", grace_ms=50)
        tools.on = lambda key: world.station.request_stop(cancel) if key == stop_in else None
    if steer_in is not None:

        def steer(key: str) -> None:
            ids = world.station.ids
            if key == steer_in and ids is not None and ids.run_pk is not None:
                core.agent.store.commit(inbox.steer(ids.run_pk, STEER, now_ms=0, request_id="q"))
                world.station.look_again()

        tools.on = steer
    flow = send_flow(order, world) if resume is None else resume_flow(order, world, resume)
    outcome: Any
    try:
        outcome = hand.drive(flow)
    except (Died, Exception) as ended:
        outcome = ended
    die(agent)
    return hand, outcome
