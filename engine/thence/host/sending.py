"""One transcript operation from admission to its outcome (§1, §5, §8). A flow, driven by either face.

Order: claim the session, catch up with the file, see to an unfinished turn, write the run row and the user's message,
then the turn itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import reads, sessions, writes
from ..canonical import dumps, sha256_hex
from ..codec import blob_sha
from ..effects import Commit, Flow, Now, Read
from ..errors import RunInterrupted, SessionBusy, SessionError, SessionNotFound, StoreError, ThenceError
from ..facts import Asked, Configured, Ended, NewFact, Text, turn_key
from ..fold import Phase
from ..ledger import Setup
from ..log import Log
from ..options import OnInterrupted
from ..plan import Plan, PlanRefused
from ..report import start_of_run
from ..turn import Outcome, Turn
from ..writes import RunIds
from .loading import catch_up, settle_interrupted
from .world import RunWorld


@dataclass(slots=True)
class Sending:
    """What one ``send`` needs. ``log`` is the session's, kept between operations; None reads it from the file."""

    session_id: str
    owner: str
    owner_alive: Callable[[str], bool]
    new_run_id: Callable[[], str]
    setup: Setup
    prompt: str
    on_interrupted: OnInterrupted
    keep_log: Callable[[Log | None], None]
    log: Log | None = None


def send_flow(sending: Sending, world: RunWorld) -> Flow[Outcome]:
    """Claim, catch up, begin, run. On an error the claim is given back and the log in memory is forgotten."""
    ids = yield from _claim(sending)
    try:
        log = yield from _log_of(sending, ids)
        yield from _see_to_unfinished(sending, ids, log)
        ids = yield from _begin(sending, ids, log, world)
        world.station.ids = ids
        outcome = yield from Turn(ids, log, sending.setup).run()
        sending.keep_log(log if outcome.status in ("completed", "cancelled") else None)
        return outcome
    except ThenceError as error:
        # What was staged and not written is in the log in memory only: the file is the truth.
        sending.keep_log(None)
        if error.run_id is None and world.station.ids is not None:
            error.run_id = world.station.ids.run_id
        yield from _give_back(ids)
        raise


def _claim(sending: Sending) -> Flow[RunIds]:
    row = yield from Read(reads.session(sending.session_id))
    if row is None:
        raise SessionNotFound(sending.session_id)
    dead: str | None = None
    if row.owner is not None and row.owner != sending.owner:
        if sending.owner_alive(row.owner):
            raise SessionBusy(sending.session_id, holder=row.owner)
        dead = row.owner
    try:
        returned = yield from Commit(sessions.claim(row.session_pk, sending.owner, dead))
    except PlanRefused as refused:
        if refused.code == "SESSION_BUSY":
            raise SessionBusy(sending.session_id) from None
        raise
    fence, branch = returned[0][0]
    return RunIds(row.session_pk, sending.session_id, branch, "", sending.owner, fence)


def _log_of(sending: Sending, ids: RunIds) -> Flow[Log]:
    log = sending.log
    if log is None or log.branch_pk != ids.branch_pk:
        log = Log(ids.branch_pk)
    yield from catch_up(log)
    return log


def _see_to_unfinished(sending: Sending, ids: RunIds, log: Log) -> Flow[None]:
    if log.state.phase is Phase.IDLE:
        return
    last = yield from Read(reads.last_run(ids.session_pk))
    calls = yield from Read(reads.inflight(ids.session_pk))
    failed = last is not None and last.status == "failed"
    if not failed and sending.on_interrupted == "raise":
        open_calls = tuple(call.key for call in log.state.open)
        raise RunInterrupted(last.run_id if last else "unknown", open_calls)
    if last is None:
        raise SessionError(f"the log of session '{sending.session_id}' has an open turn and no run: it was damaged")
    ids = replace(ids, run_id=last.run_id, run_pk=last.run_pk)
    ended = Ended("failed", last.error_code if failed else "INTERRUPTED")
    yield from settle_interrupted(ids, log, calls, ended, end_run=not failed)


def _begin(sending: Sending, ids: RunIds, log: Log, world: RunWorld) -> Flow[RunIds]:
    ids = replace(ids, run_id=(yield from _free_run_id(sending)))
    now = yield from Now()
    facts, blobs = opening_facts(sending.setup, log, sending.prompt)
    run = writes.begin_run(
        ids, first_seq=log.head.seq + 1, input_sha256=sha256_hex(sending.prompt), prompt=sending.prompt, now_ms=now
    )
    ops, head = writes.append(ids, log.head, facts, now)
    event = start_of_run(sending.prompt)
    plan = Plan(
        (*run, *writes.keep_blobs(ids.session_pk, blobs), *ops, *writes.record_events(ids, (event,), now)),
    )
    world.station.ids = ids
    returned = yield from Commit(plan, (event,), now)
    log.add(facts)
    log.head = head
    return replace(ids, run_pk=returned[0][0][0])


def _free_run_id(sending: Sending) -> Flow[str]:
    """An id that the file does not hold yet: a replay's generator starts from 0 again (§11)."""
    while True:
        run_id = sending.new_run_id()
        if (yield from Read(reads.run_identity(run_id))) is None:
            return run_id


def opening_facts(setup: Setup, log: Log, prompt: str) -> tuple[list[NewFact], dict[str, bytes]]:
    """``run.configured`` when it changed, and the user's message. Pure."""
    state = log.state
    turn = turn_key(state.turn + 1)
    config, blobs = configuration(setup)
    facts: list[NewFact] = []
    if config != state.config:
        facts.append(NewFact(f"{turn}-config{state.configs + 1}", None, config))
    facts.append(NewFact(f"{turn}-user", None, Asked((Text(prompt),))))
    return facts, blobs if len(facts) > 1 else {}


def configuration(setup: Setup) -> tuple[Configured, dict[str, bytes]]:
    """The fact that says what a run started with, and the schemas it names by hash. Pure."""
    tools = dumps(
        [
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.parameters,
                "effect": setup.traits[spec.name].effect,
                "repeatable": setup.traits[spec.name].repeatable,
            }
            for spec in setup.specs
        ]
    ).encode()
    blobs = {blob_sha(tools): tools}
    output: str | None = None
    if setup.output_schema is not None:
        schema = dumps(setup.output_schema).encode()
        output = blob_sha(schema)
        blobs[output] = schema
    config = Configured(
        setup.model, setup.instructions, setup.settings, setup.limits.to_dict(), blob_sha(tools), output
    )
    return config, blobs


def _give_back(ids: RunIds) -> Flow[None]:
    try:
        yield from Commit(Plan((writes.release(ids),)))
    except StoreError:
        # The error that brought us here is the one the caller hears of; this process may claim the session again.
        return
