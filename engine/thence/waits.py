"""Waits: what the world owes a run, who answered, and how both are written (§10). Values only.

The fact says that the turn waits; the row beside it is what people and other programs see and answer. Inserting the
answer's row decides who answered: one per wait, bound to its digest, before its deadline (triggers). The owner only
turns the winner into a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from .answers import read_answer
from .canonical import Json, dumps, dumps_checked, sha256_hex
from .chat import Usage
from .facts import Call, WaitAnswered, WaitKind, WaitOpened
from .identity import MAX_ID_BYTES
from .plan import Op, Params, Plan, Query, Row, Select
from .rows import read_payload, read_text
from .state import State
from .writes import RunIds

WaitState: TypeAlias = Literal["open", "answered", "closed"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that a run waits for (§10). :meth:`Session.answer` says what each kind takes for an answer.

    Attributes:
        id: unique in its session, such as ``t3-r1-c0-w1``.
        session_id, run_id: whose wait it is; a resumed run takes its waits along.
        kind: ``confirmation`` (may the call run?), ``question`` (a tool asks a person), ``deferred`` (a tool's result
            comes later), ``unknown_outcome`` (what came of a ``once`` call that a crash cut off?), ``budget_hold`` (may
            the call, or the model request, be made?), ``child`` (a subagent's run).
        subject: key of the call it is about, or of the answer to a model request that is held.
        tool, arguments: of the call, or None.
        question: a text for people, or None.
        digest: SHA-256 of what is asked about: an answer for something else is refused.
        deadline_ms: until when it may be answered, milliseconds since the epoch; None: for ever.
        state: ``open``; ``answered`` (not acted on yet); ``closed`` (acted on, or its turn is over).
        opened_ms: when it was opened, in milliseconds since the epoch.
        value, by: the answer, and who gave it, once there is one.
    """

    id: str
    session_id: str
    run_id: str
    kind: WaitKind
    subject: str
    tool: str | None
    arguments: Mapping[str, Json] | None
    question: str | None
    digest: str
    deadline_ms: int | None
    state: WaitState
    opened_ms: int
    value: Json = None
    by: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The wait as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has won and is no fact yet; ``value`` is JSON, if it can be read."""

    wait_id: str
    value: bytes
    by: str | None
    expired: bool

    def fact(self, kind: WaitKind) -> WaitAnswered:
        """What the log is told, of a wait of this kind."""
        return WaitAnswered(
            self.wait_id, None if self.expired else read_answer(kind, self.value), self.by, self.expired
        )


def digest_of_call(call: Call) -> str:
    """What an answer about a call is bound to: SHA-256 of the canonical ``[tool, arguments]``."""
    return sha256_hex(dumps_checked([call.name, call.arguments]))


def open_wait(ids: RunIds, wait: WaitOpened, call: Call | None, now_ms: int) -> Op:
    """The row that people see and answer."""
    shown: dict[str, Json] = dict(wait.about)
    if call is not None:
        shown |= {"tool": call.name, "arguments": call.arguments}
    row: Params = {
        "session_pk": ids.session_pk,
        "run_pk": ids.run_pk,
        "wait_id": wait.wait_id,
        "kind": wait.kind,
        "subject": wait.subject,
        "digest": wait.digest,
        "deadline_ms": wait.deadline_ms,
        "fence": ids.fence,
        "opened_ms": now_ms,
        "payload": dumps(shown),
    }
    return Op("wait_open", (row,))


def close(ids: RunIds, wait_id: str, now_ms: int) -> Op:
    """Its answer is a fact now."""
    row: Params = {"session_pk": ids.session_pk, "wait_id": wait_id, "fence": ids.fence, "now_ms": now_ms}
    return Op("wait_close", (row,))


def close_all(ids: RunIds, now_ms: int) -> Op:
    """The turn is over: nobody is asked any more."""
    return Op("wait_close_all", ({"session_pk": ids.session_pk, "fence": ids.fence, "now_ms": now_ms},))


def adopt(ids: RunIds) -> Op:
    """A run that goes on takes over the waits of the one before it."""
    return Op("wait_adopt", ({"session_pk": ids.session_pk, "run_id": ids.run_id, "fence": ids.fence},))


def expire(ids: RunIds, now_ms: int) -> Op:
    """Waits whose deadline has passed are answered by that, unless somebody was faster."""
    return Op("wait_expire", ({"session_pk": ids.session_pk, "now_ms": now_ms},))


def answer(session_pk: int, wait_id: str, value: Json, *, digest: str | None, by: str | None, now_ms: int) -> Plan:
    """Somebody's answer. Refused with WAIT_ALREADY_ANSWERED, WAIT_CLOSED, WAIT_DIGEST_MISMATCH or WAIT_EXPIRED."""
    row: Params = {
        "session_pk": session_pk,
        "wait_id": wait_id,
        "value": dumps(value),
        "by": by,
        "digest": digest,
        "now_ms": now_ms,
    }
    return Plan((Op("wait_answer", (row,), expect=1, refusal="WAIT_NOT_FOUND"),), durable=True)


