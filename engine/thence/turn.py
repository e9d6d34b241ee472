"""The turn: a generator of effects, written once, pure (§5).

`fold.next_step` says what comes next; the methods here ask the world for it and stage what it answered. What is staged
is written by one commit (`ledger.Ledger.flush`) before anything leaves the process: before a model is asked, before a
tool starts, before the caller is told. `host.drive` runs the same generator with or without ``await``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from . import writes
from .chat import Request, ToolSpec, Usage
from .effects import AskGuard, AskModel, Backoff, DrainTools, Flow, IsGuarded, ModelFailed, Now, SafePoint, Stopped
from .errors import BudgetExhausted, ModelError, RunFailed, RunInterrupted, ThenceError
from .facts import Asked, Ended, Text, answer_key, turn_key
from .fold import CONTINUE_TEXT, Phase, next_step
from .ledger import Ledger, Setup, configuration
from .log import Log
from .report import end_of_answer, end_of_run, start_of_request
from .rounds import Rounds
from .steps import Ask, Continue, End, Settled, UseTools
from .transcript import record_answer
from .writes import RunIds


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended in this process. ``error`` is what the caller is told of a failed or interrupted one."""

    status: Literal["completed", "failed", "cancelled", "interrupted"]
    run_id: str
    text: str
    usage: Usage
    tool_calls_count: int
    error: ThenceError | None = None
    replayed: bool = False


