"""Before and after every transcript operation: the claim, the log in memory, and giving both back on an error (§8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .. import reads, sessions, writes
from ..canonical import Json, dumps, loads_stored, sha256_hex
from ..effects import Commit, Flow, Read
from ..endings import Outcome
from ..errors import SessionBusy, SessionNotFound, StoreError, ThenceError
from ..identity import Scope
from ..ledger import Setup
from ..log import Log
from ..pages import RESTORE
from ..plan import Op, Plan, PlanRefused
from ..session_options import OnInterrupted
from ..writes import Head, RunIds
from .core import SessionCore
from .loading import catch_up
from .output_type import OutputType
from .world import RunWorld

UNWRITABLE = "the file cannot hold what was to be written, and nothing of it is there; this is a fault of thence itself"


@dataclass(slots=True)
class Order:
    """What an operation needs to know. ``log`` is the session's, kept between operations; None reads it from the file.

    ``run_id`` is one that the caller gave; otherwise ``new_run_id`` draws one. The output schema in ``setup`` is the
    caller's own: that of a run that is resumed is in the log.
    """

    session_id: str
    owner: str
    owner_alive: Callable[[str], bool]
    new_run_id: Callable[[], str]
    setup: Setup
    prompt: str
    on_interrupted: OnInterrupted
    keep_log: Callable[[Log | None], None]
    log: Log | None = None
    run_id: str | None = None
    in_memory: bool = False
    begun: Callable[[], None] | None = None
    unrecorded: Callable[[], tuple[Op, ...]] = tuple
    stopping: Callable[[], bool] = bool
    scope: Scope = field(default_factory=Scope)

    @property
    def input_sha256(self) -> str:
        """What a run id of the caller's is bound to (§7)."""
        return input_digest(self.prompt, self.setup.output_schema)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an operation is to do: a turn for ``prompt``, or going on with ``resume``, or to ``compact``.

    ``run_id`` is that of the run, if the caller gave one; ``output`` is what its answer is to be.
    """

    prompt: str = ""
    on_interrupted: OnInterrupted = "raise"
    run_id: str | None = None
    resume: str | None = None
    compact: bool = False
    output: OutputType | None = None

    @property
    def input_sha256(self) -> str:
        """What its run id is bound to (§7)."""
        prompt = self.prompt if self.resume is None else resume_prompt(self.resume)
        return input_digest(prompt, None if self.output is None else self.output.schema)


def resume_prompt(run_id: str) -> str:
    """The input of a recovery, as run rows and run identities record it."""
    return f"<resume run={run_id}>"


def input_digest(prompt: str, schema: Mapping[str, Json] | None) -> str:
    """SHA-256 of a run's whole input, in hexadecimal. Without an output schema that of the prompt alone."""
    if schema is None:
        return sha256_hex(prompt)
    # A byte that UTF-8 does not have keeps the two apart, and both from any prompt.
    return hashlib.sha256(b"\xff" + dumps(schema).encode() + b"\xff" + prompt.encode()).hexdigest()


def make_order(
    core: SessionCore,
    assignment: Assignment,
    setup: Setup | None = None,
    begun: Callable[[], None] | None = None,
    *,
    admitted: bool = False,
) -> Order:
    """The order for an assignment of a session, as the session stands now.

    ``admitted``: the caller is the session's live operation here, so no claim of this process is anybody else's.
    """
    agent = core.agent
    setup = setup or core.setup(streaming=False)
    if assignment.output is not None:
        setup = replace(setup, output_schema=assignment.output.schema)

    def owner_alive(owner: str) -> bool:
        return not (admitted and owner == agent.store.owner) and agent.owner_alive(owner, core.session_id)

    return Order(
        session_id=core.session_id,
        owner=core.agent.store.owner,
        owner_alive=owner_alive,
        new_run_id=lambda: f"run-{core.env.new_id()}",
        setup=setup,
        prompt=assignment.prompt,
        on_interrupted=assignment.on_interrupted,
        keep_log=core.keep_log,
        log=core.log,
        run_id=assignment.run_id,
        in_memory=core.agent.store.path is None,
        begun=begun,
        unrecorded=core.unrecorded,
        scope=agent.scope,
    )


