"""Inside the owning process a claim counts only while its registry holds the live operation (§8)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, DiskFull, SessionBusy

from .kit import Again, Eyes, Tools, calls, done, options

SCRIPT = [calls("add:1", "add:2"), done("All is done.")]


def test_takeover_of_ones_own_live_run_is_busy(db: Path) -> None:
    """Inside the owning process a claim counts while its registry holds the live operation: not even force displaces it
    from here; cancel and interrupt do."""
    seen: list[Any] = []
    tools = Tools()
    with Agent(db, model=Again(SCRIPT), tools=tools.all(), durability="process") as agent:
        session = agent.session("/w", options())

        def look(key: str) -> None:
            for force in (False, True):
                try:
                    session.takeover(force=force)
                except SessionBusy as busy:
                    seen.append(busy.code)

        tools.on = look
        assert session.send("Go.").status == "completed"
    assert seen == ["SESSION_BUSY"] * 4


def test_a_claim_of_this_process_without_an_operation_counts_for_nothing(db: Path) -> None:
    """§8: a send that could not even give the session back (its disk was full) leaves an interrupted run, in this
    process too: told so, resumable, and nobody waits for it for ever."""
    tools, model = Tools(), Again(SCRIPT)
    with Agent(db, model=model, tools=tools.all(), durability="process") as agent:
        session = agent.session("/w", options())
        core: Any = agent._core
        core.store = Full(core.store)
        core.store.full = "inflight_land"
        with pytest.raises(DiskFull):
            session.send("Go.", run_id="mine")
        with Eyes(db) as eyes:
            assert eyes.one("SELECT owner FROM session") == core.store.owner
        core.store.full = None
        assert [run.state for run in session.runs()] == ["interrupted"]
        assert session.current_run() is None
        assert not agent.list_sessions()[0].busy
        assert session.cancel() is False
        assert session.resume_run("mine").text == "All is done."


def test_asking_for_a_run_of_this_process_that_nobody_works_on_ends(db: Path) -> None:
    """The same, asked for by its id: interrupted, at once."""
    with Agent(db, model=Again(SCRIPT), tools=Tools().all(), durability="process") as agent:
        session = agent.session("/w", options())
        core: Any = agent._core
        core.store = Full(core.store)
        core.store.full = "inflight_land"
        with pytest.raises(DiskFull):
            session.send("Go.", run_id="mine")
        core.store.full = None
        told: list[Any] = []

        def ask() -> None:
            try:
                told.append(session.send("Go.", run_id="mine"))
            except Exception as error:
                told.append(getattr(error, "code", error))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(5)
        assert told == ["RUN_INTERRUPTED"]


class Full:
    """A store on a disk that is full from a certain statement on, until ``full`` is None again."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.full: str | None = None
        self._hit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, plan: Any) -> Any:
        self._hit = self.full is not None and (self._hit or any(op.statement == self.full for op in plan.ops))
        if self._hit:
            raise DiskFull("no space left")
        return self._store.commit(plan)


class Late:
    """A store whose reads of a live run arrive late: the run ends, and its process closes, in between."""

    def __init__(self, store: Any, finish: Any) -> None:
        self._store, self._finish = store, finish

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, query: Any) -> Any:
        found = self._store.read(query)
        if getattr(found, "status", "") == "executing":
            self._finish()
        return found


@pytest.mark.parametrize("closes", [False, True], ids=["run ends", "process ends too"])
@pytest.mark.parametrize("how", ["send", "spawn", "snapshot"])
def test_a_run_that_ends_between_two_looks_was_not_interrupted(db: Path, how: str, closes: bool) -> None:
    """Whoever reads "executing", and then finds no owner, looks again before it says that the run was interrupted."""
    gate, inside = threading.Event(), threading.Event()

    def hold(key: str) -> None:
        inside.set()
        assert gate.wait(30)

    first = Agent(db, model=Again(SCRIPT), tools=Tools(hold).own(), durability="process")
    working = first.session("/w", options()).spawn_run_with_id("mine", "Go.")
    assert inside.wait(30)

    def finish() -> None:
        if not gate.is_set():
            gate.set()
            assert working.wait().text == "All is done."
            if closes:
                first.close()

    with Agent(db, model=Again([]), tools=Tools().own(), durability="process") as second:
        session = second.resume_session("s")
        core: Any = second._core
        core.store = Late(core.store, finish)
        if how == "snapshot":
            run = session.run_snapshot("mine")
            assert run is not None and run.state in ("executing", "completed")
        elif how == "send":
            assert session.send("Go.", run_id="mine").text == "All is done."
        else:
            spawned = session.spawn_run_with_id("mine", "Go.")
            assert spawned.run.state in ("executing", "completed") and spawned.wait().text == "All is done."
    finish()
    first.close()