def park(ids: RunIds, state: State, *, tool_calls: int, without_usage: int, now_ms: int) -> Op:
    """Nothing else can be done. Refused with ANSWERED when an answer, or an order to stop, has come meanwhile."""
    row: Params = {
        "run_pk": ids.run_pk,
        "fence": ids.fence,
        "now_ms": now_ms,
        "rounds": state.rounds,
        "tool_calls_count": tool_calls,
        **state.usage.to_dict(),
        "requests_without_usage": without_usage,
    }
    return Op("run_park", (row,), expect=1, refusal="ANSWERED")


def wake(ids: RunIds, now_ms: int) -> Op:
    """The same run goes on."""
    row: Params = {"run_pk": ids.run_pk, "fence": ids.fence, "now_ms": now_ms}
    return Op("run_wake", (row,), expect=1, refusal="SESSION_BUSY")


def answers(session_pk: int) -> Query[list[Answer]]:
    """Answers that are no facts yet, in the order in which the waits were opened."""
    return Query(
        (Select("wait_answers", {"session_pk": session_pk}),),
        lambda rows: [Answer(wait_id, value, _by(by), bool(expired)) for wait_id, value, by, expired in rows[0]],
    )


def waits(session_pk: int | None = None, *, run_id: str | None = None) -> Query[list[Wait]]:
    """Waits that are not closed, oldest first: of one session or of all, of one run or of all."""
    params: Params = {"session_pk": session_pk, "run_id": run_id}
    return Query((Select("wait_list", params),), lambda rows: [_wait(row) for row in rows[0]])


def wait(session_pk: int, wait_id: str) -> Query[Wait | None]:
    """One wait of a session, closed or not."""
    params: Params = {"session_pk": session_pk, "wait_id": wait_id}
    return Query((Select("wait_get", params),), lambda rows: _wait(rows[0][0]) if rows[0] else None)


def answered_runs(now_ms: int) -> Query[list[tuple[str, str]]]:
    """(session id, run id) of parked runs that can go on: every wait is answered or past its deadline."""
    return Query(
        (Select("wait_answered_runs", {"now_ms": now_ms}),),
        lambda rows: [(session_id, run_id) for session_id, run_id in rows[0]],
    )


@dataclass(frozen=True, slots=True)
class ParkedRun:
    """Where a parked run stands: its next event, and its totals so far."""

    next_event: int
    tool_calls: int
    without_usage: int
    usage: Usage


def parked_run(run_pk: int) -> Query[ParkedRun]:
    """How far a parked run has come."""

    def value(rows: Any) -> ParkedRun:
        events, calls, unknown, *usage = rows[0][0]
        return ParkedRun(events, calls, unknown, Usage(*usage))

    return Query((Select("run_parked", {"run_pk": run_pk}),), value)


def _wait(row: Row) -> Wait:
    session_id, run_id, wait_id, kind, subject, digest, deadline_ms, opened_ms, closed_ms, payload, value, by = row
    shown = read_payload(payload) or {}
    state: WaitState = "closed" if closed_ms is not None else "open" if value is None else "answered"
    return Wait(
        id=wait_id,
        session_id=session_id,
        run_id=run_id,
        kind=kind,
        subject=subject,
        tool=shown.get("tool"),
        arguments=shown.get("arguments"),
        question=shown.get("question"),
        digest=digest,
        deadline_ms=deadline_ms,
        state=state,
        opened_ms=opened_ms,
        value=None if value is None else read_answer(kind, value),
        by=_by(by),
    )


def _by(name: bytes | None) -> str | None:
    return None if name is None else read_text(name[:MAX_ID_BYTES])
