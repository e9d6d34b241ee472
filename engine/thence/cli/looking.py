"""The file as the reading commands see it: never written, and honest about what cannot be known (§13)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from .. import reads, watching
from ..canonical import NotJson, loads
from ..effects import Flow, Read
from ..errors import FileRefused, SessionNotFound
from ..events import EventPage
from ..pages import PAGE
from ..plan import Query, Select
from ..reads import SessionRow
from ..runs import Run, TraceEvent
from ..store import locks
from ..store.readonly import ReadOnlyStore
from ..writes import Head
from .errors import NotFound

R = TypeVar("R")

Life: TypeAlias = Literal["alive", "dead", "unknown"]

UNKNOWN_OWNER = "unknown owner"
"""State of a live run whose owner cannot be asked after: it may be at work, or interrupted."""

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class RawFact:
    """A fact as it is stored; ``payload`` is None where the stored text cannot be read."""

    seq: int
    kind: str
    key: str
    cause: str | None
    run_id: str | None
    prev_hash: str
    hash: str
    payload: Any

    @property
    def value(self) -> dict[str, Any]:
        """The payload if it is a JSON object, else nothing."""
        return self.payload if isinstance(self.payload, dict) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

    def to_dict(self) -> dict[str, Any]:
        """The same JSON as that of :class:`~thence.Fact`."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "key": self.key,
            "cause": self.cause,
            "run_id": self.run_id,
            "prev_hash": self.prev_hash,
            "hash": self.hash,
            "payload": self.payload,
        }


@contextmanager
def looking(path: str) -> Generator[Look]:
    """The file, for as long as a command looks at it.

    Raises:
        NotFound: there is none.
        FileRefused, StoreError: it cannot be read.
    """
    try:
        store = ReadOnlyStore(path)
    except FileRefused as error:
        if error.reason not in ("missing_file", "missing_folder"):
            raise
        raise NotFound(f"no database at {path}; name another with --db, or make one with 'thence run'") from None
    try:
        yield Look(store)
    finally:
        store.close()


