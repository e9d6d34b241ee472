"""The turn: a generator of effects, written once, pure (§5).

`fold.next_step` says what comes next; the methods here ask the world for it and stage what it answered. What is staged
is written by one commit (`ledger.Ledger.flush`) before anything leaves the process: before a model is asked, before a
tool starts, before the caller is told. `host.drive` runs the same generator with or without ``await``.
"""

from __future__ import annotations

from typing import assert_never

from . import hooked, writes
from .canonical import dumps_checked, sha256_hex
from .chat import Request, ToolSpec
from .compacting import Compactor
from .consent import held_reason, held_resource, is_approved, new_wait, stage_wait
from .effects import AskGuard, AskModel, Backoff, Flow, ModelFailed, SafePoint, Stopped
from .endings import Endings, Outcome
from .errors import BudgetExhausted, ContextOverflow, ModelError, RunFailed, ThenceError
from .facts import Asked, Text, answer_key, turn_key
from .fold import CONTINUE_TEXT, next_step
from .gating import pass_gate
from .ledger import Ledger, Present, Setup, configuration, estimate, tool_schemas
from .log import Log
from .report import end_of_answer, start_of_request
from .rounds import Rounds
from .steering import HEARING, hear
from .steps import Ask, Continue, End, OpenWait, Park, Settled, UseTools, Verify
from .transcript import record_answer
from .writes import RunIds


