"""From the file to a log in memory, and from an unfinished turn to a settled one. Flows, driven by either face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import inflight, reads, waits, writes
from ..consent import told
from ..effects import Commit, Flow, Now, Read
from ..facts import Denied, Ended, NewFact, Returned, Text, turn_key
from ..inflight import InflightCall
from ..log import Log
from ..pages import StoredFact, page
from ..plan import Plan
from ..reads import Beginning
from ..state import Phase
from ..writes import Head, RunIds

NOT_RUN = "interrupted, not run"
UNKNOWN_OUTCOME = "interrupted, outcome unknown"


def catch_up(log: Log) -> Flow[None]:
    """Fold the facts that others have written since this log was last read; costs one read when there are none.

    A log of which nothing was read yet begins with its newest compaction, and with what that one kept.
    """
    begin: Beginning | None = None
    facts: list[StoredFact] = []
    blobs: dict[str, bytes] = {}
    head = log.head
    if head.seq == 0:
        begin = yield from Read(reads.beginning(log.branch_pk, log.session_pk))
        if begin.kept_from > 1:
            # The link of the first fact that is read stays open: what lies before it is not looked at.
            head = Head(begin.kept_from - 1, b"")
    while True:
        found = yield from Read(page(log.branch_pk, head, session_pk=log.session_pk))
        facts += found.facts
        blobs.update(found.blobs)
        head = found.head
        if not found.more:
            break
    if begin is not None and begin.seq:
        message: list[StoredFact] = []
        if begin.kept_message is not None:
            before = Head(begin.kept_message - 1, b"")
            one = yield from Read(page(log.branch_pk, before, limit=1, session_pk=log.session_pk))
            message = one.facts
            blobs.update(one.blobs)
        log.open_at(begin.seq, message, facts, blobs, head, begin.kept)
    elif facts:
        log.add_stored(facts, blobs, head, None if begin is None else begin.kept)


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
