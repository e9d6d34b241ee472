"""From the file to a log in memory, and from an unfinished turn to a settled one. Flows, driven by either face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import inflight, reads, waits, writes
from ..consent import told
from ..effects import Commit, Flow, Now, Read
from ..facts import Denied, Ended, NewFact, Returned, Text, turn_key
from ..inflight import InflightCall
from ..kept_state import KeptState
from ..log import Log
from ..pages import StoredFact, page
from ..plan import Plan
from ..state import Phase
from ..writes import RunIds

NOT_RUN = "interrupted, not run"
UNKNOWN_OUTCOME = "interrupted, outcome unknown"


def catch_up(log: Log) -> Flow[None]:
    """Fold the facts that others have written since this log was last read; costs one read when there are none."""
    kept: KeptState | None = None
    if log.head.seq == 0 and log.session_pk is not None:
        kept = yield from Read(reads.kept_state(log.session_pk))
    facts: list[StoredFact] = []
    blobs: dict[str, bytes] = {}
    head = log.head
    while True:
        found = yield from Read(page(log.branch_pk, head, session_pk=log.session_pk))
        facts += found.facts
        blobs.update(found.blobs)
        head = found.head
        if not found.more:
            break
    if facts:
        log.add_stored(facts, blobs, head, kept)


def settle_interrupted(
    ids: RunIds, log: Log, calls: Sequence[InflightCall], ended: Ended, *, end_run: bool
) -> Flow[None]:
    """Close an unfinished turn: a landed result counts, a started call gets ``outcome unknown``, another ``not run``.

    The facts are those of the unfinished run, which ``ids`` names; ``end_run`` says that its row is to end as well.
    """
    facts = settling_facts(log, {call.call_key: call.result for call in calls}, ended)
    now = yield from Now()
    ops, head, _ = writes.append(ids, log.head, facts, now)
    ops = (*ops, inflight.clear_calls(ids), writes.forget_checkpoint(ids))
    if log.state.waits:
        ops = (*ops, waits.close_all(ids, now))
    if end_run:
        error = (ended.code or "INTERRUPTED", "interrupted, and settled by a later turn")
        ops = (*ops, writes.end_run(ids, log.state, status="failed", now_ms=now, text=None, error=error))
    yield from Commit(Plan(ops))
    log.add(facts)
    log.head = head


def settling_facts(log: Log, started: Mapping[str, Returned | None], ended: Ended) -> list[NewFact]:
    """The facts that close an unfinished turn. Pure."""
    facts: list[NewFact] = []
    state = log.state
    for call in state.open if state.phase is Phase.CALLS else ():
        result: Returned | Denied | None = started.get(call.key)
        if result is None:
            known = told(state, call, {}, starts=0)
            result = known if isinstance(known, Returned) else None
        if result is None:
            text = UNKNOWN_OUTCOME if call.key in started else NOT_RUN
            result = Returned(call.key, False, (Text(text),), {"refused": "interrupted"})
        facts.append(NewFact(call.key, f"settle:{call.key}", result))
    key = f"{turn_key(state.turn)}-end"
    facts.append(NewFact(key, f"settle:{key}", ended))
    return facts
