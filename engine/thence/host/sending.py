"""One transcript operation from admission to its outcome (§1, §5, §8). A flow, driven by either face.

Order: claim the session, catch up with the file, see to an unfinished turn, write the run row and the user's message,
then the turn itself.
"""

from __future__ import annotations

from dataclasses import replace

from .. import inbox, inflight, reads, writes
from ..effects import Commit, Flow, Now, Read
from ..endings import Outcome
from ..errors import RunInterrupted, SessionBusy, SessionError
from ..facts import Asked, Ended, NewFact, Text, turn_key
from ..ledger import Setup, configuration
from ..log import Log
from ..plan import Plan
from ..report import start_of_run
from ..state import Phase
from ..turn import Turn
from ..writes import RunIds
from .admitting import Order, operate
from .env import distinct
from .loading import settle_interrupted
from .parking import parked_busy
from .resuming import once, replay_of, resume_flow
from .world import RunWorld


def send_flow(order: Order, world: RunWorld) -> Flow[Outcome]:
    """One turn for the order's prompt; an interrupted run before it is seen to first, as the order says."""

    def body(ids: RunIds, log: Log) -> Flow[Outcome]:
        yield from _see_to_unfinished(order, ids, log)
        ids = yield from _begin(order, ids, log, world)
        return (yield from Turn(ids, log, order.setup, world).run())

    if order.run_id is not None and (known := (yield from replay_of(order, order.input_sha256))):
        return known
    try:
        return (yield from once(order, operate(order, world, body)))
    except RunInterrupted as interrupted:
        if order.on_interrupted != "resume" or interrupted.run_id is None:
            raise
        own = replace(order, run_id=None, begun=None, setup=replace(order.setup, output_schema=None))
        earlier = yield from resume_flow(own, world, interrupted.run_id)
        order.log = None  # it goes on in another branch
    if earlier.status == "parked":
        raise SessionBusy(order.session_id, run_id=earlier.run_id, waits=tuple(w.id for w in earlier.waits))
    if earlier.status != "completed" or world.station.stopped is not None:
        return replace(earlier, of_earlier=True)
    return (yield from once(order, operate(order, world, body)))


def _see_to_unfinished(order: Order, ids: RunIds, log: Log) -> Flow[None]:
    if log.state.phase is Phase.IDLE:
        return
    last = yield from Read(reads.last_run(ids.session_pk))
    if last is not None and last.status == "parked":
        raise (yield from parked_busy(order, last.run_id))
    calls = yield from Read(inflight.calls_in_flight(ids.session_pk))
    failed = last is not None and last.status == "failed"
    if not failed and order.on_interrupted != "settle":
        open_calls = tuple(call.key for call in log.state.open)
        raise RunInterrupted(last.run_id if last else "unknown", open_calls)
    if last is None:
        raise SessionError(f"the log of session '{order.session_id}' has an open turn and no run: it was damaged")
    ids = replace(ids, run_id=last.run_id, run_pk=last.run_pk)
    ended = Ended("failed", last.error_code, last.error_message) if failed else Ended("failed", "INTERRUPTED")
    yield from settle_interrupted(ids, log, calls, ended, end_run=not failed)


def _begin(order: Order, ids: RunIds, log: Log, world: RunWorld) -> Flow[RunIds]:
    ids = replace(ids, run_id=order.run_id or (yield from _free_run_id(order)))
    now = yield from Now()
    facts, blobs = opening_facts(order.setup, log, order.prompt)
    run = writes.begin_run(
        ids, first_seq=log.head.seq + 1, input_sha256=order.input_sha256, prompt=order.prompt, now_ms=now
    )
    ops, head, _ = writes.append(ids, log.head, facts, now)
    event = start_of_run(order.prompt)
    kept = writes.keep_blobs(ids.session_pk, blobs)
    said = writes.record_events(ids, (event,), now)
    # What was said to an earlier turn and not read in it is not meant for this one.
    forgotten = inbox.forget_steers(ids)
    plan = Plan((*order.unrecorded(), *run, forgotten, *kept, *ops, *said), durable=order.begun is not None)
    world.station.enter(ids)
    returned = yield from Commit(plan, (event,), now)
    log.add(facts)
    log.head = head
    ids = replace(ids, run_pk=returned[0][0][0])
    world.station.enter(ids, keep_numbering=True)
    if order.begun is not None:
        order.begun()
    return ids


def _free_run_id(order: Order) -> Flow[str]:
    """An id that the file does not hold yet: a replay's generator starts from 0 again (§11)."""
    drawn = distinct(order.new_run_id)
    while True:
        run_id = next(drawn)
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