class Turn:
    """One run of one turn."""

    def __init__(self, ids: RunIds, log: Log, setup: Setup) -> None:
        self.ids, self.log, self.setup = ids, log, setup
        self.ledger = Ledger(ids, log, setup)
        self.rounds = Rounds(self.ledger)
        self._configured = False

    def run(self) -> Flow[Outcome]:
        """Perform steps until the turn has ended, failed outside the transcript, or was stopped."""
        while True:
            state = self.log.state
            step = next_step(state, self.setup.limits)
            outcome: Outcome | None = None
            match step:
                case Ask(offer_tools):
                    outcome = yield from self._ask(offer_tools)
                case UseTools():
                    stopped = yield from self.rounds.settle_round()
                    if stopped is not None:
                        outcome = yield from self.stop(stopped)
                case Continue():
                    self._continue()
                case End(status, code, message):
                    return (yield from self.end(status, code, message))
                case Settled():
                    return self._outcome("completed", None)
                case _:
                    assert_never(step)
            if outcome is not None:
                return outcome

    def _ask(self, offer_tools: bool) -> Flow[Outcome | None]:
        state, setup = self.log.state, self.setup
        number = state.request + 1
        step = answer_key(state.turn, number)
        attempt = 0
        while True:
            attempt += 1
            self._configure()
            self.ledger.say(start_of_request(number))
            refusal = yield from self._check_model_budget()
            if refusal is not None:
                return refusal
            # After the guard: it may have taken its time, and no model is asked once somebody said stop.
            stopped = yield from SafePoint()
            if stopped is not None:
                return (yield from self.stop(stopped))
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
                return (yield from self.stop(said))
            if not isinstance(said, ModelFailed):
                break
            if not said.error.retryable or attempt >= setup.max_attempts:
                return (yield from self._model_failed(said.error, attempt))
            stopped = yield from Backoff(attempt, said.retry_after_s)
            if stopped is not None:
                return (yield from self.stop(stopped))
        if said.usage is not None and (yield from IsGuarded()):
            yield from AskGuard("record_after_llm", said.usage)
        try:
            answer = record_answer(said, setup.model)
        except ModelError as error:
            return (yield from self._model_failed(error, attempt))
        self.ledger.stage(step, f"infer:{step}", answer)
        self.ledger.also(writes.clear_deltas(self.ids, step))
        self.ledger.say(*end_of_answer(number, answer, self.log.state.open))
        return None

    def _configure(self) -> None:
        """Record what shapes this run's requests, if it is not what the log says: a resuming host may differ."""
        if self._configured:
            return
        self._configured = True
        state = self.log.state
        config, blobs = configuration(self.setup)
        if config != state.config:
            key = f"{turn_key(state.turn)}-config{state.configs + 1}"
            self.ledger.also(*writes.keep_blobs(self.ids.session_pk, blobs))
            self.ledger.stage(key, None, config)

    def _offered(self) -> tuple[ToolSpec, ...]:
        """The host's tools, and ``read_output`` from the first result on that was shown only in part."""
        setup = self.setup
        return (*setup.specs, setup.reread) if self.log.state.cut and setup.reread else setup.specs

    def _check_model_budget(self) -> Flow[Outcome | None]:
        if not (yield from IsGuarded()):
            return None
        yield from self.ledger.flush()
        estimate = (self.log.transcript.bytes + len(self.setup.instructions)) // 4
        decision = yield from AskGuard("check_before_llm", estimate)
        self.ledger.note_decision(decision)
        if decision.decision != "deny":
            return None
        error = BudgetExhausted(decision.resource, decision.reason, run_id=self.ids.run_id)
        return (yield from self.fail(error))

    def _model_failed(self, error: ThenceError, attempts: int) -> Flow[Outcome]:
        message = str(error)
        if error.retryable:
            message = f"LLM circuit breaker triggered: failed after {attempts} attempt(s): {error}"
        code = error.code
        failure = RunFailed(code, message, run_id=self.ids.run_id, retryable=error.retryable, resumable=True)
        failure.__cause__ = error
        return (yield from self.fail(failure))

    def _continue(self) -> None:
        state = self.log.state
        key = f"{turn_key(state.turn)}-more{state.continuations + 1}"
        self.ledger.stage(key, f"continue:{key}", Asked((Text(CONTINUE_TEXT),), "continuation"))

    # ------------------------------------------------------------------ every way out
    def end(
        self, status: Literal["completed", "failed", "cancelled"], code: str | None, message: str | None
    ) -> Flow[Outcome]:
        """Close the turn with ``turn.ended``; the run is over."""
        key = f"{turn_key(self.log.state.turn)}-end"
        self.ledger.stage(key, f"end:{key}", Ended(status, code, message))
        error: ThenceError | None = None
        if status == "failed":
            error = RunFailed(code or "RUN_FAILED", message or "the turn failed", run_id=self.ids.run_id)
        return (yield from self._finish(status, error, resumable=False))

    def fail(self, error: ThenceError) -> Flow[Outcome]:
        """What fails outside the transcript ends the run without ``turn.ended``: it can be resumed at this step."""
        return (yield from self._finish("failed", error, resumable=True))

    def stop(self, stopped: Stopped) -> Flow[Outcome]:
        """Settle what is in flight and let go: for ever after a cancel, until a resume after an interrupt."""
        drained = yield from DrainTools(stopped.grace_ms)
        stopped = drained.stopped or stopped
        yield from self.rounds.land_all(drained.landed)
        if stopped.kind == "interrupt":
            return (yield from self._interrupt())
        if stopped.kind == "timeout":
            return (
                yield from self.fail(
                    RunFailed("EXECUTION_TIMEOUT", stopped.reason, run_id=self.ids.run_id, resumable=True)
                )
            )
        self.rounds.settle_cancelled(stopped.reason)
        return (yield from self.end("cancelled", "CANCELLED", stopped.reason or None))

    def _interrupt(self) -> Flow[Outcome]:
        self.ledger.also(writes.release(self.ids))
        self.ledger.protect()
        yield from self.ledger.flush()
        open_calls = tuple(call.key for call in self.log.state.open)
        return self._outcome("interrupted", RunInterrupted(self.ids.run_id, open_calls))

    def _finish(
        self, status: Literal["completed", "failed", "cancelled"], error: ThenceError | None, *, resumable: bool
    ) -> Flow[Outcome]:
        state = self.log.state
        now = yield from Now()
        self.ledger.say(end_of_run(status, state, error))
        self.ledger.also(
            writes.end_run(
                self.ids,
                state,
                status=status,
                now_ms=now,
                text=state.text if status == "completed" else None,
                error=(error.code, str(error)) if error else None,
                resumable=resumable,
            ),
            writes.release(self.ids),
        )
        self.ledger.protect()
        yield from self.ledger.flush()
        return self._outcome(status, error)

    def _outcome(
        self, status: Literal["completed", "failed", "cancelled", "interrupted"], error: ThenceError | None
    ) -> Outcome:
        state = self.log.state
        text = state.text if state.phase in (Phase.IDLE, Phase.ANSWERED) else ""
        return Outcome(status, self.ids.run_id, text, state.usage, state.tool_calls, error)
