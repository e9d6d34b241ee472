"""What must be true of a file after the power went: the promises are kept, and any process can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thence import Agent, FileRefused, ThenceError, reads
from thence.store.readonly import ReadOnlyStore

from .kit import Judge
from .kit_scenario import Planner, make_tools


def violations(folder: Path, marks: list[dict[str, Any]]) -> list[str]:
    """What of the contract the files in ``folder`` break, given what had been promised and done by then."""
    db = folder / "a.db"
    promised = [mark for mark in marks if mark["what"] in _KEPT]
    try:
        reader = ReadOnlyStore(db)
    except FileRefused as refused:
        if refused.reason != "missing_file":
            return [f"refused: {refused}"]
        return ["the file is lost"] if promised else _goes_on(db, {}, set(), set())
    except ThenceError as error:
        return [f"cannot be read: {error}"]
    try:
        lengths = {
            row.session_id: len(reader.read(reads.facts(row.live_branch))) for row in reader.read(reads.sessions({}))
        }
    except ThenceError as error:
        return [f"cannot be read: {error}"]
    finally:
        reader.close()
    with Judge(db) as judge:
        found = judge.complaints()
        if found:
            return found
        settled = judge.settled()
        started = settled | judge.started()
        for mark in marks:
            if mark["what"] in _KEPT:
                found += _lost(judge, mark)
            elif mark["what"] == "effect" and (mark["session"], mark["key"]) not in started:
                found.append(f"an effect without a started row: {mark}")
            elif mark["what"] == "asked" and (gone := {(mark["session"], key) for key in mark["keys"]} - settled):
                found.append(f"results that the model has seen are gone: {sorted(gone)}")
        stored = dict(judge.rows("SELECT session_id, facts FROM sessions"))
        if stored != lengths:
            found.append(f"the library reads {lengths} facts, SQLite {stored}")
    return found + _goes_on(db, stored, settled, started)


_KEPT = {
    "session": "SELECT 1 FROM session WHERE session_id = :session",
    "emit": "SELECT 1 FROM event WHERE instr(payload, :payload) UNION ALL "
    "SELECT 1 FROM inbox WHERE instr(payload, :payload)",
    "retention": "SELECT 1 FROM session WHERE session_id = :session AND max_trace_events = :value",
    "spawned": "SELECT 1 FROM run_identity WHERE run_id = :run",
    "failed": "SELECT 1 FROM runs WHERE run_id = :run AND status = 'failed'",
    "sent": "SELECT 1 FROM runs JOIN sessions USING(session_id) WHERE run_id = :run AND status = 'completed' "
    "AND result_text = :text AND facts >= :facts",
    "closed": "SELECT 1",
}
"""What finds a kept promise in the file."""


def _lost(judge: Judge, mark: dict[str, Any]) -> list[str]:
    return [] if judge.rows(_KEPT[mark["what"]], mark) else [f"lost: {mark}"]


def _goes_on(
    db: Path, stored: dict[str, int], settled: set[tuple[str, str]], started: set[tuple[str, str]]
) -> list[str]:
    """Resume whatever was open, then say one thing more; nothing that had a result may run again."""
    ran: list[tuple[str, str, str]] = []

    def mark(what: str, **more: Any) -> None:
        if what == "effect":
            ran.append((more["session"], more["key"], more["tool"]))

    found: list[str] = []
    try:
        with Agent(db, model=Planner(mark), tools=make_tools(mark)) as agent:
            _recover(agent, found)
            for name in stored or ["new"]:
                session = agent.resume_session(name) if stored else agent.session("/nowhere")
                last = session.runs()[-1:]
                if last and last[0].status == "failed" and last[0].resumable:
                    session.resume_run(last[0].id)
                    _recover(agent, found)
                if last and last[0].state == "interrupted":
                    found.append(f"still interrupted: {last[0].id}")
                if name in list(stored)[-1:] and session.send(f"{name}:poke").text != f"done {name}:poke":
                    found.append("the next turn went wrong")
    except ThenceError as error:
        found.append(f"cannot go on: {error!r}")
    for session_id, key, name in ran:
        if (session_id, key) in settled:
            found.append(f"ran again: {session_id} {key} ({name}) had a result")
        elif name == "fire" and (session_id, key) in started:
            found.append(f"ran again: {session_id} {key} must run once at most")
    if len({(session_id, key) for session_id, key, _ in ran}) != len(ran):
        found.append(f"ran twice in one recovery: {ran}")
    with Judge(db) as judge:
        return found + [f"after going on: {one}" for one in judge.complaints()]


def _recover(agent: Agent, found: list[str]) -> None:
    """Go on with everything, and answer what asks, until nothing is left."""
    while True:
        for recovered in agent.recover():
            if recovered.error is not None:
                found.append(f"not recovered: {recovered.session_id}: {recovered.error!r}")
        if not _answer(agent, found):
            return


def _answer(agent: Agent, found: list[str]) -> bool:
    """Say that every call which asks was done; whether there was one. Only what must not run twice may ask."""
    asked = [wait for wait in agent.waits() if wait.state == "open"]
    for wait in asked:
        if wait.kind != "unknown_outcome" or wait.tool != "fire":
            found.append(f"asks for no reason: {wait}")
        agent.resume_session(wait.session_id).answer(wait.id, {"outcome": "done", "result": "as it was"})
    return bool(asked)
