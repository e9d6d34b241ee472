"""What the host and people have a say in before a recorded call runs: permission, then budget (§5, §6, §10).

`judge` has found nothing against the call. What comes out here is one of three: it runs, it has a result without
running, or somebody must be asked first. Answers that the log has are honoured: nobody is asked the same thing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from . import waits
from .answers import UNREADABLE_RESULT
from .canonical import Json
from .effects import AskGuard, Flow, Now, Read
from .facts import Data, Denied, Returned, Text, WaitAnswered, WaitKind, WaitOpened, wait_key
from .ledger import Ledger
from .report import permission_denied, wait_answered, wait_opened
from .state import State
from .steps import OpenCall, OpenWait, Traits
from .waits import digest_of_call

Consent: TypeAlias = "None | Returned | Denied | WaitOpened"
"""None: the call runs. A result: it does not. A wait: not yet."""

LATE = "Error: nobody answered in time"


def told(state: State, call: OpenCall, tools: Mapping[str, Traits], *, starts: int) -> Returned | WaitOpened | None:
    """What came of a call that had started before and must not run twice (``starts``: how often it had), or of one
    whose tool has handed it over: the result that somebody told, or the question for it. None for any other call.
    """
    given = {wait.kind: wait.answer for wait in state.waits if wait.subject == call.key and wait.answer is not None}
    for kind in ("deferred", "question"):
        if kind in given:
            return _deferred_result(call, given[kind], tools)
    if not starts:
        return None
    known = given.get("unknown_outcome")
    if known is None or starts > _runs_wanted(state, call.key):
        return new_wait(state, call.key, "unknown_outcome", digest_of_call(call.call), None, {"question": WHAT})
    return _told_outcome(call, known, tools)


def ask_consent(ledger: Ledger, call: OpenCall) -> Flow[Consent]:
    """Whether ``call`` runs now."""
    state = ledger.log.state
    given: dict[WaitKind, WaitAnswered] = {}
    if state.waits:
        # A hook may have changed the arguments since somebody said yes: that was a yes to something else.
        about = digest_of_call(call.call)
        given = {w.kind: w.answer for w in state.waits if w.subject == call.key and w.answer and w.digest == about}
    permitted = yield from _permission(ledger, call, given.get("confirmation"))
    if permitted is not None:
        return permitted
    return (yield from _budget(ledger, call, given.get("budget_hold")))


WHAT = "This call had started when its process died, and must not run twice. What came of it?"


def _permission(ledger: Ledger, call: OpenCall, answer: WaitAnswered | None) -> Flow[Consent]:
    if answer is not None and not is_approved(answer):
        return _rejected(call, answer)  # a no stays a no, whatever the host's policy is by now
    policy, reread = ledger.setup.permissions, ledger.setup.reread
    if policy is None:
        return None
    name = call.call.name
    decision = policy.decide(name, call.call.arguments or {})
    if decision == "deny":
        reason = f"the policy denies '{name[:100]}'"
        ledger.say(permission_denied(call, reason))
        return refused(call, f"Error: permission denied: {reason}", "permission_denied")
    # Our own tool shows what the model was shown in part already.
    if decision == "allow" or answer is not None or (reread is not None and name == reread.name):
        return None
    deadline = None
    if policy.timeout_ms is not None:
        deadline = (yield from Now()) + policy.timeout_ms
    return new_wait(ledger.log.state, call.key, "confirmation", digest_of_call(call.call), deadline)


def _rejected(call: OpenCall, answer: WaitAnswered) -> Returned:
    if answer.expired:
        return refused(call, "Error: not confirmed in time", "confirmation_timeout")
    reason = reason_of(answer)
    text = f"Error: rejected by {answer.by or 'a person'}" + (f": {reason}" if reason else "")
    return refused(call, text, "rejected")


def _budget(ledger: Ledger, call: OpenCall, answer: WaitAnswered | None) -> Flow[Consent]:
    if answer is not None and is_approved(answer):
        return None
    if answer is not None:
        held = next(wait for wait in ledger.log.state.waits if wait.answer is answer)
        return Denied(call.key, "guard", held_resource(held), held_reason(held))
    if not ledger.present.is_guarded():
        return None
    yield from ledger.flush()
    decision = yield from AskGuard("check_before_tool", call.call.name)
    ledger.note_decision(decision)
    if decision.decision == "deny":
        return Denied(call.key, "guard", decision.resource, decision.reason)
    if decision.decision == "hold":
        about = {"resource": decision.resource, "question": decision.reason}
        return new_wait(ledger.log.state, call.key, "budget_hold", digest_of_call(call.call), None, about)
    return None


def held_resource(wait: OpenWait) -> str:
    """What a budget hold is about."""
    return str(wait.about.get("resource", ""))


def held_reason(wait: OpenWait) -> str:
    """Why the guard held the call, and what the person who said no had to add."""
    added = "" if wait.answer is None else reason_of(wait.answer)
    return "; ".join(text for text in (str(wait.about.get("question", "")), added) if text)


def _runs_wanted(state: State, subject: str) -> int:
    """How often somebody said that the call is to run, or what came of it: each word is for the start before it."""
    return sum(wait.subject == subject and wait.kind == "unknown_outcome" for wait in state.waits if wait.answer)


def _told_outcome(call: OpenCall, answer: WaitAnswered, tools: Mapping[str, Traits]) -> Returned | None:
    """What a person said came of a call; None when it is to run again."""
    value: Mapping[str, Any] = answer.value if isinstance(answer.value, Mapping) else {"outcome": "failed"}
    if value.get("outcome") == "run":
        return None
    if value.get("outcome") == "done":
        return _result(call, True, value.get("result"), tools)
    return _result(call, False, f"Error: {value.get('error') or 'it failed'}", tools)


def _deferred_result(call: OpenCall, answer: WaitAnswered, tools: Mapping[str, Traits]) -> Returned:
    ok = not answer.expired and answer.value != UNREADABLE_RESULT
    return _result(call, ok, LATE if answer.expired else answer.value, tools)


def _result(call: OpenCall, ok: bool, value: Json, tools: Mapping[str, Traits]) -> Returned:
    """The result of a call that did run, told by somebody."""
    part = Text(value) if isinstance(value, str) else Text("") if value is None else Data(value)
    traits = tools.get(call.call.name, Traits())
    metadata: dict[str, Json] = {"answered": True}
    if traits.effect is not None:
        metadata["effect"] = traits.effect
    if traits.repeatable:
        metadata["repeatable"] = True
    if traits.workspace and traits.effect != "read":
        metadata["workspace"] = True
    return Returned(call.key, ok, (part,), metadata)


def refused(call: OpenCall, text: str, why: str) -> Returned:
    """The result of a call that was not run."""
    return Returned(call.key, False, (Text(text),), {"refused": why})


def is_approved(answer: WaitAnswered) -> bool:
    """Whether somebody said yes. Another program may have: what is no clear yes is a no."""
    value = answer.value
    return value is True or (isinstance(value, Mapping) and value.get("approved") is True)


def reason_of(answer: WaitAnswered) -> str:
    """What somebody who said no added to it."""
    reason = answer.value.get("reason") if isinstance(answer.value, Mapping) else None
    return reason if isinstance(reason, str) else ""


def new_wait(
    state: State,
    subject: str,
    kind: WaitKind,
    digest: str,
    deadline_ms: int | None,
    about: Mapping[str, Json] | None = None,
) -> WaitOpened:
    """The next wait about ``subject``."""
    number = 1 + sum(wait.subject == subject for wait in state.waits)
    return WaitOpened(wait_key(subject, number), kind, subject, digest, deadline_ms, about or {})


def stage_wait(ledger: Ledger, wait: WaitOpened, call: OpenCall | None) -> Flow[None]:
    """Stage a wait: its fact, the row that people answer, the event that tells them."""
    now = yield from Now()
    ledger.stage(wait.wait_id, f"wait:{wait.subject}", wait)
    ledger.also(waits.open_wait(ledger.ids, wait, None if call is None else call.call, now))
    ledger.say(*wait_opened(wait, call))
    ledger.protect()


def stage_answers(ledger: Ledger) -> Flow[list[str]]:
    """Turn answers that have come into facts, in the order in which the waits were opened; the ids of those waits."""
    answers = yield from Read(waits.answers(ledger.ids.session_pk))
    now = yield from Now()
    found: list[str] = []
    for answer in answers:
        for wait in ledger.log.state.waits:
            if wait.wait_id == answer.wait_id and wait.answer is None:
                fact = answer.fact(wait.kind)
                ledger.stage(f"{wait.wait_id}-answer", None, fact)
                ledger.say(wait_answered(wait, fact))
                found.append(wait.wait_id)
        ledger.also(waits.close(ledger.ids, answer.wait_id, now))
    return found
