"""``session.compact()``: a compaction that the host asks for, between two turns (§5). A flow, driven by either face.

It claims the session as a turn does and is one of its transcript operations, but no run: its fact goes to the run that
ended last, its events to the session's own channel.
"""

from __future__ import annotations

from dataclasses import replace

from .. import reads, writes
from ..compacting import Compactor, Failed
from ..compaction import Compaction
from ..effects import Commit, Flow, Read, Stopped
from ..endings import Outcome
from ..errors import RunInterrupted, SessionError
from ..ledger import Ledger, estimate, tool_schemas
from ..log import Log
from ..plan import Plan
from ..reads import LastRun
from ..state import Phase
from ..writes import RunIds
from .admitting import Order, operate
from .parking import parked_busy
from .world import RunWorld


def compact_flow(order: Order, world: RunWorld) -> Flow[Outcome]:
    """Compact the order's session; the outcome's ``compaction`` says what came of it.

    Raises:
        RunInterrupted, SessionBusy, SessionError: the last turn is open: interrupted, parked, or failed.
        BudgetExhausted, ModelError: there is no summary; nothing was changed.
    """

    def body(ids: RunIds, log: Log) -> Flow[Outcome]:
        last = yield from Read(reads.last_run(ids.session_pk))
        yield from _check_settled(order, log, last)
        world.station.enter(ids)
        done = None
        if last is not None and not log.is_compacted:
            done = yield from _compact(order, log, replace(ids, run_id=last.run_id, run_pk=last.run_pk), world)
        if done is None:
            yield from Commit(Plan((writes.release(ids),)))
            done = Compaction(len(log.transcript), len(log.transcript), "")
        return Outcome("completed", "", "", log.state.usage, 0, compaction=done)

    return (yield from operate(order, world, body))


def _compact(order: Order, log: Log, ids: RunIds, world: RunWorld) -> Flow[Compaction | None]:
    ledger = Ledger(ids, log, order.setup, world)
    ledger.stream = replace(ids, run_pk=-ids.session_pk)
    tokens = estimate(order.setup, log.transcript.bytes, len(tool_schemas(order.setup)))
    done = yield from Compactor(ledger).compact("request", tokens)
    if ledger.failed_requests:
        ledger.also(writes.count_unknown(ids, more=ledger.failed_requests))
    if isinstance(done, Compaction):
        ledger.also(writes.release(ids))
        ledger.protect()
        yield from ledger.flush()
        return done
    yield from ledger.flush()
    if isinstance(done, Failed):
        raise done.error
    if isinstance(done, Stopped):
        raise SessionError(f"the compaction of session '{ids.session_id}' was interrupted: {done.reason}")
    return None


def _check_settled(order: Order, log: Log, last: LastRun | None) -> Flow[None]:
    if log.state.phase is Phase.IDLE or last is None:
        return
    if last.status == "parked":
        raise (yield from parked_busy(order, last.run_id))
    if last.status != "failed":
        raise RunInterrupted(last.run_id, tuple(call.key for call in log.state.open))
    raise SessionError(
        f"run '{last.run_id}' of session '{order.session_id}' failed and its turn is open: resume it, or send, "
        f"before the session is compacted"
    )
