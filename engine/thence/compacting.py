"""One compaction as a flow: what is asked of a model, and the fact that its answer becomes (§5).

A summary that fails changes nothing: it is logged, and the turn goes on without. Every attempt at it is checked by the
budget guard as any other request is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import compaction
from .chat import Reply, Request, Usage, usable_usage
from .compacted import Compacted, Trigger
from .compaction import Compaction, Cut
from .effects import AskGuard, AskModel, Backoff, Flow, ModelFailed, SafePoint, Stopped
from .errors import BudgetExhausted, ModelError, ThenceError
from .facts import Answered, NewFact, turn_key
from .fold import advance
from .ledger import Ledger
from .report import context_compacted
from .state import Phase
from .state_json import encode_state
from .transcript import record_answer

log = logging.getLogger("thence.compaction")

NOTHING = "there is nothing in it that a summary could take the place of"
AGAIN = "this turn was compacted for that reason already"


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no summary. Nothing was changed."""

    error: ThenceError


class Compactor:
    """The compactions of one operation."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._gave_up = False

    def before_request(self, estimate: Callable[[], int], *, hooked: bool) -> Flow[Stopped | None]:
        """Compact if the window is as full as the session's limit says, or a hook said so: once a turn."""
        if self._gave_up or not (hooked or self.ledger.setup.limits.auto_compact):
            return None
        tokens = estimate()
        state, limits = self.ledger.log.state, self.ledger.setup.limits
        trigger = compaction.due(state, limits, max(tokens, state.context_tokens), hooked=hooked)
        if trigger is None:
            return None
        done = yield from self.compact(trigger, tokens)
        return done if isinstance(done, Stopped) else None

    def after_overflow(self, estimate: int) -> Flow[Stopped | str | None]:
        """Compact because a provider said that the request is too long for it. None: ask again; a text: why not."""
        if self.ledger.log.state.overflowed:
            return AGAIN
        done = yield from self.compact("overflow", estimate)
        if isinstance(done, Failed):
            return f"its summary failed: {done.error}"
        if isinstance(done, Stopped):
            return done
        return NOTHING if done is None else None

    def compact(self, trigger: Trigger, estimate: int) -> Flow[Compaction | Failed | Stopped | None]:
        """Ask for a summary and stage it; None when there is nothing to compact. ``estimate``: the request's tokens."""
        ledger, window = self.ledger, self.ledger.setup.limits.max_context_tokens
        state, transcript = ledger.log.state, ledger.log.transcript
        used = max(estimate, state.context_tokens)
        room = compaction.room_for(window, used, estimate, trigger)
        cut = compaction.choose(transcript, room, closed=state.phase is Phase.IDLE)
        if cut is None:
            return None
        key = f"{turn_key(state.turn)}-compact{state.compactions + 1}"
        request = compaction.summary_request(ledger.setup.model, ledger.setup.settings, cut)
        said = yield from self._ask(request, key)
        if isinstance(said, Stopped):
            return said
        if isinstance(said, Failed):
            self._gave_up = True
            log.warning("compaction of session '%s' failed: %s", ledger.ids.session_id, said.error)
            return said
        fact = self._fact(key, trigger, cut, said)
        ledger.stage(key, _cause(key), fact)
        done = Compaction(len(transcript), len(ledger.log.transcript), fact.summary)
        ledger.say(context_compacted(ledger.ids.session_id, done, round(100 * used / window, 1)))
        return done

    def _fact(self, key: str, trigger: Trigger, cut: Cut, said: Answered) -> Compacted:
        transcript, here = self.ledger.log.transcript, self.ledger.log.seq + 1
        bare = Compacted(
            trigger=trigger,
            summary=compaction.cut_end(said.text.strip(), cut.summary_bytes),
            kept_message=None if cut.kept_message is None else transcript.seq(cut.kept_message),
            kept_from=transcript.seq(cut.tail) if cut.tail < len(transcript) else here,
            state={},
            usage=said.usage,
            model=said.model,
        )
        after = advance(self.ledger.log.state, NewFact(key, _cause(key), bare))
        return replace(bare, state=encode_state(after))

    def _ask(self, request: Request, key: str) -> Flow[Answered | Failed | Stopped]:
        ledger, attempt = self.ledger, 0
        while True:
            attempt += 1
            denied = yield from self._check_budget(request)
            if denied is not None:
                return denied
            stopped = yield from SafePoint()
            if stopped is not None:
                return stopped
            yield from ledger.flush()
            said = yield from AskModel(request, key, quiet=True)
            if isinstance(said, Stopped):
                ledger.failed_requests += 1
                return said
            if not isinstance(said, ModelFailed):
                return (yield from self._read(said, request.model))
            ledger.failed_requests += isinstance(said.error, ModelError)
            if not said.error.retryable or attempt >= ledger.setup.max_attempts:
                return Failed(said.error)
            stopped = yield from Backoff(attempt, said.retry_after_s)
            if stopped is not None:
                return stopped

    def _check_budget(self, request: Request) -> Flow[Failed | None]:
        if not self.ledger.present.is_guarded():
            return None
        yield from self.ledger.flush()
        decision = yield from AskGuard("check_before_llm", compaction.estimate(request))
        self.ledger.note_decision(decision)
        if decision.decision in ("deny", "hold"):
            return Failed(BudgetExhausted(decision.resource, decision.reason))
        return None

    def _read(self, said: Reply, model: str) -> Flow[Answered | Failed]:
        """The summary in an answer. What cannot be one was paid for all the same."""
        try:
            answer = record_answer(said, model)
            if answer.calls or not answer.text.strip():
                what = "calls tools" if answer.calls else "is empty"
                raise ModelError("bad_summary", f"the model's summary {what}", retryable=False)
        except ModelError as error:
            self.ledger.failed_requests += 1
            yield from self._record(usable_usage(said.usage))
            return Failed(error)
        yield from self._record(answer.usage)
        return answer

    def _record(self, usage: Usage | None) -> Flow[None]:
        if usage is not None and self.ledger.present.is_guarded():
            yield from AskGuard("record_after_llm", usage)


def _cause(key: str) -> str:
    return f"compact:{key}"
