"""A session, async face: the flows of `session`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from .canonical import Json
from .chat import Message
from .compaction import Compaction
from .effects import Flow, Stopped
from .events import Event, EventPage
from .facts import Fact
from .host import operations as ops
from .host import parking, passivating, recovering, short, steering, waiving
from .host.accounting import session_usage
from .host.admitting import Assignment
from .host.core import STOP_WAIT_S
from .host.drive import AsyncMailbox, adrive
from .host.finishing import finish_soon
from .host.guard import check_not_inside
from .host.leaving import end_session_soon
from .host.plain_world import PlainWorld
from .host.running import LEAVING, AsyncRunning
from .host.spawned import AsyncSpawnedRun
from .host.streams import AsyncRunStream, afollow
from .results import SendResult, compaction_of, result_of
from .runs import Run, SessionUsage, TraceEvent
from .session_base import SessionBase, nothing
from .session_options import OnInterrupted
from .waits import Wait

R = TypeVar("R")


class AsyncSession(SessionBase):
    """One long-lived conversation, async face: the same methods, awaited where they touch the file."""

    async def _do(self, flow: Flow[R]) -> R:
        core = self._core
        core.check_open()
        return await adrive(
            core.within_scope(flow), core.agent.store, PlainWorld(core.env), AsyncMailbox.here(), core.agent.workers
        )

    async def _finish(self, flow: Flow[R]) -> R:
        """For what claims the session: cancelled, it is done before that is passed on."""
        self._core.check_open()
        return await finish_soon(self._core, self._core.within_scope(flow))

    async def send(
        self,
        prompt: str,
        *,
        run_id: str | None = None,
        output_type: Any = None,
        on_interrupted: OnInterrupted | None = None,
    ) -> SendResult:
        """See :meth:`Session.send`. Cancelling the task interrupts the run, which can be resumed."""
        running = AsyncRunning(self._core, self._turn(prompt, run_id, output_type, on_interrupted))
        await running.start(nothing)
        return result_of(await running.join(), running.assignment.output)

    def stream(
        self,
        prompt: str,
        *,
        run_id: str | None = None,
        output_type: Any = None,
        on_interrupted: OnInterrupted | None = None,
    ) -> AsyncRunStream:
        """See :meth:`Session.stream`. The run starts with the first step of the iteration."""
        running = AsyncRunning(self._core, self._turn(prompt, run_id, output_type, on_interrupted), streaming=True)
        return AsyncRunStream(running, self._do)

    async def resume_run(self, id: str, *, run_id: str | None = None, output_type: Any = None) -> SendResult:
        """See :meth:`Session.resume_run`."""
        running = AsyncRunning(self._core, self._recovery(id, run_id, output_type))
        await running.start(nothing)
        return result_of(await running.join(), running.assignment.output)

    async def spawn_run_with_id(self, run_id: str, prompt: str, *, output_type: Any = None) -> AsyncSpawnedRun:
        """See :meth:`Session.spawn_run_with_id`."""
        return await self._spawn(self._turn(prompt, run_id, output_type, "raise"))

    async def spawn_recovery_with_run_id(
        self, checkpoint_run_id: str, run_id: str, *, output_type: Any = None
    ) -> AsyncSpawnedRun:
        """See :meth:`Session.spawn_recovery_with_run_id`."""
        return await self._spawn(self._recovery(checkpoint_run_id, run_id, output_type))

    async def _spawn(self, assignment: Assignment) -> AsyncSpawnedRun:
        core = self._core
        known = await self._do(recovering.known_run(core, assignment))
        if known is not None:
            return AsyncSpawnedRun(known, True, lambda: self._wait_for(assignment))
        running = AsyncRunning(core, assignment)
        await running.start_and_begin()
        run = await self._do(recovering.must_run(core, assignment))
        return AsyncSpawnedRun(run, running.was_replayed, lambda: self._join(running))

    async def _join(self, running: AsyncRunning) -> SendResult:
        return result_of(await running.join(leaving=False), running.assignment.output)

    async def _wait_for(self, assignment: Assignment) -> SendResult:
        return result_of(await self._do(recovering.await_run(self._core, assignment)), assignment.output)

    async def compact(self) -> Compaction:
        """See :meth:`Session.compact`."""
        running = AsyncRunning(self._core, Assignment(compact=True))
        await running.start(nothing)
        return compaction_of(await running.join())

    async def waive(self, digest: str, reason: str) -> None:
        """See :meth:`Session.waive`."""
        await self._finish(waiving.tell_gate(self._core, waiving.check_waiver(digest, reason)))

    async def report_verification(self, digest: str, passed: bool, report: Json = None) -> None:
        """See :meth:`Session.report_verification`."""
        await self._finish(waiving.tell_gate(self._core, waiving.check_report(digest, passed, report)))

    async def takeover(self, force: bool = False) -> None:
        """See :meth:`Session.takeover`."""
        await self._finish(short.take_over(self._core, force=force))

    async def history(self) -> list[Message]:
        """See :meth:`Session.history`."""
        return await self._do(ops.history(self._core))

    async def facts(self, after_seq: int = 0) -> list[Fact]:
        """See :meth:`Session.facts`."""
        return await self._do(ops.list_facts(self._core, after_seq))

    async def runs(self) -> list[Run]:
        """See :meth:`Session.runs`."""
        return await self._do(ops.list_runs(self._core))

    async def run_snapshot(self, run_id: str) -> Run | None:
        """See :meth:`Session.run_snapshot`."""
        return await self._do(ops.run_snapshot(self._core, run_id))

    async def current_run(self) -> Run | None:
        """See :meth:`Session.current_run`."""
        return await self._do(ops.current_run(self._core))

    async def run_events(self, run_id: str) -> list[Event]:
        """See :meth:`Session.run_events`."""
        return await self._do(ops.all_events(self._core, run_id, None))

    async def run_event_page(
        self, run_id: str, after_sequence: int | None = None, limit: int = 256
    ) -> EventPage | None:
        """See :meth:`Session.run_event_page`."""
        return await self._do(ops.event_page(self._core, run_id, after_sequence, limit))

    async def events(self, after_sequence: int | None = None) -> list[Event]:
        """See :meth:`Session.events`."""
        return await self._do(ops.all_events(self._core, None, after_sequence))

    def tail(self, run_id: str, after_sequence: int | None = None) -> AsyncIterator[Event]:
        """See :meth:`Session.tail`."""
        self._core.check_open()
        tail = self._tail(run_id, after_sequence)
        return afollow(tail, self._do)

    async def trace_events(self) -> list[TraceEvent]:
        """See :meth:`Session.trace_events`."""
        return await self._do(ops.list_traces(self._core))

    async def usage(self) -> SessionUsage:
        """See :meth:`Session.usage`."""
        return await self._do(session_usage(self._core.agent.scope, self._core.session_id))

    async def emit(self, event: Event | Mapping[str, Any]) -> None:
        """See :meth:`Session.emit`."""
        await self._do(ops.emit(self._core, ops.check_event(event)))

    async def waits(self, run_id: str | None = None) -> list[Wait]:
        """See :meth:`thence.Session.waits`."""
        return await self._do(parking.list_waits(self._core, run_id))

    async def answer(self, wait_id: str, value: Any, *, digest: str | None = None, by: str | None = None) -> None:
        """See :meth:`thence.Session.answer`."""
        await self._do(parking.answer(self._core, wait_id, value, digest, by))

    async def confirm(self, call_key: str, approved: bool, reason: str | None = None, *, by: str | None = None) -> None:
        """See :meth:`thence.Session.confirm`."""
        await self._do(parking.confirm(self._core, call_key, approved, reason, by))

    async def cancel(self) -> bool:
        """See :meth:`Session.cancel`."""
        return await self._finish(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), None))

    async def cancel_run(self, run_id: str) -> bool:
        """See :meth:`Session.cancel_run`."""
        return await self._finish(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), run_id))

    async def steer(self, text: str, request_id: str | None = None) -> bool:
        """See :meth:`Session.steer`."""
        return await self._do(steering.steer(self._core, text, request_id))

    async def interrupt(self, reason: str = "") -> bool:
        """See :meth:`Session.interrupt`."""
        return await self._do(ops.stop(self._core, Stopped("interrupt", reason), None))

    async def passivate(self, deadline_ms: int | None = None) -> bool:
        """See :meth:`Session.passivate`."""
        return await self._do(passivating.passivate(self._core, deadline_ms))

    async def set_retention(self, limits: Mapping[str, object]) -> None:
        """See :meth:`Session.set_retention`."""
        await self._do(ops.set_retention(self._core, limits))

    async def close(self) -> None:
        """See :meth:`Session.close`."""
        core = self._core
        check_not_inside(core.session_id)
        operation = core.agent.live.get(core.session_id)
        core.closed = True
        if isinstance(operation, AsyncRunning):
            operation.request_stop(LEAVING)
            await operation.ended(STOP_WAIT_S)
        await end_session_soon(core)
        core.let_guard_go()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
