"""What a host says at the completion gate: a report of its own, or a waiver (§5). A flow, driven by either face.

It claims the session as a turn does, appends one fact to the open turn, and lets go: whoever resumes the run finds it.
"""

from __future__ import annotations

from dataclasses import replace

from .. import writes
from ..canonical import Json, check_text, dumps, loads
from ..codec import encode
from ..effects import Commit, Flow, Now
from ..errors import SessionError
from ..facts import NewFact, Reported, Waived, turn_key
from ..log import Log
from ..plan import Plan
from ..reads import LastRun
from ..state import Phase, State
from ..writes import RunIds
from .core import SessionCore
from .short import shortly


def check_waiver(digest: object, reason: object) -> Waived:
    """The fact that a host's waiver becomes.

    Raises:
        TypeError, ValueError: what is no text, or blank.
    """
    return Waived(_check_words(digest, "digest"), _check_words(reason, "reason"))


def check_report(digest: object, passed: object, report: Json) -> Reported:
    """The fact that a host's own report becomes.

    Raises:
        TypeError, ValueError: a blank digest, no bool, or a report that is not JSON or over 16 MiB.
    """
    if not isinstance(passed, bool):
        raise TypeError(f"'passed' must be a bool, not {type(passed).__name__}")
    fact = Reported(_check_words(digest, "digest"), passed, loads(dumps(report)))
    encode(fact)
    return fact


def tell_gate(core: SessionCore, payload: Reported | Waived) -> Flow[None]:
    """Append what the host says to the open turn, whose changes it must name.

    Raises:
        SessionError: no turn waits at the gate, or its changes are others.
        SessionBusy: another operation is active.
    """

    def body(ids: RunIds, log: Log, last: LastRun | None) -> Flow[None]:
        fact = _fact(core.session_id, log.state, payload)
        if last is None:
            raise SessionError(f"the log of session '{core.session_id}' has an open turn and no run")
        now = yield from Now()
        by_run = replace(ids, run_id=last.run_id, run_pk=last.run_pk)
        ops, _, _ = writes.append(by_run, log.head, () if fact is None else (fact,), now)
        yield from Commit(Plan((*(ops if fact else ()), writes.release(ids)), durable=True))

    yield from shortly(core, body)


def _fact(session_id: str, state: State, payload: Reported | Waived) -> NewFact | None:
    """The fact to append; None for a waiver that is there already."""
    gate = state.gate
    if state.phase is not Phase.ANSWERED or not gate.changes:
        raise SessionError(f"no turn of session '{session_id}' waits at the completion gate")
    if payload.digest != gate.changes:
        raise SessionError(
            f"the open turn of session '{session_id}' has workspace changes {gate.changes}, not {payload.digest}"
        )
    if isinstance(payload, Reported):
        return NewFact(f"{turn_key(state.turn)}-verify{gate.reports + 1}", None, payload)
    if gate.waived:
        return None
    return NewFact(f"{turn_key(state.turn)}-waive{gate.waivers + 1}", None, payload)


def _check_words(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"'{field}' must be a string, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"'{field}' must not be empty or whitespace")
    return check_text(value, field)
