"""Wrong arguments of calls: one clear typed error each, before anything is written (§1, §10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thence import SessionClosed, SessionNotFound, SessionOptions, ThenceError
from thence.testing import ScriptedModel, reply

from .kit import LONE, NAN, Face, nested, photograph

CALLS: dict[str, tuple[Callable[[Any, Any], Any], Any, str]] = {
    "workspace: a number": (lambda a, s: a.session(5), TypeError, "'workspace'"),
    "workspace: blank": (lambda a, s: a.session(" "), ValueError, "'workspace'"),
    "workspace: NUL": (lambda a, s: a.session("a\0b"), ValueError, "'workspace'"),
    "workspace: lone surrogate": (lambda a, s: a.session(LONE), ValueError, "'workspace'"),
    "workspace: bytes": (lambda a, s: a.session(b"/w"), (TypeError, ValueError), "'workspace'"),
    "resume: unknown": (lambda a, s: a.resume_session("nobody"), SessionNotFound, "^Session not found: nobody$"),
    "resume: blank": (lambda a, s: a.resume_session(" "), ValueError, "'session_id'"),
    "resume: a number": (lambda a, s: a.resume_session(5), TypeError, "'session_id'"),
    "resume: None": (lambda a, s: a.resume_session(None), TypeError, "'session_id'"),
    "list: unknown filter": (lambda a, s: a.list_sessions(tenant="x"), TypeError, "tenant"),
    "list: a number": (lambda a, s: a.list_sessions(tenant_id=5), TypeError, "'?tenant_id'?"),
    "list: lone surrogate": (lambda a, s: a.list_sessions(tenant_id=LONE), ValueError, "tenant_id"),
    "send: a number": (lambda a, s: s.send(5), TypeError, "'prompt'"),
    "send: None": (lambda a, s: s.send(None), TypeError, "'prompt'"),
    "send: bytes": (lambda a, s: s.send(b"hi"), TypeError, "'prompt'"),
    "send: a list": (lambda a, s: s.send(["hi"]), TypeError, "'prompt'"),
    "send: empty": (lambda a, s: s.send(""), ValueError, "'prompt'"),
    "send: blank": (lambda a, s: s.send(" \n\t\u00a0"), ValueError, "'prompt'"),
    "send: lone surrogate": (lambda a, s: s.send(LONE), ValueError, "'prompt'.*surrogate"),
    "send: too large": (lambda a, s: s.send("x" * (16 * 1024 * 1024 + 1)), ValueError, "'prompt'.*bytes"),
    "send: too large in UTF-8": (lambda a, s: s.send("é" * (9 * 1024 * 1024)), ValueError, "'prompt'.*bytes"),
    "send: on_interrupted": (lambda a, s: s.send("x", on_interrupted="x"), ValueError, "'on_interrupted'"),
    "send: unknown keyword": (lambda a, s: s.send("x", runid="x"), TypeError, "runid"),
    "stream: a number": (lambda a, s: s.stream(5), TypeError, "'prompt'"),
    "stream: blank": (lambda a, s: s.stream(" "), ValueError, "'prompt'"),
    "stream: lone surrogate": (lambda a, s: s.stream(LONE), ValueError, "'prompt'.*surrogate"),
    "facts: a text": (lambda a, s: s.facts("1"), TypeError, "'after_seq'"),
    "facts: negative": (lambda a, s: s.facts(-1), ValueError, "'after_seq'"),
    "facts: huge": (lambda a, s: s.facts(10**30), ValueError, "'after_seq'"),
    "recover: a number": (lambda a, s: a.recover(5), TypeError, "'options'.*callable"),
    "recover: options": (lambda a, s: a.recover(SessionOptions()), TypeError, "'options'.*callable"),
    "resume: options": (lambda a, s: a.resume_session("s", {}), TypeError, "SessionOptions"),
    "facts: a bool": (lambda a, s: s.facts(True), TypeError, "'after_seq'"),
    "facts: NaN": (lambda a, s: s.facts(NAN), TypeError, "'after_seq'"),
    "snapshot: a number": (lambda a, s: s.run_snapshot(5), TypeError, "'run_id'"),
    "snapshot: blank": (lambda a, s: s.run_snapshot(""), ValueError, "'run_id'"),
    "run_events: a number": (lambda a, s: s.run_events(5), TypeError, "'run_id'"),
    "run_events: lone surrogate": (lambda a, s: s.run_events(LONE), ValueError, "'run_id'"),
    "page: a number": (lambda a, s: s.run_event_page(5), TypeError, "'run_id'"),
    "page: limit text": (lambda a, s: s.run_event_page("run-t-0", limit="5"), TypeError, "'limit'"),
    "page: limit negative": (lambda a, s: s.run_event_page("run-t-0", limit=-1), ValueError, "'limit'"),
    "page: limit huge": (lambda a, s: s.run_event_page("run-t-0", limit=2**70), ValueError, "'limit'"),
    "page: after negative": (lambda a, s: s.run_event_page("run-t-0", -1), ValueError, "'after_sequence'"),
    "page: after huge": (lambda a, s: s.run_event_page("run-t-0", 2**70), ValueError, "'after_sequence'"),
    "page: after a text": (lambda a, s: s.run_event_page("run-t-0", "1"), TypeError, "'after_sequence'"),
    "page: after NaN": (lambda a, s: s.run_event_page("run-t-0", NAN), (TypeError, ValueError), "'after_sequence'"),
    "events: after a text": (lambda a, s: s.events("1"), TypeError, "'after_sequence'"),
    "events: after huge": (lambda a, s: s.events(2**70), ValueError, "'after_sequence'"),
    "tail: unknown": (lambda a, s: s.tail("nobody"), ThenceError, "Run not found: nobody"),
    "tail: a number": (lambda a, s: s.tail(5), TypeError, "'run_id'"),
    "tail: blank": (lambda a, s: s.tail(" "), ValueError, "'run_id'"),
    "tail: after a text": (lambda a, s: s.tail("run-t-0", "1"), TypeError, "'after_sequence'"),
    "tail: after negative": (lambda a, s: s.tail("run-t-0", -5), ValueError, "'after_sequence'"),
    "cancel_run: a number": (lambda a, s: s.cancel_run(5), TypeError, "'run_id'"),
    "cancel_run: blank": (lambda a, s: s.cancel_run(""), ValueError, "'run_id'"),
    "interrupt: a number": (lambda a, s: s.interrupt(5), TypeError, "'?reason'?"),
    "interrupt: lone surrogate": (lambda a, s: s.interrupt(LONE), ValueError, "'?reason'?"),
    "emit: a number": (lambda a, s: s.emit(5), TypeError, "event"),
    "emit: None": (lambda a, s: s.emit(None), TypeError, "event"),
    "emit: no type": (lambda a, s: s.emit({"payload": {}}), ValueError, "'type'"),
    "emit: blank type": (lambda a, s: s.emit({"type": " ", "payload": {}}), ValueError, "'type'"),
    "emit: type a number": (lambda a, s: s.emit({"type": 5, "payload": {}}), TypeError, "'type'"),
    "emit: type NUL": (lambda a, s: s.emit({"type": "a\0", "payload": {}}), ValueError, "'type'"),
    "emit: payload a list": (lambda a, s: s.emit({"type": "x", "payload": [1]}), TypeError, "'payload'"),
    "emit: NaN": (lambda a, s: s.emit({"type": "x", "payload": {"n": NAN}}), ValueError, "nan"),
    "emit: a set": (lambda a, s: s.emit({"type": "x", "payload": {"n": {1}}}), (ValueError, TypeError), "set"),
    "emit: deep": (lambda a, s: s.emit({"type": "x", "payload": {"n": nested(200)}}), ValueError, "deep"),
    "emit: lone surrogate": (lambda a, s: s.emit({"type": "x", "payload": {"n": LONE}}), ValueError, "surrogate"),
    "emit: key": (lambda a, s: s.emit({"type": "x", "payload": {5: 5}}), (ValueError, TypeError), "5"),
    "retention: a number": (lambda a, s: s.set_retention(5), ValueError, "'retention_limits'"),
    "retention: negative": (lambda a, s: s.set_retention({"max_runs_retained": -1}), ValueError, "max_runs_retained"),
    "retention: unknown": (lambda a, s: s.set_retention({"x": 1}), ValueError, "'x'"),
    "guard: zero": (lambda a, s: s.set_budget_guard(object(), 0), ValueError, "budget_guard_timeout_ms"),
    "guard: a text": (lambda a, s: s.set_budget_guard(object(), "5"), TypeError, "budget_guard_timeout_ms|timeout_ms"),
    "guard: NaN": (lambda a, s: s.set_budget_guard(object(), NAN), TypeError, "budget_guard_timeout_ms|timeout_ms"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_is_refused_before_anything_is_written(face: Face, used, what):
    attempt, kind, words = CALLS[what]
    before = photograph(used)
    model = ScriptedModel([reply("Still here.")])
    agent = face.agent(used, model=model)
    session = face.do(lambda: agent.resume_session("s"))
    with pytest.raises(kind, match=words) as refused:
        face.do(lambda: attempt(agent, session))
    assert isinstance(refused.value, ThenceError | ValueError | TypeError)
    assert model.requests == []
    face.close()
    assert photograph(used) == before
    # and the session is as good as ever
    agent = face.agent(used, model=model)
    session = face.do(lambda: agent.resume_session("s"))
    assert face.do(lambda: session.send("Go.")).text == "Still here."


def test_a_session_without_a_model_can_be_read_and_not_run(face: Face, used):
    agent = face.agent(used)
    session = face.do(lambda: agent.resume_session("s"))
    assert len(face.do(session.facts)) == 4
    with pytest.raises(ThenceError, match="model"):
        face.do(lambda: session.send("Go."))
    assert len(face.do(session.runs)) >= 1


def test_what_is_closed_says_so(face: Face, used):
    before = photograph(used)
    agent = face.agent(used, model=ScriptedModel([reply("x")]))
    session = face.do(lambda: agent.resume_session("s"))
    face.do(session.close)
    face.do(session.close)
    for attempt in (
        lambda: session.send("x"), lambda: session.facts(), lambda: session.runs(), lambda: session.cancel(),
        lambda: session.emit({"type": "x", "payload": {}}), lambda: session.stream("x"), lambda: session.tail("x"),
        lambda: session.set_budget_guard(None), lambda: session.set_retention({}), lambda: session.history(),
    ):  # fmt: skip
        with pytest.raises(ThenceError, match="Session 's' is closed") as closed:
            face.do(attempt)
        assert str(closed.value) == "Session 's' is closed"
        assert closed.value.code == "SESSION_CLOSED"
    assert session.is_closed
    assert session.session_id == "s"
    face.do(agent.close)
    for refused in (lambda: agent.session("/w"), agent.list_sessions, agent.recover, lambda: agent.resume_session("s")):
        with pytest.raises(SessionClosed, match="agent is closed"):
            face.do(refused)
    assert photograph(used) == before