def operate(order: Order, world: RunWorld, body: Callable[[RunIds, Log], Flow[Outcome]]) -> Flow[Outcome]:
    """Claim the session, catch up with its log, do ``body``. On an error the claim is given back."""
    ids = yield from claim(order)
    try:
        log = yield from log_of(order, ids)
        yield from world.start_session(order.session_id)
        outcome = yield from body(ids, log)
    except Exception as error:
        # What was staged and not written is in the log in memory only: the file is the truth.
        order.log = None
        order.keep_log(None)
        if isinstance(error, ThenceError) and error.run_id is None and world.station.ids is not None:
            error.run_id = world.station.ids.run_id or None
        yield from give_back(ids)
        if isinstance(error, PlanRefused) and error.code == "CONSTRAINT":
            # What SQLite says of our own columns is of no use to a caller; the cause keeps it for a report.
            raise StoreError(UNWRITABLE, run_id=error.run_id) from error
        raise
    kept = log if outcome.status in ("completed", "cancelled", "parked") else None
    order.log = kept
    order.keep_log(kept)
    return outcome


def claim(order: Order, *, force: bool = False) -> Flow[RunIds]:
    """Become the session's owner.

    Raises:
        SessionNotFound: it was deleted.
        SessionBusy: a living owner has it, and ``force`` is not set.
    """
    row = yield from Read(reads.session(order.session_id))
    if row is None:
        raise SessionNotFound(order.session_id)
    dead: str | None = None
    if row.owner is not None and row.owner != order.owner and not force:
        if order.owner_alive(row.owner):
            raise SessionBusy(order.session_id, holder=row.owner)
        dead = row.owner
    try:
        returned = yield from Commit(sessions.claim(row.session_pk, order.owner, dead, force=force))
    except PlanRefused as refused:
        if refused.code != "SESSION_BUSY":
            raise
        winner = yield from Read(reads.session(order.session_id))
        raise SessionBusy(order.session_id, holder=winner.owner if winner else None) from None
    fence, branch, seq, digest = returned[0][0]
    return RunIds(row.session_pk, order.session_id, branch, "", order.owner, fence, head=Head(seq, digest))


def as_asked(order: Order, ids: RunIds, log: Log) -> Flow[Setup]:
    """The order's setup, for a turn that goes on: unless the caller says otherwise, its answer is to be what whoever
    began it wanted, as its requests so far said."""
    config = log.state.config
    if order.setup.output_schema is not None or config is None or config.output_sha256 is None:
        return order.setup
    schema = yield from Read(reads.blob(ids.session_pk, config.output_sha256))
    if schema is None:
        raise StoreError(f"the output schema of session '{ids.session_id}' is not in the file; {RESTORE}")
    return replace(order.setup, output_schema=loads_stored(schema.decode()))


def give_back(ids: RunIds) -> Flow[None]:
    """Release the claim as well as can be: this process may claim the session again in any case."""
    try:
        yield from Commit(Plan((writes.release(ids),)))
    except StoreError:
        # The error that brought us here is the one the caller hears of.
        return


def log_of(order: Order, ids: RunIds) -> Flow[Log]:
    """The session's log as far as the claim says it goes. Raises StoreError for one that ends elsewhere."""
    log = order.log
    if log is None or log.branch_pk != ids.branch_pk:
        log = Log(ids.branch_pk, ids.session_pk)
    yield from catch_up(log)
    if log.head != ids.head:
        raise StoreError(
            f"the log of session '{ids.session_id}' ends at seq {log.head.seq} and should end at {ids.head.seq}; "
            f"{RESTORE}"
        )
    return log
