"""The tool half of a turn: batches, in-flight rows, landings, and the one commit that settles a round (§5).

A call is judged just before its batch; its ``started`` row is written before it runs, its result as it lands. When the
last has landed, the results become facts in call order: the log does not depend on which tool was faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import hooked, inflight, waits, writes
from .canonical import Json
from .consent import ask_consent, new_wait, stage_wait, told
from .effects import AwaitTool, Flow, Landed, Now, Postponed, SafePoint, StartTool, Stopped
from .facts import Denied, Returned, Text, WaitOpened
from .inflight import InflightCall
from .judge import judge
from .ledger import Ledger
from .parts import blob_sha
from .report import call_refused, call_returned, call_started, call_told, trace_of
from .state import Phase
from .steps import OpenCall, Park, Run, Verdict
from .waits import digest_of_call

CANCELLED = "Error: not run, because the run was cancelled"
UNKNOWN = "Error: cancelled while it was running; its outcome is unknown"


class Rounds:
    """Calls of the newest answer: which have results (``done``) and which are running (``running``)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.done: dict[str, Returned | Denied] = {}
        self.running: dict[str, OpenCall] = {}
        self._rows = False
        self._started: frozenset[str] = frozenset()
        self._unknown: dict[str, int] = {}
        self._refused: list[tuple[OpenCall, Returned]] = []
        self._changed: dict[str, Mapping[str, Json]] = {}
        self._untold: list[tuple[OpenCall, Landed]] = []

    def adopt(self, calls: Sequence[InflightCall]) -> None:
        """Calls that had started before: a landed result counts, and ``once`` is not run again unasked (§7)."""
        self._rows = bool(calls)
        self._started = frozenset(call.call_key for call in calls)
        self._unknown = {c.call_key: c.starts for c in calls if c.result is None and c.effect == "once"}
        self.done.update({call.call_key: call.result for call in calls if call.result is not None})

    def settle_round(self) -> Flow[Stopped | Park | None]:
        """Run every open call, then make all results facts in one commit. A stop on the way is the caller's; so is
        parking, when calls wait for answers and nothing else can run."""
        while True:
            state, setup = self.ledger.log.state, self.ledger.setup
            if self._all_done():
                break
            verdicts = judge(state, self.done, setup.traits, setup.limits)
            if not verdicts:
                yield from self._keep_refusals()
                return Park()
            batch: list[OpenCall] = []
            for verdict in verdicts:
                call = yield from self._admit(verdict)
                if isinstance(call, Stopped):
                    return call
                if call is not None:
                    batch.append(call)
            # After the guard: it may have taken its time, and nothing starts once somebody said stop.
            stopped = yield from SafePoint()
            if stopped is None:
                stopped = yield from self._run_batch(batch)
            if stopped is not None:
                return stopped
        self._settle()
        return None

    def _admit(self, verdict: Verdict) -> Flow[OpenCall | Stopped | None]:
        """The call as it is to run now; None when it has its result without, or must wait."""
        ledger, call = self.ledger, verdict.call
        # What came of a call that ran before is told, or asked, whoever is against running it now.
        known = told(ledger.log.state, call, ledger.setup.traits, starts=self._unknown.get(call.key, 0))
        if isinstance(known, WaitOpened):
            yield from stage_wait(ledger, known, call)
            return None
        if known is not None:
            self._tell(call, known)
            return None
        if not isinstance(verdict, Run):
            self._refuse(call, verdict.result)
            return None
        if ledger.present.is_hooked("pre_tool_use"):
            hooked_call = yield from self._ask_hooks(call)
            if isinstance(hooked_call, Returned):
                self._refuse(call, hooked_call)
                return None
            # Hooks are not waited for once somebody said stop: what they did not say must not count as a yes.
            stopped = yield from SafePoint()
            if stopped is not None:
                return stopped
            call = hooked_call
        said = yield from ask_consent(ledger, call)
        if isinstance(said, WaitOpened):
            yield from stage_wait(ledger, said, call)
        elif said is not None:
            self._refuse(call, said)
        return call if said is None else None

    def _ask_hooks(self, call: OpenCall) -> Flow[OpenCall | Returned]:
        """The call as the host's hooks let it run, or the result that it gets instead."""
        outcome = yield from hooked.before_call(self.ledger, call)
        if outcome.refused is not None:
            return hooked.refusal(call, outcome)
        changed = hooked.changed(call, outcome)
        if changed is not None:
            self._changed[call.key] = hooked.change_note(outcome)
        return changed or call

    def _tell_hooks(self) -> Flow[None]:
        """``post_tool_use``, when no tool is running any more and its result is in the file."""
        ended, self._untold = self._untold, []
        if ended:
            yield from hooked.after_calls(self.ledger, ended)

    def _refuse(self, call: OpenCall, result: Returned | Denied) -> None:
        self.done[call.key] = result
        if isinstance(result, Returned):
            self._refused.append((call, result))
        self.ledger.say(call_refused(call, result))

    def _tell(self, call: OpenCall, result: Returned) -> None:
        """Somebody told what came of a call that ran before."""
        self.done[call.key] = result
        self._refused.append((call, result))
        self.ledger.say(call_told(call, result))

    def _keep_refusals(self) -> Flow[None]:
        """Before the run parks: what has a result without having run is not judged, and not told, a second time."""
        now = yield from Now()
        for call, result in self._refused:
            self._rows = True
            if call.key in self._started:
                self.ledger.also(*inflight.land_call(self.ledger.ids, result, now))
            else:
                self.ledger.also(inflight.refuse_call(self.ledger.ids, call, result))
        self._refused.clear()

    def _run_batch(self, batch: Sequence[OpenCall]) -> Flow[Stopped | None]:
        waiting = deque(batch)
        while waiting or self.running:
            yield from self._start_more(waiting)
            landed = yield from AwaitTool()
            if isinstance(landed, Stopped):
                return landed
            if isinstance(landed, Postponed):
                yield from self._postpone(landed)
                continue
            more = bool(waiting) or len(self.running) > 1
            yield from self._land(landed, last=not more and self._is_last(landed))
        yield from self._tell_hooks()
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
            self.ledger.also(inflight.start_calls(self.ledger.ids, fresh, setup.traits, now))
        if len(fresh) < len(starting):
            again = [call for call in starting if call.key in self._started]
            self.ledger.also(inflight.restart_calls(self.ledger.ids, again))
        self.ledger.say(*(call_started(call) for call in starting))
        if any(setup.traits[call.call.name].effect != "read" for call in starting):
            self.ledger.protect()
        yield from self.ledger.flush(now)
        # The chain hash at the model's answer names this call in every copy of the log (§7).
        anchor = self.ledger.log.answer_hash
        for call in starting:
            identity = f"{self.ledger.ids.session_id}\n{anchor.hex()}\n{call.position}"
            if not (yield from StartTool(call, blob_sha(identity.encode()))):
                # Somebody said stop in the meantime: it has not started, and its row must not say so.
                del self.running[call.key]
                if call.key not in self._started:
                    self.ledger.also(inflight.unstart_call(self.ledger.ids, call))

    def _is_last(self, landed: Landed) -> bool:
        """Whether nothing else of this answer will run: then the settling commit carries this landing too."""
        return self._all_done(landed.result.call_key)

    @property
    def executed(self) -> int:
        """Calls of this answer that ran and have landed, and are no facts yet."""
        return sum(isinstance(one, Returned) and "refused" not in one.metadata for one in self.done.values())

    def _all_done(self, landing: str = "") -> bool:
        return all(call.key in self.done or call.key == landing for call in self.ledger.log.state.open)

    def _land(self, landed: Landed, *, last: bool) -> Flow[None]:
        key = landed.result.call_key
        call = self.running.pop(key, None)
        if call is None:
            return
        if key in self._changed:
            note = {**landed.result.metadata, "arguments": self._changed.pop(key)}
            landed = replace(landed, result=replace(landed.result, metadata=note))
        if self.ledger.present.is_hooked("post_tool_use"):
            self._untold.append((call, landed))
            last = False  # the hooks may take their time: the result is written before they are told
        ledger, name = self.ledger, call.call.name
        now = yield from Now()
        self.done[key] = landed.result
        ledger.also(
            *writes.keep_blobs(ledger.ids.session_pk, landed.kept),
            writes.trace_call(ledger.ids, name, trace_of(name, landed), now),
        )
        ledger.clear_pieces(key)
        ledger.say(call_returned(call, landed))
        if ledger.setup.traits[name].effect != "read":
            ledger.protect()
        if not last:
            ledger.also(*inflight.land_call(ledger.ids, landed.result, now))
            yield from ledger.flush(now)

    def _postpone(self, postponed: Postponed) -> Flow[None]:
        """The tool will not answer now: somebody else will, perhaps in hours."""
        call = self.running.pop(postponed.call_key)
        digest = digest_of_call(call.call)
        about = {"question": postponed.question}
        wait = new_wait(self.ledger.log.state, call.key, postponed.kind, digest, postponed.deadline_ms, about)
        yield from stage_wait(self.ledger, wait, call)
        self.ledger.clear_pieces(call.key)
        yield from self.ledger.flush()

    def land_all(self, landed: Sequence[Landed | Postponed]) -> Flow[None]:
        """Keep what still landed when the run was stopped."""
        for one in landed:
            if isinstance(one, Postponed):
                yield from self._postpone(one)
            else:
                yield from self._land(one, last=False)
        yield from self._tell_hooks()

    def settle_cancelled(self, reason: str) -> Flow[None]:
        """Give every open call of a cancelled run a result, so that the history stays valid. Staged, not written."""
        if self.ledger.log.state.waits:
            self.ledger.also(waits.close_all(self.ledger.ids, (yield from Now())))
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
            self.ledger.also(inflight.clear_calls(self.ledger.ids))
        self.done, self._rows = {}, False
        self._refused.clear()
        self._started, self._unknown = frozenset(), {}

    def _settle(self) -> None:
        ledger = self.ledger
        if ledger.log.state.phase is not Phase.CALLS:
            return
        self._stage_results()
        ledger.settle()
