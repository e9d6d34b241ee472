"""The one writer of a file in this process: group commit by leader and followers (§8).

Whoever gets the lock commits every plan queued by then in one transaction; the others find their answers when they
get the lock. A lone caller pays no thread hop. When a group fails it is rolled back and its plans are performed one
by one, so that only the guilty one fails.

An interrupt may come between any two bytecodes, so nothing here relies on code that runs "after": what COMMIT did is
recorded by the same C call that runs it, and `Writer.commit` goes on until its plans have answers and the connection
is out of its transaction. Only then is the interrupt raised again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import FileReplaced, StoreError
from ..plan import Plan
from .checkpoint import Checkpointer
from .faults import breaks_connection, corrupt_message, is_corruption, translate
from .group import Group, Job, again
from .locks import Gate
from .perform import FAILURES, perform
from .samefiles import SameFiles
from .sql import Schema

_COMMIT = ("COMMIT",)
_MAX_ATTEMPTS = 5

_log = logging.getLogger("thence.store")


class Writer:
    """Commits plans on one connection; all of it is guarded by ``lock``.

    Args:
        path: the file, or None for a database in memory (no files to watch, no turns to take).
        power: whether durable plans are synced before the acknowledgement.
        reopen: gives a fresh connection to a file that was verified.
        verify: raises SchemaChanged when our objects are no longer what they were.
        prelude: performed once, in the first transaction.
    """

    def __init__(
        self,
        schema: Schema,
        path: Path | None,
        *,
        power: bool,
        reopen: Callable[[], sqlite3.Connection],
        verify: Callable[[sqlite3.Connection], None],
        gate: Gate | None,
        checkpointer: Checkpointer | None,
        prelude: Plan,
    ) -> None:
        self.lock = threading.Lock()
        self.commits = self.groups = self.syncs = 0
        self.introduced = False
        self.dead: StoreError | None = None
        self.connection: sqlite3.Connection | None = None
        self._schema, self._path, self._power = schema, path, power
        self._reopen, self._verify = reopen, verify
        self._gate, self._checkpointer = gate, checkpointer
        self._prelude = prelude
        self._queue: deque[Job] = deque()
        self._group: Group | None = None
        self._files = None if path is None else SameFiles(path)
        self._full: bool | None = None
        self._cookie: int | None = None
        self._cursor = self._adopt()

    @property
    def wal_bytes(self) -> int:
        """Length of the -wal; 0 in memory."""
        return self._files.wal_bytes_now() if self._files is not None else 0

    def may_be_closed(self) -> bool:
        """Whether closing the connection would touch nothing of others."""
        return self._files is None or self._files.may_be_closed()

    def commit(self, jobs: Sequence[Job]) -> None:
        """Give each of ``jobs`` its answer, a value or an error.

        Raises:
            BaseException: an interrupt that came meanwhile, after the answers.
        """
        interrupt: BaseException | None = None
        attempts = 0
        while True:
            try:
                if attempts == 0:
                    self._queue.extend(jobs)
                attempts += 1
                with self.lock:
                    self._lead(jobs)
                    if self._gate is not None:
                        self._gate.leave()
                break
            except BaseException as error:
                # raised below, once every plan has its answer
                interrupt = error
                if isinstance(error, Exception) and attempts >= _MAX_ATTEMPTS:
                    raise
        if interrupt is not None:
            raise interrupt
        if self._checkpointer is not None and self._checkpointer.due(idle=not self._queue):
            self.checkpoint()

    # -- all below: with the lock held

    def _lead(self, own: Sequence[Job]) -> None:
        self._recover()
        taken: list[Job] = []
        while self._queue:
            taken.append(self._queue.popleft())
        # an interrupted leader may have taken jobs and lost them: each caller brings its own along
        jobs = [job for job in dict.fromkeys((*taken, *own)) if job.answer is None]
        if not jobs:
            return
        if self.dead is None:
            if self._gate is not None:
                self._gate.enter()
            fault = self._transact(jobs)
            if fault is not None and len(jobs) == 1:
                jobs[0].answer = fault
        for job in jobs:
            if job.answer is None:
                job.answer = again(self.dead) if self.dead is not None else self._transact((job,)) or job.answer

    def _transact(self, jobs: Sequence[Job]) -> StoreError | None:
        """One transaction for all of ``jobs``: settles them, or leaves them all unsettled and returns why."""
        self._group = group = Group(jobs)
        try:
            cursor = self._cursor if self.connection is not None else self._adopt()
            self._set_synchronous(cursor, self._power and group.durable)
            cursor.execute("BEGIN IMMEDIATE")
            (cookie,) = cursor.execute("PRAGMA schema_version").fetchone()
            if cookie != self._cookie:
                self._verify(cursor.connection)
                self._cookie = cookie
            if not self.introduced:
                perform(cursor, self._prelude, self._schema, self._path)
            for job in jobs:
                group.answers.append(perform(cursor, job.plan, self._schema, self._path))
            if self._files is not None:
                self._files.look(group.durable)
            # one C call commits and records it: no interrupt can come between the two
            group.committed.extend(map(cursor.execute, _COMMIT))
        except FAILURES as error:
            return self._failed(error)
        self._acknowledge(group)
        return None

    def _recover(self) -> None:
        group = self._group
        if group is not None and group.committed:
            self._acknowledge(group)
        elif self.connection is not None and self.connection.in_transaction:
            self.roll_back()
        self._group = None

    def _acknowledge(self, group: Group) -> None:
        fault = self._look_again(group)
        if fault is not None:
            self.dead = fault
        else:
            self.introduced = True
            self.groups += 1
            self.commits += len(group.jobs)
            self.syncs += self._full is True
        for job, answer in zip(group.jobs, group.answers, strict=True):
            job.answer = answer if fault is None else fault
        self._group = None

    def _failed(self, error: BaseException) -> StoreError:
        cause = error.__cause__ or error
        self.roll_back()
        self._group = None
        if breaks_connection(cause):
            self._drop()
        fault = translate(error, self._path, "committing")
        if is_corruption(cause):
            fault = StoreError(corrupt_message(self._path, cause))
            _log.error("%s", fault)
        if is_corruption(cause) or isinstance(fault, FileReplaced):
            self.dead = fault
        return fault

    def _adopt(self) -> sqlite3.Cursor:
        self._full = self._cookie = None
        connection = self._reopen()
        try:
            if self._files is not None:
                # a first read makes SQLite open the -wal, which from then on must stay the same file
                connection.execute("PRAGMA schema_version").fetchone()
                self._files.opened()
                if self._checkpointer is not None:
                    self._checkpointer.found(self._files.wal_bytes)
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self._cursor = connection.cursor()
        return self._cursor

    def take(self) -> sqlite3.Connection | None:
        """Hand the connection over to whoever closes it."""
        connection, self.connection = self.connection, None
        return connection

    def _drop(self) -> None:
        connection = self.take()
        if connection is not None:
            connection.close()

    def roll_back(self) -> None:
        """Leave whatever transaction is open. A connection that cannot is given up."""
        connection = self.connection
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _log.warning("%s: rollback failed, opening the file again: %s", self._path, error)
            self._drop()

    def _set_synchronous(self, cursor: sqlite3.Cursor, full: bool) -> None:
        if full is self._full:
            return
        self._full = None
        cursor.execute("PRAGMA synchronous=FULL" if full else "PRAGMA synchronous=NORMAL")
        self._full = full

    def _look_again(self, group: Group) -> FileReplaced | None:
        if self._files is None:
            return None
        if group.durable:
            try:
                self._files.look(group.durable)
            except FileReplaced as fault:
                return fault
        if self._checkpointer is not None:
            self._checkpointer.wrote(sum(len(job.plan.ops) + 1 for job in group.jobs), self._files.wal_bytes)
        return None

    def checkpoint(self) -> None:
        """Fold the WAL back if nobody is writing. A failure is logged: nothing is lost, the WAL still holds it all.

        Raises:
            BaseException: an interrupt that came meanwhile, out of the transaction and with the gate left.
        """
        interrupt: BaseException | None = None
        attempts = 0
        # `with` and nothing else: an interrupt between acquire() and `try`, or in a `finally`, would leave it locked
        while not self.lock.locked() or attempts:
            try:
                with self.lock:
                    attempts += 1
                    if attempts == 1:
                        self._fold_back()
                    self.roll_back()
                    if self._gate is not None:
                        self._gate.leave()
                break
            except BaseException as error:
                # raised below, once nothing is left open
                interrupt = error
                if isinstance(error, Exception) and attempts >= _MAX_ATTEMPTS:
                    raise
        if interrupt is not None:
            raise interrupt

    def _fold_back(self) -> None:
        if self.connection is None or self._checkpointer is None or self.dead is not None:
            return
        if self._gate is not None:
            self._gate.enter()
        try:
            self._checkpointer.run(self.connection, self.roll_back)
        except sqlite3.Error as error:
            _log.warning("%s: checkpoint failed: %s", self._path, error)
