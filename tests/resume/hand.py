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

from thence import Agent
from thence.effects import Commit, IsGuarded, Now, Read, Stopped
from thence.host.admitting import Assignment, make_order
from thence.host.drive import Start, SyncMailbox, Take
from thence.host.resuming import resume_flow
from thence.host.sending import send_flow
from thence.host.world import RunWorld

from .kit import Again, Tools, die, options

COUNTED = (Commit, Start, Take)
"""What can change anything, in the file or outside. All other effects are either questions or made of these: dying beside
one of them is dying beside its neighbour, or before its first part or after its last."""


class Died(BaseException):
    """The process is gone. No ``except Exception`` and no write may follow."""


class Hand:
    """Performs a flow's effects, and dies ``before`` or after effect number ``at`` (from 1; 0 never)."""

    def __init__(self, store: Any, world: RunWorld, mailbox: SyncMailbox, at: int, when: str, lifo: bool) -> None:
        self.store, self.world, self.mailbox = store, world, mailbox
        self.at, self.when, self.lifo = at, when, lifo
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
            case IsGuarded():
                return self.world.is_guarded()
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
            spawn = self._jobs.pop() if self.lifo else self._jobs.popleft()
            if spawn.coroutine is not None:
                asyncio.run(spawn.coroutine())
            else:
                spawn.plain()
            item = self.mailbox.take(0)
        return item if item is not None else self.mailbox.take(effect.timeout_s)


def by_hand(
    db: Path,
    script: Sequence[Any],
    *,
    prompt: str = "Go.",
    resume: str | None = None,
    at: int = 0,
    when: str = "after",
    lifo: bool = False,
    tools: Tools | None = None,
    stop_in: str | None = None,
    given: dict[str, Any] | None = None,
    wrap: Callable[[Any], Any] | None = None,
) -> tuple[Hand, Any]:
    """Send ``prompt``, or resume a run, as a process of its own that dies at effect ``at`` and leaves no word.

    Args:
        stop_in: a cancel comes in while the tool call with this number (from 0) is running.
        wrap: what takes the store's place.

    Returns:
        The hand, and the outcome, the error, or ``Died``.
    """
    tools = tools or Tools()
    agent = Agent(db, model=Again(script), tools=tools.all(), durability="process")
    session = agent.session("/w", options(**(given or {})))
    core: Any = session._core
    mailbox = SyncMailbox()
    setup = core.setup(streaming=False)
    world = RunWorld(core.surroundings(setup, None, prefer_async=False), mailbox.post)
    order = make_order(core, Assignment(prompt), setup)
    store = core.agent.store if wrap is None else wrap(core.agent.store)
    hand = Hand(store, world, mailbox, at, when, lifo)
    if stop_in is not None:
        cancel = Stopped("cancel", "enough", grace_ms=50)
        tools.on = lambda key: world.station.request_stop(cancel) if key == stop_in else None
    flow = send_flow(order, world) if resume is None else resume_flow(order, world, resume)
    outcome: Any
    try:
        outcome = hand.drive(flow)
    except (Died, Exception) as ended:
        outcome = ended
    die(agent)
    return hand, outcome
