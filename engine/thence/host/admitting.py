"""Before and after every transcript operation: the claim, the log in memory, and giving both back on an error (§8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .. import reads, sessions, writes
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
from .world import RunWorld

UNWRITABLE = "the file cannot hold what was to be written, and nothing of it is there; this is a fault of thence itself"


@dataclass(slots=True)
class Order:
    """What an operation needs to know. ``log`` is the session's, kept between operations; None reads it from the file.

    ``run_id`` is one that the caller gave; otherwise ``new_run_id`` draws one.
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an operation is to do: a turn for ``prompt``, or going on with ``resume``, or to ``compact``.

    ``run_id`` is that of the run, if the caller gave one.
    """

    prompt: str = ""
    on_interrupted: OnInterrupted = "raise"
    run_id: str | None = None
    resume: str | None = None
    compact: bool = False


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

    def owner_alive(owner: str) -> bool:
        return not (admitted and owner == agent.store.owner) and agent.owner_alive(owner, core.session_id)

    return Order(
        session_id=core.session_id,
        owner=core.agent.store.owner,
        owner_alive=owner_alive,
        new_run_id=lambda: f"run-{core.env.new_id()}",
        setup=setup or core.setup(streaming=False),
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