class Look:
    """Questions to a file, and what their answers mean to somebody outside."""

    def __init__(self, store: ReadOnlyStore) -> None:
        self._store = store
        self.path: Path = store.path
        self.ask = store.read

    def follow(self, flow: Flow[R]) -> R:
        """Run a flow that only reads."""
        try:
            effect = next(flow)
            while True:
                if not isinstance(effect, Read):
                    raise TypeError(f"{type(effect).__name__} is not for a reader")
                effect = flow.send(self.ask(effect.query))
        except StopIteration as stop:
            result: R = stop.value
            return result

    def sessions(self, filters: dict[str, str | None]) -> Iterator[SessionRow]:
        """Sessions, oldest first."""
        after = 0
        while page := self.ask(reads.sessions(filters, after)):
            yield from page
            after = page[-1].session_pk

    def find_session(self, session_id: str) -> SessionRow | None:
        """The session of that id, or None."""
        return self.ask(reads.session(session_id))

    def session(self, session_id: str) -> SessionRow:
        """The session of that id. Raises SessionNotFound."""
        row = self.find_session(session_id)
        if row is None:
            raise SessionNotFound(session_id)
        return row

    def runs(self, session: SessionRow) -> list[Run]:
        """Runs of a session, oldest first, with their derived state."""
        return self._seen(lambda: self.ask(reads.runs(session.session_pk)))

    def find_run(self, run_id: str) -> Run | None:
        """The run of that id with its derived state, or None."""

        def found() -> list[Run]:
            run = self.ask(reads.run(run_id))
            return [] if run is None else [run]

        return next(iter(self._seen(found)), None)

    def run(self, run_id: str) -> Run:
        """The run of that id. Raises NotFound, and says what else the id is."""
        run = self.find_run(run_id)
        if run is None:
            raise NotFound(f"Run not found: {run_id}{self._what_else(run_id)}")
        return run

    def newest(self, run_id: str) -> Run | None:
        """The newest run that goes on from that one, if it is kept."""
        run = self.find_run(run_id)
        while run is not None and run.superseded_by is not None:
            run = self.find_run(run.superseded_by)
        return run

    def session_of(self, run_id: str) -> str:
        """Id of the session that a run belongs to, also of one that is no longer kept. Raises NotFound."""
        identity = self.ask(reads.run_identity(run_id))
        if identity is None:
            raise NotFound(f"Run not found: {run_id}{self._what_else(run_id)}")
        return identity.session_id

    def owner(self, name: str) -> str:
        """What an owner said of itself, for people."""
        rows = self.ask(Query((Select("owner_list", {}),), lambda found: found[0]))
        told = [f"pid {pid}, {program}" for owner, pid, program, _ in rows if owner == name]
        return told[0] if told else f"owner {name}"

    def _what_else(self, name: str) -> str:
        if self.ask(reads.run_identity(name)) is not None:
            return " (it is no longer kept; its facts are, see 'thence facts SESSION')"
        if self.find_session(name) is not None:
            return " (that is a session; 'thence runs SESSION' shows its runs)"
        return ""

    def _seen(self, fetch: Callable[[], list[Run]]) -> list[Run]:
        seen: list[Run] = []
        for _ in range(_LOOKS):
            runs = fetch()
            seen = [self._with_state(run) for run in runs]
            # an owner that ended in an orderly way between our two looks is no dead one: its run has changed then
            if all(run.state != "interrupted" for run in seen) or fetch() == runs:
                break
        return seen

    def _with_state(self, run: Run) -> Run:
        seen = run.seen_by({})
        if seen.state != "interrupted" or run.owner is None:
            return seen
        life = self.life(run.owner)
        if life == "dead":
            return seen
        return run if life == "alive" else replace(run, state=UNKNOWN_OWNER)

    def life(self, owner: str) -> Life:
        """Whether the process called ``owner`` lives."""
        return locks.look(self.path, owner)

    def facts(self, session: SessionRow, after_seq: int = 0) -> Iterator[RawFact]:
        """Facts of the live branch, in order, as they are stored: also kinds that this version does not know."""
        branch = session.live_branch
        head = self.ask(reads.head(branch))
        while head is not None and after_seq < head.seq:
            # the library's own select, without its decoder, which stops at a kind that it does not know
            select = reads.facts(branch, Head(after_seq, b""), PAGE).selects[0]
            yield from self.ask(Query((select,), lambda rows: [_raw(row) for row in rows[0]]))
            after_seq += PAGE

    def event_page(self, run: Run, after_sequence: int | None) -> EventPage | None:
        """The next thousand events of a run."""
        identity = self.ask(reads.run_identity(run.id))
        if identity is None:
            return None
        tags = self.session(run.session_id).tags.given()
        where: dict[str, Any] = {"run_id": run.id, "session_id": run.session_id, **tags}
        return self.ask(watching.event_page(identity.run_pk, after_sequence, PAGE, where))

    def traces(self, session: SessionRow) -> list[TraceEvent]:
        """Traces that are kept, oldest first."""
        return self.ask(watching.traces(session.session_pk))

    def stats(self) -> dict[str, Any]:
        """How much is in the file, and how large it is."""
        counts = self.ask(watching.stats())
        rows = self.ask(Query((Select("file_row", {}), Select("owner_list", {})), lambda found: (found[0], found[1])))
        identity, owners = rows
        wal = Path(f"{self.path}-wal")
        return {
            "path": str(self.path),
            "lineage_id": identity[0][0] if identity else None,
            "created_ms": identity[0][1] if identity else None,
            "file_bytes": self.path.stat().st_size,
            "wal_bytes": wal.stat().st_size if wal.exists() else 0,
            **counts,
            "living_owners": sum(self.life(row[0]) == "alive" for row in owners),
        }


def _raw(row: tuple[Any, ...]) -> RawFact:
    seq, kind, key, cause, run_id, prev_hash, digest, text = row
    try:
        payload = loads(text)
    except NotJson:
        payload = None
    return RawFact(seq, kind, key, cause, run_id, prev_hash.hex(), digest.hex(), payload)
