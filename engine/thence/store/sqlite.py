"""The store in a SQLite file: both faces of `thence.plan.Store`, on one writer (§8)."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ..errors import FileRefused, StoreError
from ..plan import Op, Plan, Query, Returned, T
from . import fork, locks, opening, refuse
from .aio import WriterThread
from .checkpoint import Checkpointer
from .connect import connect_memory, connect_reader, create_schema, uri
from .group import Job
from .perform import decode, read_snapshot
from .readers import AsyncReaders, Readers
from .sql import Schema, load
from .writer import Writer

Durability: TypeAlias = Literal["power", "process"]

_log = logging.getLogger("thence.store")


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts since the store was opened.

    ``commits`` plans took ``groups`` transactions, ``syncs`` of which were synced before the acknowledgement; the WAL
    was folded back ``checkpoints`` times, and had ``wal_bytes`` after the last commit.
    """

    commits: int
    groups: int
    syncs: int
    checkpoints: int
    wal_bytes: int


class SqliteStore:
    """One file (or, with ``path`` None, one database in memory), used from any thread or event loop of the process.

    Args:
        path: the database file; made 0600, with its schema, when it is not there and ``create`` allows it.
        owner: name of this process, unique for ever (a nonce); its lock file is held while the store is open.
        durability: ``power`` syncs every durable plan before its acknowledgement; ``process`` survives the death of
            the process, not of the machine.
        allow_network_fs: accept a file system where locks and the WAL cannot be relied on.
        create: make a missing file.
        schema: another schema than ours (tests).

    Raises:
        ValueError: an unknown ``durability``, or ``owner`` is no plain name.
        FileRefused: see its reasons; the file was left untouched.
        MigrationBlocked: an older file is in use by others.
        StoreError: the file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        owner: str,
        *,
        durability: Durability = "power",
        allow_network_fs: bool = False,
        create: bool = True,
        schema: Schema | None = None,
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f"durability must be 'power' or 'process', not {durability!r}")
        if not owner or not owner.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"owner must be letters, digits, '-' and '_', not {owner!r}")
        self.durability: Durability = durability
        self.allow_network_fs = allow_network_fs
        self.path = None if path is None else Path(os.path.realpath(path))
        self._owner = owner
        self._schema = schema or load()
        self._broken: str | None = None
        self._closing = threading.Lock()
        self._forked = False
        self._owner_file: locks.OwnerFile | None = None
        self._gate: locks.Gate | None = None
        self._readers: Readers | None = None
        self._aio_readers: AsyncReaders | None = None
        self._checkpointer: Checkpointer | None = None
        self._prepared: sqlite3.Connection | None = None
        try:
            self._writer = self._open(create)
            self._thread = WriterThread(self._writer)
        except BaseException:
            self._let_go()
            raise
        fork.watch(self)

    def _open(self, create: bool) -> Writer:
        path = self.path
        if path is None:
            return self._make_writer(self._connect_memory)
        refuse.check_place(path, allow_network_fs=self.allow_network_fs)
        opened: list[sqlite3.Connection] = []
        state = refuse.probe(path, self._schema, opened)
        target = uri(path, mode="rw")
        self._readers = Readers(self._schema, path, lambda: connect_reader(target), opened)
        if state == "new" and not create:
            raise FileRefused("missing_file", f"{path}: there is no such file")
        self._owner_file = owner_file = locks.OwnerFile(path, self._owner)
        self._gate = locks.Gate(path)
        self._checkpointer = Checkpointer(target)
        if state != "current":
            self._prepared = opening.prepare(path, state, self._schema, owner=self._owner, mode_of=owner_file.path)
        writer = self._make_writer(self._connect)
        self._aio_readers = AsyncReaders(self._schema, path, target)
        return writer

    def _connect_memory(self) -> sqlite3.Connection:
        connection = connect_memory()
        create_schema(connection, self._schema)
        return connection

    def _connect(self) -> sqlite3.Connection:
        path, owner_file = self.path, self._owner_file
        if path is None or owner_file is None:
            raise StoreError("the store is closed")
        prepared, self._prepared = self._prepared, None
        return opening.connect_verified(path, self._schema, mode_of=owner_file.path, connection=prepared)

    def _make_writer(self, reopen: Callable[[], sqlite3.Connection]) -> Writer:
        return Writer(
            self._schema,
            self.path,
            power=self.durability == "power",
            reopen=reopen,
            verify=lambda connection: opening.verify(connection, self.path, self._schema),
            gate=self._gate,
            checkpointer=self._checkpointer,
            prelude=opening.introduction(self._owner, self._schema),
        )

    @property
    def owner(self) -> str:
        """Name of this process in ``session.owner`` (§8)."""
        return self._owner

    def commit(self, plan: Plan) -> Returned:
        """Commit ``plan`` in one transaction, with whatever other threads queued meanwhile.

        Returns when it is committed (and synced, when it is durable and the store's durability is ``power``), also
        when an interrupt came meanwhile, which is raised after that.

        Raises:
            PlanRefused, OwnershipLost, FactConflict: the file said no; nothing of the plan was written.
            DiskFull, FileReplaced, SchemaChanged, StoreError: it could not be written; nothing was acknowledged.
        """
        self._check()
        job = Job(plan)
        self._writer.commit((job,))
        return _answer(job)

    async def acommit(self, plan: Plan) -> Returned:
        """As :meth:`commit`, from a coroutine. A cancelled task still awaits the end of its commit."""
        self._check()
        return await self._thread.commit(plan)

    def read(self, query: Query[T]) -> T:
        """Perform ``query`` in one snapshot.

        Raises:
            StoreError: it could not be read.
        """
        self._check()
        if self._readers is not None:
            return self._readers.read(query)
        with self._writer.lock:
            connection = self._writer.connection
            if connection is None:
                raise StoreError("the database in memory is lost")
            rows = read_snapshot(connection, query, self._schema, None)
        return decode(query, rows, None)

    async def aread(self, query: Query[T]) -> T:
        """As :meth:`read`, from a coroutine."""
        self._check()
        if self._aio_readers is None:
            # memory: microseconds under a lock that is never held across an await
            return self.read(query)
        return await self._aio_readers.read(query)

    def owner_alive(self, owner: str) -> bool:
        """Whether the process called ``owner`` lives. The lock file of a dead one is removed."""
        self._check()
        if self.path is None:
            return owner == self._owner
        try:
            return locks.probe(self.path, owner) == "alive"
        except OSError as error:
            # taking a session from the living is the worse mistake
            _log.warning("%s: cannot tell whether owner %s lives: %s", self.path, owner, error)
            return True

    def forbidden_files(self) -> frozenset[tuple[int, int]]:
        """(device, inode) of every file of the store that is there: nothing else in this process may open them."""
        if self.path is None:
            return frozenset()
        names = [f"{self.path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-home")]
        names += [str(locks.owner_path(self.path, self._owner)), *map(str, locks.gate_paths(self.path))]
        found: set[tuple[int, int]] = set()
        for name in names:
            try:
                status = os.stat(name)
            except FileNotFoundError:
                continue
            found.add((status.st_dev, status.st_ino))
        return frozenset(found)

    def stats(self) -> StoreStats:
        """Counts since the store was opened."""
        writer, checkpoints = self._writer, 0 if self._checkpointer is None else self._checkpointer.count
        return StoreStats(writer.commits, writer.groups, writer.syncs, checkpoints, writer.wal_bytes)

    def close(self) -> None:
        """Commit what is queued, close everything, give the owner's lock back. May be called again."""
        if self._forked:
            return  # the lock below may be held by a thread that is not in this process
        with self._closing:
            if self._broken is not None:
                return
            thread = self._thread.stop()
            if thread is not None:
                thread.join()
            self._say_goodbye()
            self._broken = "the store is closed"
            self._let_go()

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking the event loop."""
        if self._broken is None and self._aio_readers is not None:
            await self._aio_readers.close()
        await asyncio.to_thread(self.close)

    def _say_goodbye(self) -> None:
        if not self._writer.introduced or self._writer.dead is not None:
            return
        if self.path is None or "owner_remove" not in self._schema.statements:
            return
        job = Job(Plan((Op("owner_remove", ({"owner": self._owner},)),)))
        self._writer.commit((job,))
        if isinstance(job.answer, StoreError):
            # the row says nothing about life; the lock does, and it goes now
            _log.warning("%s: the owner's row stays: %s", self.path, job.answer)

    def _let_go(self) -> None:
        if self._readers is not None:
            self._readers.close()
        if self._aio_readers is not None:
            self._aio_readers.close_now()
        writer: Writer | None = getattr(self, "_writer", None)
        let_go = sqlite3.Connection.close if writer is None or writer.may_be_closed() else fork.leak
        for holder in (self._checkpointer, writer):
            connection = None if holder is None else holder.take()
            if connection is not None:
                let_go(connection)
        if self._gate is not None:
            self._gate.forget()
        if self._owner_file is not None:
            self._owner_file.release()

    def die_in_child(self) -> None:
        """Called in a forked child: the locks are the parent's, SQLite's handles not to be touched."""
        self._forked = True
        if self._broken is None:
            self._broken = "this store belongs to the parent process; open another one in the child"
        for held in (self._gate, self._owner_file):
            if held is not None:
                held.forget()

    def check_usable(self) -> None:
        """Raises StoreError in a forked child: threads and locks are the parent's there."""
        if self._forked:
            self._check()

    def _check(self) -> None:
        if self._broken is not None:
            raise StoreError(self._broken)


def _answer(job: Job) -> Returned:
    answer = job.answer
    if isinstance(answer, StoreError):
        raise answer
    if answer is None:
        raise StoreError("the plan got no answer")
    return answer