class Turn:
    """One run of one turn."""

    def __init__(self, ids: RunIds, log: Log, setup: Setup, present: Present) -> None:
        setup = hooked.as_left(setup, log.state)
        self.ids, self.log, self.setup = ids, log, setup
        self.ledger = Ledger(ids, log, setup, present)
        self.rounds = Rounds(self.ledger)
        self.endings = Endings(self.ledger, self.rounds)
        self._compactor = Compactor(self.ledger)
        self._hook_compacts = False
        self._configured = False
        self._used: set[str] = set()
        self._config_cause: str | None = None
        self._tool_bytes = 0

    def run(self) -> Flow[Outcome]:
        """Perform steps until the turn has ended, failed outside the transcript, or was stopped."""
        while True:
            if self.log.state.phase in HEARING and (yield from hear(self.ledger)):
                continue
            state = self.log.state
            step = next_step(state, self.setup.limits, gated=self.setup.gated)
            outcome: Outcome | None = None
            match step:
                case Ask(offer_tools):
                    outcome = yield from self._ask(offer_tools)
                case UseTools():
                    ended = yield from self.rounds.settle_round()
                    if isinstance(ended, Park):
                        outcome = yield from self.endings.park()
                    elif ended is not None:
                        outcome = yield from self.endings.stop(ended)
                case Park():
                    outcome = yield from self.endings.park()
                case Continue():
                    self._continue()
                case Verify(digest):
                    outcome = yield from self._verify(digest)
                case End(status, code, message):
                    outcome = yield from self.endings.end_unless_steered(status, code, message)
                case Settled():
                    return self.endings.outcome("completed", None)
                case _:
                    assert_never(step)
            if outcome is not None:
                return outcome

    def _ask(self, offer_tools: bool) -> Flow[Outcome | None]:
        state = self.log.state
        number = state.request + 1
        step = answer_key(state.turn, number)
        refusal = yield from self._ask_hooks(number, step, offer_tools)
        if refusal is not None:
            return refusal
        self._configure()
        stopped = yield from self._make_room(offer_tools)
        if stopped is not None:
            return (yield from self.endings.stop(stopped))
        setup, attempt = self.setup, 0
        while True:
            attempt += 1
            if attempt > 1:
                yield from hear(self.ledger)
            self.ledger.say(start_of_request(number))
            denied = yield from self._check_model_budget(step, offer_tools)
            if isinstance(denied, Park):
                return None
            if denied is not None:
                return denied
            # After the guard: it may have taken its time, and no model is asked once somebody said stop.
            stopped = yield from SafePoint()
            if stopped is not None:
                return (yield from self.endings.stop(stopped))
            yield from self.ledger.flush()
            request = Request(
                setup.model,
                setup.instructions,
                self.log.transcript.snapshot(),
                self._offered() if offer_tools else (),
                setup.settings,
                setup.output_schema,
            )
            said = yield from AskModel(request, step)
            if isinstance(said, Stopped):
                self.ledger.failed_requests += 1
                return (yield from self.endings.stop(said))
            if not isinstance(said, ModelFailed):
                break
            self.ledger.failed_requests += isinstance(said.error, ModelError)
            if isinstance(said.error, ModelError) and said.error.kind == "context_overflow":
                overflow = yield from self._overflowed(said.error, offer_tools)
                if overflow is not None:
                    return overflow
                attempt = 0  # it is another request now
                continue
            if not said.error.retryable or attempt >= setup.max_attempts:
                return (yield from self._model_failed(said.error, attempt))
            stopped = yield from Backoff(attempt, said.retry_after_s)
            if stopped is not None:
                return (yield from self.endings.stop(stopped))
        try:
            answer = record_answer(said, setup.model)
        except ModelError as error:
            return (yield from self._model_failed(error, attempt))
        if answer.usage is not None and self.ledger.present.is_guarded():
            yield from AskGuard("record_after_llm", answer.usage)
        self.ledger.stage(step, f"infer:{step}", answer)
        self.ledger.clear_pieces(step)
        self.ledger.say(*end_of_answer(number, answer, self.log.state.open))
        yield from hooked.after_answer(self.ledger, number, answer)
        return None

    def _ask_hooks(self, number: int, step: str, offer_tools: bool) -> Flow[Outcome | None]:
        """``pre_llm`` hooks: they may choose another model from this request of the turn on, or ask for compaction.
        Fails closed."""
        self._hook_compacts = False
        outcome = yield from hooked.before_request(self.ledger, number, lambda: self._estimate(offer_tools))
        if outcome is None:
            return None
        # They may have taken their time, and were not waited for once somebody said stop.
        stopped = yield from SafePoint()
        if stopped is not None:
            return (yield from self.endings.stop(stopped))
        why = outcome.refused
        if why is not None:
            return (yield from self.endings.fail(RunFailed("HOOK_FAILED", why, run_id=self.ids.run_id, resumable=True)))
        self._hook_compacts = outcome.compact_by is not None
        if outcome.model is not None and outcome.model != self.setup.model:
            self.setup = self.ledger.setup = hooked.with_model(self.setup, outcome.model)
            self._configured, self._config_cause = False, f"hook:{step}"
        return None

    def _make_room(self, offer_tools: bool) -> Flow[Stopped | None]:
        """A compaction before the request, if one is due."""
        before = self.log.transcript
        stopped = yield from self._compactor.before_request(
            lambda: self._estimate(offer_tools), hooked=self._hook_compacts
        )
        if stopped is None and self.log.transcript is not before:
            yield from hear(self.ledger)
        return stopped

    def _overflowed(self, error: ModelError, offer_tools: bool) -> Flow[Outcome | None]:
        """The provider's window is too small for the request: compact once a turn, and ask again. None: do so."""
        why = yield from self._compactor.after_overflow(self._estimate(offer_tools))
        if isinstance(why, Stopped):
            return (yield from self.endings.stop(why))
        if why is None:
            yield from hear(self.ledger)
            return None
        message = f"the request does not fit into the model's context window ({error}), and {why}"
        failure = ContextOverflow(message, why, run_id=self.ids.run_id)
        failure.__cause__ = error
        return (yield from self.endings.fail(failure))

    def _configure(self) -> None:
        """Record what shapes this run's requests, if it is not what the log says: a resuming host may differ."""
        if self._configured:
            return
        self._configured = True
        state = self.log.state
        config, blobs = configuration(self.setup)
        self._tool_bytes = len(blobs[config.tools_sha256])
        if config != state.config:
            key = f"{turn_key(state.turn)}-config{state.configs + 1}"
            self.ledger.also(*writes.keep_blobs(self.ids.session_pk, blobs))
            self.ledger.stage(key, self._config_cause, config)

    def _offered(self) -> tuple[ToolSpec, ...]:
        """The host's tools, and ``read_output`` from the first result on that was shown only in part."""
        setup = self.setup
        return (*setup.specs, setup.reread) if self.log.state.cut and setup.reread else setup.specs

    def _estimate(self, offer_tools: bool) -> int:
        """Tokens of the next request, roughly: a quarter of its bytes (§5)."""
        if not self._tool_bytes:
            self._tool_bytes = len(tool_schemas(self.setup))
        return estimate(self.setup, self.log.transcript.bytes, self._tool_bytes if offer_tools else 0)

    def _check_model_budget(self, step: str, offer_tools: bool) -> Flow[Outcome | Park | None]:
        held = self._held()
        if held is not None and held.answer is not None:
            if is_approved(held.answer):
                return None
            error = BudgetExhausted(held_resource(held), held_reason(held), run_id=self.ids.run_id)
            return (yield from self.endings.fail(error))
        if not self.ledger.present.is_guarded():
            return None
        yield from self.ledger.flush()
        decision = yield from AskGuard("check_before_llm", self._estimate(offer_tools))
        self.ledger.note_decision(decision)
        if decision.decision == "hold":
            about = {"resource": decision.resource, "question": decision.reason}
            wait = new_wait(self.log.state, step, "budget_hold", self._digest(step), None, about)
            yield from stage_wait(self.ledger, wait, None)
            return Park()
        if decision.decision != "deny":
            return None
        error = BudgetExhausted(decision.resource, decision.reason, run_id=self.ids.run_id)
        return (yield from self.endings.fail(error))

    def _held(self) -> OpenWait | None:
        """The newest hold of this request, once, if its answer counts: a yes is for one attempt at what was asked
        about, a no for the operation that heard it."""
        newest = self.log.state.waits[-1] if self.log.state.waits else None
        if newest is None or newest.answer is None or newest.wait_id in self._used:
            return None
        self._used.add(newest.wait_id)
        if is_approved(newest.answer):
            return newest if newest.digest == self._digest(newest.subject) else None
        return newest if newest.wait_id in self.endings.heard else None

    def _digest(self, step: str) -> str:
        """What a hold of a request is about."""
        return sha256_hex(dumps_checked([step, self.setup.model]))

    def _model_failed(self, error: ThenceError, attempts: int) -> Flow[Outcome]:
        message = str(error)
        if error.retryable:
            message = f"LLM circuit breaker triggered: failed after {attempts} attempt(s): {error}"
        code = error.code
        failure = RunFailed(code, message, run_id=self.ids.run_id, retryable=error.retryable, resumable=True)
        failure.__cause__ = error
        return (yield from self.endings.fail(failure))

    def _continue(self) -> None:
        state = self.log.state
        key = f"{turn_key(state.turn)}-more{state.continuations + 1}"
        self.ledger.stage(key, f"continue:{key}", Asked((Text(CONTINUE_TEXT),), "continuation"))

    def _verify(self, digest: str) -> Flow[Outcome | None]:
        closed = yield from pass_gate(self.ledger, digest)
        if isinstance(closed, Stopped):
            return (yield from self.endings.stop(closed))
        return None if closed is None else (yield from self.endings.fail(closed))
