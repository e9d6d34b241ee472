"""Runs and traces as readers get them (§1, §10). Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .chat import Usage

TERMINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a turn (§7). Times are milliseconds since the epoch, by the session's clock.

    Attributes:
        id, session_id: the run's id, unique in the file, and its session.
        status: created, planning, executing, verifying, parked, completed, failed or cancelled; the last three final.
        state: the status, or ``interrupted`` (not final and no living owner), or ``superseded`` (another run went on).
        prompt: what the user said; for a run that resumed another one, and has no prompt of its own, the text
            ``<resume run=ID>`` with that run's id.
        created_ms, updated_ms, ended_ms: ``ended_ms`` is None before its end.
        rounds, tool_calls_count: of the turn, earlier runs of it included; written when the run ends or parks.
        usage: summed over the turn, earlier runs of it included; written when the run ends.
        requests_without_usage: requests of which nobody knows what they took, and which are not in ``usage``: answers
            whose provider did not say, and attempts of this run that failed, or were cut off by a stop, after they
            were sent. The one during which its process died is not among them.
        resumable: it failed outside the transcript, and ``resume_run`` goes on at the failed step.
        error_code, error_message: of a failed or cancelled run, else None.
        result_text: the answer of a completed run, else None.
        event_count: cumulative: one past the sequence of the newest event ever.
        checkpoint_round: the round after which its checkpoint stands; None without one.
        resumed_from, superseded_by: ids of the run that it goes on from, and of the one that goes on from it.
        owner: name of the process that has the session now, or None.
    """

    id: str
    session_id: str
    status: str
    state: str
    prompt: str
    created_ms: int
    updated_ms: int
    ended_ms: int | None
    rounds: int
    tool_calls_count: int
    usage: Usage
    requests_without_usage: int
    resumable: bool
    error_code: str | None
    error_message: str | None
    result_text: str | None
    event_count: int
    checkpoint_round: int | None
    resumed_from: str | None
    superseded_by: str | None
    owner: str | None

    @classmethod
    def evicted(cls, run_id: str, session_id: str, prompt: str, status: str, text: str) -> Run:
        """A run whose row was evicted: what its facts still tell. Times and totals are 0."""
        failed = status == "failed"
        return cls(
            id=run_id,
            session_id=session_id,
            status=status,
            state=status,
            prompt=prompt,
            created_ms=0,
            updated_ms=0,
            ended_ms=0,
            rounds=0,
            tool_calls_count=0,
            usage=Usage(),
            requests_without_usage=0,
            resumable=False,
            error_code="RUN_FAILED" if failed else None,
            error_message=text if failed else None,
            result_text=None if failed else text,
            event_count=0,
            checkpoint_round=None,
            resumed_from=None,
            superseded_by=None,
            owner=None,
        )

    @property
    def is_terminal(self) -> bool:
        """The status will never change."""
        return self.status in TERMINAL

    def seen_by(self, alive: Mapping[str, bool]) -> Run:
        """The run with its state derived: ``alive`` says which owners still hold their kernel lock."""
        if self.is_terminal or self.status == "parked" or self.state == "superseded":
            return self
        living = self.owner is not None and alive.get(self.owner, False)
        return self if living else replace(self, state="interrupted")

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session's model requests took.

    Attributes:
        session_id: the session.
        known: answers whose provider said what they took; ``usage`` is their sum.
        unknown: requests that may have cost something nobody knows: answers without usage, for as long as the log, and
            attempts that failed, or were cut off by a stop, after they were sent, as long as their runs are kept. Never
            counted as 0 in ``usage``: whoever keeps a budget must put an estimate of his own in their place.
    """

    session_id: str
    known: int
    unknown: int
    usage: Usage

    def to_dict(self) -> dict[str, Any]:
        """The sums as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """What one tool run cost; no arguments and no output text (§10).

    Attributes:
        number: from 0 in its session; it goes on when old ones are evicted.
        run_id: the run of the call; None when that is not known any more.
        timestamp_ms: when it ended, in milliseconds since the epoch.
        payload: ``schema`` (``thence.trace_event.v1``), ``kind``, ``name`` (the tool), ``success``, ``exit_code`` (None
            where there is none), ``duration_ms``, ``output_bytes``.
    """

    number: int
    run_id: str | None
    timestamp_ms: int
    payload: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The trace event as JSON: its own fields, flat."""
        return {
            **self.payload,
            "number": self.number,
            "run_id": self.run_id,
            "timestamp_ms": self.timestamp_ms,
        }


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as ``agent.list_sessions`` shows it.

    Attributes:
        session_id: unique in the file, for ever.
        workspace: absolute path of the folder that its tools work in.
        tenant_id, principal, agent_template_id, correlation_id: its tags (§3), None where it has none.
        created_ms: when it was made, in milliseconds since the epoch.
        runs_ever: how many runs it had, evicted ones included.
        busy: a living process, this one or another, has an operation on it now. A parked run keeps nobody busy.
    """

    session_id: str
    workspace: str
    tenant_id: str | None
    principal: str | None
    agent_template_id: str | None
    correlation_id: str | None
    created_ms: int
    runs_ever: int
    busy: bool

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON."""
        return asdict(self)
