"""The tool half of a turn: batches, in-flight rows, landings, and the one commit that settles a round (§5).

A call is judged just before its batch; its ``started`` row is written before it runs, its result as it lands. When the
last has landed, the results become facts in call order: the log does not depend on which tool was faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from . import writes
from .codec import blob_sha
from .effects import AskGuard, AwaitTool, Flow, IsGuarded, Landed, Now, SafePoint, StartTool, Stopped
from .facts import Denied, Returned, Text
from .fold import Phase
from .inflight import InflightCall
from .judge import judge
from .ledger import Ledger
from .report import call_refused, call_returned, call_started, trace_of
from .steps import OpenCall, Run

CANCELLED = "Error: not run, because the run was cancelled"
UNKNOWN_OUTCOME = "interrupted, outcome unknown"
UNKNOWN = "Error: cancelled while it was running; its outcome is unknown"


class Rounds:
    """Calls of the newest answer: which have results (``done``) and which are running (``running``)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.done: dict[str, Returned | Denied] = {}
        self.running: dict[str, OpenCall] = {}
        self._rows = False
        self._started: frozenset[str] = frozenset()

    def adopt(self, calls: Sequence[InflightCall]) -> None:
        """Calls that the run before this one had started: a landed result counts, ``once`` is not run again (§7)."""
        self._rows = bool(calls)
        self._started = frozenset(call.call_key for call in calls)
        for call in calls:
            if call.result is not None:
                self.done[call.call_key] = call.result
            elif call.effect == "once":
                text = (Text(UNKNOWN_OUTCOME),)
                self.done[call.call_key] = Returned(call.call_key, False, text, {"refused": "interrupted"})

    def settle_round(self) -> Flow[Stopped | None]:
        """Run every open call, then make all results facts in one commit. A stop on the way is the caller's."""
        while True:
            state, setup = self.ledger.log.state, self.ledger.setup
            if self._all_done():
                break
            verdicts = judge(state, self.done, setup.traits, setup.limits)
            if not verdicts:
                break
            batch: list[OpenCall] = []
            for verdict in verdicts:
                if not isinstance(verdict, Run):
                    self._refuse(verdict.call, verdict.result)
                    continue
                denied = yield from self._check_budget(verdict.call)
                if denied is not None:
                    self._refuse(verdict.call, denied)
                else:
                    batch.append(verdict.call)
            # After the guard: it may have taken its time, and nothing starts once somebody said stop.
            stopped = yield from SafePoint()
            if stopped is None:
                stopped = yield from self._run_batch(batch)
            if stopped is not None:
                return stopped
        yield from self._settle()
        return None

    def _check_budget(self, call: OpenCall) -> Flow[Denied | None]:
        if not (yield from IsGuarded()):
            return None
        yield from self.ledger.flush()
        decision = yield from AskGuard("check_before_tool", call.call.name)
        self.ledger.note_decision(decision)
        if decision.decision != "deny":
            return None
        return Denied(call.key, "guard", decision.resource, decision.reason)

    def _refuse(self, call: OpenCall, result: Returned | Denied) -> None:
        self.done[call.key] = result
        self.ledger.say(call_refused(call, result))

    def _run_batch(self, batch: Sequence[OpenCall]) -> Flow[Stopped | None]:
        waiting = deque(batch)
        while waiting or self.running:
            yield from self._start_more(waiting)
            landed = yield from AwaitTool()
            if isinstance(landed, Stopped):
                return landed
            more = bool(waiting) or len(self.running) > 1
            yield from self._land(landed, last=not more and self._is_last(landed))
        return None

    def _start_more(self, waiting: deque[OpenCall]) -> Flow[None]:
        setup = self.ledger.setup
        starting: list[OpenCall] = []
        while waiting and len(self.running) < setup.limits.max_parallel_tools:
            call = waiting.popleft()
            self.running[call.key] = call
            starting.append(call)
        if not starting:
            return
        now = yield from Now()
        self._rows = True
        fresh = [call for call in starting if call.key not in self._started]
        if fresh:
            self.ledger.also(writes.start_calls(self.ledger.ids, fresh, setup.traits, now))
        self.ledger.say(*(call_started(call) for call in starting))
        if any(setup.traits[call.call.name].effect != "read" for call in starting):
            self.ledger.protect()
        yield from self.ledger.flush()
        # The chain hash at the model's answer names this call in every copy of the log (§7); that fact is the head now.
        anchor = self.ledger.log.head.hash
        for call in starting:
            identity = f"{self.ledger.ids.session_id}\n{anchor.hex()}\n{call.position}"
            yield from StartTool(call, blob_sha(identity.encode()))

    def _is_last(self, landed: Landed) -> bool:
        """Whether nothing else of this answer will run: then the settling commit carries this landing too."""
        return self._all_done(landed.result.call_key)

    def _all_done(self, landing: str = "") -> bool:
        return all(call.key in self.done or call.key == landing for call in self.ledger.log.state.open)

    def _land(self, landed: Landed, *, last: bool) -> Flow[None]:
        key = landed.result.call_key
        call = self.running.pop(key, None)
        if call is None:
            return
        ledger, name = self.ledger, call.call.name
        now = yield from Now()
        self.done[key] = landed.result
        ledger.also(
            *writes.keep_blobs(ledger.ids.session_pk, landed.kept),
            writes.trace_call(ledger.ids, name, trace_of(name, landed), now),
            writes.clear_deltas(ledger.ids, key),
        )
        ledger.say(call_returned(call, landed))
        if ledger.setup.traits[name].effect != "read":
            ledger.protect()
        if not last:
            ledger.also(*writes.land_call(ledger.ids, landed.result, now))
            yield from ledger.flush()

    def land_all(self, landed: Sequence[Landed]) -> Flow[None]:
        """Keep what still landed when the run was stopped."""
        for one in landed:
            yield from self._land(one, last=False)

    def settle_cancelled(self, reason: str) -> None:
        """Give every open call of a cancelled run a result, so that the history stays valid. Staged, not written."""
        for call in self.ledger.log.state.open:
            if call.key not in self.done:
                begun = call.key in self.running or call.key in self._started
                text = UNKNOWN if begun else CANCELLED
                why = f" ({reason})" if reason else ""
                result = Returned(call.key, False, (Text(text + why),), {"refused": "cancelled"})
                self._refuse(call, result)
        self.running.clear()
        self._stage_results()

    def _stage_results(self) -> None:
        for call in self.ledger.log.state.open:
            self.ledger.stage(call.key, f"tool:{call.key}", self.done[call.key])
        if self._rows:
            self.ledger.also(writes.clear_calls(self.ledger.ids))
        self.done, self._rows, self._started = {}, False, frozenset()

    def _settle(self) -> Flow[None]:
        ledger = self.ledger
        if ledger.log.state.phase is not Phase.CALLS:
            return
        self._stage_results()
        now = yield from Now()
        seq = ledger.log.head.seq + ledger.staged_facts
        ledger.also(writes.checkpoint(ledger.ids, writes.Head(seq), ledger.log.state, now))
