"""The turn: a generator of effects, written once, pure (§5).

`fold.next_step` says what comes next; the methods here ask the world for it and stage what it answered. What is staged
is written by one commit (:meth:`Turn.flush`) before anything leaves the process: before a model is asked, before a tool
starts, before the caller is told. `host.drive` runs the same generator with or without ``await``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from . import writes
from .canonical import Json
from .chat import Request, ToolSpec, Usage
from .effects import AskGuard, AskModel, Backoff, Commit, DrainTools, Flow, GuardDecision, IsGuarded, ModelFailed, Now, Stopped
from .errors import BudgetExhausted, RunFailed, RunInterrupted, ThenceError
from .events import NewEvent
from .facts import Asked, Ended, NewFact, Payload, Text, answer_key, turn_key
from .fold import CONTINUE_TEXT, Phase, next_step
from .limits import Limits
from .log import Log
from .plan import Op, Plan
from .report import end_of_answer, end_of_run, start_of_request, threshold_hit
from .rounds import Rounds
from .steps import Ask, Continue, End, Settled, Traits, UseTools
from .transcript import record_answer
from .writes import RunIds


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run started with and keeps: it shapes every request together with the log."""

    model: str
    instructions: str
    settings: Mapping[str, Json]
    specs: tuple[ToolSpec, ...]
    traits: Mapping[str, Traits]
    limits: Limits
    output_schema: Mapping[str, Json] | None = None
    reread: ToolSpec | None = None
    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended in this process. ``error`` is what the caller is told of a failed or interrupted one."""

    status: Literal["completed", "failed", "cancelled", "interrupted"]
    run_id: str
    text: str
    usage: Usage
    tool_calls_count: int
    error: ThenceError | None = None


class Turn:
    """One run of one turn. Holds what is staged and not yet written; the log says everything else."""

    def __init__(self, ids: RunIds, log: Log, setup: Setup) -> None:
        self.ids, self.log, self.setup = ids, log, setup
        self.rounds = Rounds(self)
        self._facts: list[NewFact] = []
        self._events: list[NewEvent] = []
        self._ops: list[Op] = []
        self._durable = False

    # ------------------------------------------------------------------ staging and writing
    def stage(self, key: str, cause: str | None, payload: Payload) -> None:
        """A fact for the next commit; the fold moves at once."""
        fact = NewFact(key, cause, payload)
        self.log.add((fact,))
        self._facts.append(fact)

    def say(self, *events: NewEvent) -> None:
        """Events for the next commit, and for live readers after it."""
        self._events.extend(events)

    def also(self, *ops: Op) -> None:
        """Other writes for the next commit."""
        self._ops.extend(ops)

    def protect(self) -> None:
        """The next commit protects an effect or is acknowledged: it must survive a power cut."""
        self._durable = True

    @property
    def staged(self) -> bool:
        """Whether a flush would write anything."""
        return bool(self._facts or self._events or self._ops)

    @property
    def staged_facts(self) -> int:
        """How many facts the next commit appends."""
        return len(self._facts)

    def flush(self) -> Flow[None]:
        """Write all that is staged, as one transaction."""
        if not self.staged:
            return
        now = yield from Now()
        head = self.log.head
        ops: tuple[Op, ...] = ()
        if self._facts:
            ops, head = writes.append(self.ids, head, self._facts, now)
        events = tuple(self._events)
        ops = (*ops, *writes.record_events(self.ids, events, now), *self._ops)
        plan = Plan(ops, self._durable)
        self._facts, self._events, self._ops, self._durable = [], [], [], False
        yield from Commit(plan, events, now)
        self.log.head = head

    # ------------------------------------------------------------------ the loop
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
                    outcome = yield from self.rounds.settle_round()
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
            self.say(start_of_request(number))
            refusal = yield from self._check_model_budget()
            if refusal is not None:
                return refusal
            yield from self.flush()
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
        answer = record_answer(said, setup.model)
        self.stage(step, f"infer:{step}", answer)
        self.also(writes.clear_deltas(self.ids, step))
        self.say(*end_of_answer(number, answer, self.log.state.open))
        return None

    def _offered(self) -> tuple[ToolSpec, ...]:
        """The host's tools, and ``read_output`` from the first result on that was shown only in part."""
        setup = self.setup
        return (*setup.specs, setup.reread) if self.log.state.cut and setup.reread else setup.specs

    def _check_model_budget(self) -> Flow[Outcome | None]:
        if not (yield from IsGuarded()):
            return None
        yield from self.flush()
        estimate = (self.log.transcript.bytes + len(self.setup.instructions)) // 4
        decision = yield from AskGuard("check_before_llm", estimate)
        self.note_decision(decision)
        if decision.decision != "deny":
            return None
        error = BudgetExhausted(decision.resource, decision.reason, run_id=self.ids.run_id)
        return (yield from self.fail(error))

    def note_decision(self, decision: GuardDecision) -> None:
        """A soft or hard budget decision becomes an event."""
        if decision.decision != "allow":
            self.say(threshold_hit(decision))

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
        self.stage(key, f"continue:{key}", Asked((Text(CONTINUE_TEXT),), "continuation"))

    # ------------------------------------------------------------------ every way out
    def end(self, status: Literal["completed", "failed", "cancelled"], code: str | None, message: str | None) -> Flow[Outcome]:
        """Close the turn with ``turn.ended``; the run is over."""
        key = f"{turn_key(self.log.state.turn)}-end"
        self.stage(key, f"end:{key}", Ended(status, code, message))
        error: ThenceError | None = None
        if status == "failed":
            error = RunFailed(code or "RUN_FAILED", message or "the turn failed", run_id=self.ids.run_id)
        return (yield from self._finish(status, error, resumable=False))

    def fail(self, error: ThenceError) -> Flow[Outcome]:
        """What fails outside the transcript ends the run without ``turn.ended``: it can be resumed at this step."""
        return (yield from self._finish("failed", error, resumable=True))

    def stop(self, stopped: Stopped) -> Flow[Outcome]:
        """Settle what is in flight and let go: for ever after a cancel, until a resume after an interrupt."""
        landed = yield from DrainTools(stopped.grace_ms)
        yield from self.rounds.land_all(landed)
        if stopped.kind == "interrupt":
            return (yield from self._interrupt())
        if stopped.kind == "timeout":
            return (yield from self.fail(RunFailed("EXECUTION_TIMEOUT", stopped.reason, run_id=self.ids.run_id, resumable=True)))
        self.rounds.settle_cancelled(stopped.reason)
        return (yield from self.end("cancelled", "CANCELLED", stopped.reason or None))

    def _interrupt(self) -> Flow[Outcome]:
        self.also(writes.release(self.ids))
        self.protect()
        yield from self.flush()
        open_calls = tuple(call.key for call in self.log.state.open)
        return self._outcome("interrupted", RunInterrupted(self.ids.run_id, open_calls))

    def _finish(
        self, status: Literal["completed", "failed", "cancelled"], error: ThenceError | None, *, resumable: bool
    ) -> Flow[Outcome]:
        state = self.log.state
        now = yield from Now()
        self.say(end_of_run(status, state, error))
        self.also(
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
        self.protect()
        yield from self.flush()
        return self._outcome(status, error)

    def _outcome(
        self, status: Literal["completed", "failed", "cancelled", "interrupted"], error: ThenceError | None
    ) -> Outcome:
        state = self.log.state
        text = state.text if state.phase in (Phase.IDLE, Phase.ANSWERED) else ""
        return Outcome(status, self.ids.run_id, text, state.usage, state.tool_calls, error)

