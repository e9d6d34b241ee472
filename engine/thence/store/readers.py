"""Reads, each from one snapshot: a small pool of connections for threads, another for event loops (§8)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..plan import Query, Rows, T
from .connect import READER_PRAGMAS
from .faults import READ_FAILURES, translate
from .perform import FAILURES, decode, read_snapshot
from .sql import Schema

if TYPE_CHECKING:
    import aiosqlite

MAX_CONNECTIONS = 4
"""Connections of each pool. A read takes microseconds; more only hold file descriptors."""


class Readers:
    """The pool for threads. ``opening`` gives a connection that cannot write; ``opened`` are open already."""

    def __init__(
        self,
        schema: Schema,
        path: Path,
        opening: Callable[[], sqlite3.Connection],
        opened: Sequence[sqlite3.Connection] = (),
    ) -> None:
        self._schema, self._path, self._opening = schema, path, opening
        self._free: list[sqlite3.Connection] = [*opened]
        # also those at work: in a forked child their threads are gone, and must not take them along
        self._all: set[sqlite3.Connection] = {*opened}
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False

    def read(self, query: Query[T]) -> T:
        """Perform ``query``.

        Raises:
            StoreError: a read failed.
        """
        with self._places:
            connection = self._take()
            try:
                rows = read_snapshot(connection, query, self._schema, self._path)
            except BaseException:
                # whatever is wrong with it, or wherever an interrupt left it, the next read gets another one
                self._discard(connection)
                raise
            self._free.append(connection)
            if self._closed:
                self.close()
        return decode(query, rows, self._path)

    def _take(self) -> sqlite3.Connection:
        try:
            return self._free.pop()
        except IndexError:
            return self._add()

    def _add(self) -> sqlite3.Connection:
        try:
            connection = self._opening()
        except READ_FAILURES as error:
            raise translate(error, self._path, "opening") from error
        self._all.add(connection)
        return connection

    def _discard(self, connection: sqlite3.Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close the connections that are free, and every other one when its read ends."""
        self._closed = True
        while self._free:
            self._discard(self._free.pop())


class AsyncReaders:
    """The pool for event loops, of any number of them: aiosqlite's connections belong to no loop."""

    def __init__(self, schema: Schema, path: Path, target: str) -> None:
        self._schema, self._path, self._target = schema, path, target
        self._lock = threading.Lock()
        self._free: list[aiosqlite.Connection] = []
        self._all: set[aiosqlite.Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._places = MAX_CONNECTIONS
        self._closed = False

    async def read(self, query: Query[T]) -> T:
        """Perform ``query``. A cancelled read gives its connection up, not its place.

        Raises:
            StoreError: a read failed.
        """
        await self._enter()
        try:
            try:
                connection = self._free.pop()
            except IndexError:
                connection = await self._open()
            try:
                rows = await self._snapshot(connection, query)
            except BaseException:
                await self._discard(connection)
                raise
            if self._closed:
                await self._discard(connection)
            else:
                self._free.append(connection)
        except FAILURES as error:
            raise translate(error, self._path, "reading") from error
        finally:
            self._leave()
        return decode(query, rows, self._path)

    async def _snapshot(self, connection: aiosqlite.Connection, query: Query[T]) -> list[Rows]:
        selects = query.selects
        if len(selects) > 1:
            await connection.execute("BEGIN")
        found: list[Rows] = []
        for select in selects:
            sql = self._schema.statement(select.statement).sql
            try:
                found.append([*map(tuple, await connection.execute_fetchall(sql, select.params))])
            except FAILURES as error:
                raise translate(error, self._path, select.statement) from error
        if len(selects) > 1:
            await connection.execute("COMMIT")
        return found

    async def _open(self) -> aiosqlite.Connection:
        import aiosqlite

        made: list[aiosqlite.Connection] = []

        def make() -> None:
            made.append(
                aiosqlite.connect(
                    self._target,
                    uri=True,
                    timeout=30.0,
                    isolation_level=None,
                    cached_statements=512,
                    check_same_thread=False,
                )
            )

        # its thread takes "daemon" from the thread that makes it; as it is, an open connection would keep the
        # interpreter from exiting
        maker = threading.Thread(target=make, daemon=True)
        maker.start()
        maker.join()
        connecting = asyncio.ensure_future(made[0])
        try:
            connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            await asyncio.wait({connecting})
            if connecting.cancelled() or connecting.exception() is not None:
                # A loop that ends cancels the connecting as well: aiosqlite then tells its thread to stop and does not
                # wait, and the thread's last word would find the loop closed. Cancelled before its first step, it has
                # not started the thread.
                thread = made[0]._thread  # pyright: ignore[reportPrivateUsage]
                while thread.is_alive():  # noqa: ASYNC110 - a thread sets no event of a loop
                    await asyncio.sleep(0.001)  # not on the loop's executor, whose threads stay
            else:
                # cut in the middle it would leave its descriptors to the garbage collector
                await self._discard(connecting.result())
            raise
        self._all.add(connection)
        try:
            for pragma in READER_PRAGMAS:
                await connection.execute_fetchall(pragma)
        except BaseException:
            await self._discard(connection)
            raise
        return connection

    async def _discard(self, connection: aiosqlite.Connection) -> None:
        self._all.discard(connection)
        await connection.interrupt()
        stopped: asyncio.Future[object] | None = connection.stop()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if stopped is not None:
            await stopped

    async def _enter(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreError(f"the store of {self._path} is closed")
                if self._places > 0:
                    self._places -= 1
                    return
                turn = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # it may have been woken just before: then the place is another's to try for
                self._wake()
                raise

    def _leave(self) -> None:
        with self._lock:
            self._places += 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            try:
                turn.get_loop().call_soon_threadsafe(_set, turn)
                return
            except RuntimeError:
                continue  # that loop is closed, nobody waits there any more

    async def close(self) -> None:
        """Close the free connections; one that is reading closes when it is done."""
        self._closed = True
        while self._free:
            await self._discard(self._free.pop())

    def close_now(self) -> None:
        """As :meth:`close`, without an event loop of the caller's."""
        self._closed = True
        if self._free:
            # in a thread: the caller's may have a loop that is running
            closer = threading.Thread(target=lambda: asyncio.run(self.close()), daemon=True)
            closer.start()
            closer.join()


def _set(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
