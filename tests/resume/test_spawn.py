"""Runs under callers' ids (§7): once, whoever asks, however often, also after the run was evicted."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, ModelError, RunFailed, RunIdentityConflict, RunInterrupted, SessionOptions

from ..kit import kinds
from .hand import by_hand, dies_at
from .kit import Again, Eyes, Tools, calls, done, last_run, run_rows

SCRIPT = [calls("add:1"), done("All is done.")]


class Face:
    """A session of one face, called from a plain test."""

    def __init__(self, face: str, db: Path | None, script: list[Any], tools: Tools | None = None, **given: Any) -> None:
        self.face, self.tools, self.model = face, tools or Tools(), Again(script)
        self.named = {"model": self.model, "tools": self.tools.all(), "durability": "process"}
        self.db, self.given = db, given

    def do(self, what: Any, session: str = "s") -> Any:
        """Run ``what(session)`` with an agent of its own; ``await_`` in it is what the face needs."""
        opts = SessionOptions(session_id=session, **self.given)
        if self.face == "sync":
            with Agent(self.db, **self.named) as agent:  # type: ignore[arg-type]
                return what(agent.session("/w", opts), lambda value: value)

        async def body() -> Any:
            async with AsyncAgent(self.db, **self.named) as agent:  # type: ignore[arg-type]
                opened = await agent.session("/w", opts)
                return await asyncio.to_thread(what, opened, _through(asyncio.get_running_loop()))

        return asyncio.run(body())


def _through(loop: asyncio.AbstractEventLoop) -> Any:
    def wait(value: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(value, loop).result(30)

    return wait


def test_spawn_returns_at_once_and_waits_on_demand(face: str, db: Path) -> None:
    gate = threading.Event()
    tools = Tools(on=lambda key: gate.wait(20))

    def body(session: Any, wait: Any) -> None:
        spawned = wait(session.spawn_run_with_id("mine", "Go."))
        assert (spawned.run.id, spawned.replayed, spawned.run.is_terminal) == ("mine", False, False)
        assert run_rows(db).keys() == {"mine"}, "the run is in the file, to stay"
        again = wait(session.spawn_run_with_id("mine", "Go."))
        assert (again.run.id, again.replayed, again.run.is_terminal) == ("mine", True, False)
        gate.set()
        for one in (spawned, again, spawned):
            result = wait(one.wait())
            assert (result.text, result.run_id, result.status) == ("All is done.", "mine", "completed")

    Face(face, db, SCRIPT, tools).do(body)
    assert len(tools.ran) == 1


def test_the_same_id_and_prompt_again(face: str, db: Path) -> None:
    """The existing run, replayed; nothing is started: by spawn and by send, here and in a later process."""
    Face(face, db, SCRIPT).do(lambda session, wait: wait(wait(session.spawn_run_with_id("mine", "Go.")).wait()))
    rows = run_rows(db)
    later = Face(face, db, [])

    def body(session: Any, wait: Any) -> None:
        spawned = wait(session.spawn_run_with_id("mine", "Go."))
        assert (spawned.replayed, spawned.run.status) == (True, "completed")
        for result in (wait(spawned.wait()), wait(session.send("Go.", run_id="mine"))):
            assert (result.text, result.run_id, result.replayed) == ("All is done.", "mine", True)
            assert (result.tool_calls_count, result.usage.prompt_tokens) == (1, 110)

    later.do(body)
    assert not later.model.requests and not later.tools.ran
    assert run_rows(db) == rows


def test_send_with_an_id_of_the_callers(face: str, db: Path) -> None:
    first = Face(face, db, SCRIPT)
    result = first.do(lambda session, wait: wait(session.send("Go.", run_id="mine")))
    assert (result.run_id, result.replayed, result.text) == ("mine", False, "All is done.")
    assert run_rows(db).keys() == {"mine"}


@pytest.mark.parametrize("how", ["spawn", "send"])
def test_the_same_id_and_another_prompt(face: str, db: Path, how: str) -> None:
    Face(face, db, SCRIPT).do(lambda session, wait: wait(session.send("Go.", run_id="mine")))
    rows = run_rows(db)
    other = Face(face, db, [])

    def body(session: Any, wait: Any) -> None:
        with pytest.raises(RunIdentityConflict) as caught:
            if how == "send":
                wait(session.send("Go!", run_id="mine"))
            else:
                wait(session.spawn_run_with_id("mine", "Go!"))
        assert caught.value.code == "RUN_IDENTITY_CONFLICT" and "mine" in str(caught.value)

    other.do(body)
    assert not other.model.requests and run_rows(db) == rows


@pytest.mark.parametrize("how", ["spawn", "send", "resume"])
def test_an_id_of_another_session(face: str, db: Path, how: str) -> None:
    """Ids are unique in the file."""
    Face(face, db, SCRIPT).do(lambda session, wait: wait(session.send("Go.", run_id="mine")))
    by_hand(db, SCRIPT, session="other", wrap=dies_at("inflight_start"))
    rows = run_rows(db)

    def body(session: Any, wait: Any) -> None:
        with pytest.raises(RunIdentityConflict):
            if how == "send":
                wait(session.send("Go.", run_id="mine"))
            elif how == "spawn":
                wait(session.spawn_run_with_id("mine", "Go."))
            else:
                wait(session.resume_run(last_run(db, "other"), run_id="mine"))

    Face(face, db, []).do(body, "other")
    assert run_rows(db) == rows


@pytest.mark.parametrize("kept", [0, 1])
def test_after_eviction_the_promise_holds(face: str, db: Path, kept: int) -> None:
    """The id's row lives as long as the session's facts: evicted, still replayed; another prompt still conflicts."""
    script = [*SCRIPT, done("Later."), done("Later still.")]
    limits: dict[str, Any] = {"retention_limits": {"max_runs_retained": kept}}

    def live(session: Any, wait: Any) -> None:
        wait(session.send("Go.", run_id="mine"))
        wait(session.send("More.", run_id="yours"))
        wait(session.send("More!"))

    Face(face, db, script, **limits).do(live)
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run") == kept
    after = Face(face, db, [])

    def body(session: Any, wait: Any) -> None:
        for run_id, prompt, text in (("mine", "Go.", "All is done."), ("yours", "More.", "Later.")):
            spawned = wait(session.spawn_run_with_id(run_id, prompt))
            assert (spawned.replayed, spawned.run.id, spawned.run.status) == (True, run_id, "completed")
            assert spawned.run.result_text == text
            for result in (wait(spawned.wait()), wait(session.send(prompt, run_id=run_id))):
                assert (result.text, result.replayed, result.status) == (text, True, "completed")
            with pytest.raises(RunIdentityConflict):
                wait(session.spawn_run_with_id(run_id, "Other."))
            assert wait(session.resume_run(run_id)).text == text

    after.do(body)
    assert not after.model.requests and not after.tools.ran


def test_a_failed_run_is_replayed_as_its_error(face: str, db: Path) -> None:
    refusal = ModelError("http_400", "no such model", retryable=False)
    script = [refusal]

    def fail(session: Any, wait: Any) -> None:
        with pytest.raises(RunFailed):
            wait(session.send("Go.", run_id="mine"))

    Face(face, db, script).do(fail)
    again = Face(face, db, [])

    def body(session: Any, wait: Any) -> None:
        spawned = wait(session.spawn_run_with_id("mine", "Go."))
        assert (spawned.replayed, spawned.run.status) == (True, "failed")
        for retry in (lambda: wait(spawned.wait()), lambda: wait(session.send("Go.", run_id="mine"))):
            with pytest.raises(RunFailed) as caught:
                retry()
            assert (caught.value.code, str(caught.value)) == ("LLM_ERROR", "no such model")
            assert caught.value.resumable

    again.do(body)
    assert not again.model.requests


def test_an_interrupted_run_is_given_as_it_stands(face: str, db: Path) -> None:
    """``replayed``, whatever its state; nothing is started; waiting for it says what happened to it."""
    Face(face, db, SCRIPT).do(lambda session, wait: None)
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    run_id = last_run(db) or ""
    again = Face(face, db, SCRIPT)

    def body(session: Any, wait: Any) -> None:
        spawned = wait(session.spawn_run_with_id(run_id, "Go."))
        assert (spawned.replayed, spawned.run.state, spawned.run.status) == (True, "interrupted", "executing")
        with pytest.raises(RunInterrupted):
            wait(spawned.wait())

    again.do(body)
    assert not again.model.requests and not again.tools.ran


# ---------------------------------------------------------------- recoveries under ids
def test_a_recovery_under_an_id(face: str, db: Path) -> None:
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    old = last_run(db) or ""
    first = Face(face, db, SCRIPT)

    def body(session: Any, wait: Any) -> None:
        spawned = wait(session.spawn_recovery_with_run_id(old, "again"))
        assert (spawned.run.id, spawned.replayed, spawned.run.resumed_from) == ("again", False, old)
        assert wait(spawned.wait()).text == "All is done."
        for one in (wait(session.spawn_recovery_with_run_id(old, "again")),):
            assert one.replayed and wait(one.wait()).text == "All is done."
        assert wait(session.resume_run(old, run_id="again")).replayed
        with pytest.raises(RunIdentityConflict):
            wait(session.spawn_recovery_with_run_id("another", "again"))
        with pytest.raises(RunIdentityConflict):
            wait(session.send("Go.", run_id="again"))

    first.do(body)
    assert len(first.tools.ran) == 1 and len(run_rows(db)) == 2


def test_a_recovery_of_nothing_is_refused_and_takes_no_id(face: str, db: Path) -> None:
    def body(session: Any, wait: Any) -> None:
        with pytest.raises(Exception, match="no loop checkpoint found for run 'gone'"):
            wait(session.spawn_recovery_with_run_id("gone", "again"))
        assert wait(session.send("Go.", run_id="again")).text == "All is done."

    Face(face, db, SCRIPT).do(body)


def test_b08_an_id_lives_as_long_as_its_facts(face: str, db: Path) -> None:
    """B08 in the form of §7: evicting a run does not free its id, deleting its session does; then the tool runs with
    the new arguments, and nothing of the old run is to be seen. (The session is deleted by the one statement of the
    schema, cut short and rolled back once before.)"""
    Face(face, db, SCRIPT).do(lambda session, wait: wait(session.send("Go.", run_id="order-1")))
    with Eyes(db) as eyes:
        eyes.db.execute("BEGIN")
        eyes.db.execute("DELETE FROM session")
        eyes.db.execute("ROLLBACK")
        counted = (
            "SELECT (SELECT count(*) FROM fact), (SELECT count(*) FROM event), (SELECT count(*) FROM run_identity)"
        )
        assert min(eyes.rows(counted)[0]) > 0
        eyes.db.execute("DELETE FROM session")
        assert eyes.rows(counted) == [(0, 0, 0)]
    fresh = Face(face, db, [calls("add:2"), done("New.")])

    def body(session: Any, wait: Any) -> None:
        result = wait(session.send("Go.", run_id="order-1"))
        assert (result.text, result.replayed) == ("New.", False)
        assert kinds(wait(session.facts())) == ["run.configured", "user.message", "model.turn", "tool.result",
                                                "model.turn", "turn.ended"]  # fmt: skip
        assert len(wait(session.runs())) == 1

    fresh.do(body)
    assert [one.n for one in fresh.tools.ran] == [2]
