"""The async face of the writer: one daemon thread that commits what all event loops queued meanwhile (§8)."""

from __future__ import annotations

import asyncio
import threading
from queue import Empty, SimpleQueue

from ..errors import StoreError
from ..plan import Plan, Returned
from .group import Job
from .writer import Writer


class _AsyncJob(Job):
    __slots__ = ("future",)

    def __init__(self, plan: Plan, future: asyncio.Future[None]) -> None:
        super().__init__(plan)
        self.future = future


class WriterThread:
    """Commits for coroutines. The thread is started by the first one, and sleeps while there is nothing to do."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._jobs: SimpleQueue[_AsyncJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def commit(self, plan: Plan) -> Returned:
        """Commit ``plan``. Once queued it is awaited to its end, also when the awaiting task is cancelled.

        Raises:
            StoreError: the plan was refused or could not be written.
            asyncio.CancelledError: after the end of the commit.
        """
        job = _AsyncJob(plan, asyncio.get_running_loop().create_future())
        self._put(job)
        cancelled: asyncio.CancelledError | None = None
        while not job.future.done():
            try:
                await asyncio.shield(job.future)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        answer = job.answer
        if isinstance(answer, StoreError):
            raise answer
        if answer is None:
            raise StoreError("the writer thread ended without an answer")
        return answer

    def _put(self, job: _AsyncJob) -> None:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            if self._thread is None:
                # daemon: an unclosed store must not keep the interpreter; a commit cut by the exit is whole or absent
                self._thread = threading.Thread(target=self._run, name="thence-writer", daemon=True)
                self._thread.start()
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            jobs = self._take()
            if jobs:
                try:
                    self._writer.commit(jobs)
                finally:
                    # a fault of ours must not leave a coroutine waiting
                    for job in jobs:
                        _wake(job)
            if self._stopping:
                return

    _stopping = False

    def _take(self) -> list[_AsyncJob]:
        first = self._jobs.get()
        jobs = [first] if first is not None else []
        self._stopping = first is None
        while not self._stopping:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._stopping = True
            else:
                jobs.append(job)
        return jobs

    def stop(self) -> threading.Thread | None:
        """Take no more plans; the thread commits those it has and ends. Returns it for joining."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._jobs.put(None)
            return self._thread


def _wake(job: _AsyncJob) -> None:
    try:
        job.future.get_loop().call_soon_threadsafe(_set, job.future)
    except RuntimeError:
        return  # its loop is closed: the plan is committed, and nobody is left to hear of it


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
