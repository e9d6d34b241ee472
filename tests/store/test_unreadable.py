"""What another program wrote and nobody can read: it stops no session, and hides nothing else (§8, §10)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, Session, SessionOptions, tool
from thence.errors import StoreError
from thence.testing import ScriptedModel, call, reply

CUT = b"\xf0\x9f\x98"
"""Bytes that are no UTF-8 and that SQLite does not notice."""
PATIENCE_S = 20.0


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@contextmanager
def plain(db: Path) -> Iterator[sqlite3.Connection]:
    """Another program."""
    connection = sqlite3.connect(db, isolation_level=None, timeout=PATIENCE_S)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        yield connection
    finally:
        connection.close()


def options(name: str = "s", **more: Any) -> SessionOptions:
    return SessionOptions(session_id=name, **more)


def say(db: Path, run_id: str, type: bytes, payload: bytes) -> None:
    with plain(db) as other:
        put = "INSERT INTO event_in(run_id, type, payload) VALUES(?, CAST(? AS TEXT), CAST(? AS TEXT))"
        other.execute(put, (run_id, type, payload))


SAID = {
    "type": (b"no" + CUT + b"te", b'{"n":1}', "no\ufffdte", {"n": 1}),
    "payload": (b"note", b'{"n":"' + CUT + b'"}', "note", None),
}


@pytest.mark.parametrize("case", SAID)
def test_an_event_that_is_no_text_stops_no_run(db: Path, case: str):
    """It waits in the inbox of a live run; the owner takes it, and the run and those after it go on."""
    type, payload, shown, value = SAID[case]
    holding, go = threading.Event(), threading.Event()

    @tool(effect="idempotent")
    def hold() -> str:
        holding.set()
        assert go.wait(PATIENCE_S)
        return "held"

    def other() -> None:
        assert holding.wait(PATIENCE_S)
        say(db, "r", type, payload)
        say(db, "r", b"note", b'{"n":2}')
        until = time.monotonic() + PATIENCE_S
        with plain(db) as eyes:
            while eyes.execute("SELECT count(*) FROM inbox").fetchone() != (0,) and time.monotonic() < until:
                time.sleep(0.01)
        go.set()

    script = [reply("", [call("hold")]), reply("Done."), reply("Again.")]
    with Agent(db, model=ScriptedModel(script), tools=[hold], durability="process") as agent:
        speaker = threading.Thread(target=other)
        speaker.start()
        session = agent.session(".", options())
        assert session.send("Go.", run_id="r").status == "completed"
        speaker.join()
        assert_shown(session, shown, value)
        assert session.send("More.").status == "completed"
    with plain(db) as eyes:
        assert eyes.execute("SELECT count(*) FROM inbox").fetchone() == (0,)
        assert eyes.execute("SELECT CAST(type AS BLOB), CAST(payload AS BLOB) FROM event").fetchall().count(
            (type, payload)
        ) == 1, "byte for byte as it came"  # fmt: skip


def assert_shown(session: Session, shown: str, value: Any) -> None:
    events = session.run_events("r")
    found = [event for event in events if event.type in (shown, "note")]
    assert [event.type for event in found] == [shown, "note"]
    assert found[0].damaged == (value is None)
    raw = SAID["payload"][1].decode(errors="replace")
    assert found[0].payload == ({"unreadable": raw} if value is None else value)
    assert found[1].payload == {"n": 2}
    page = session.run_event_page("r")
    assert page is not None and page.events == tuple(events)


@pytest.mark.parametrize("case", SAID)
def test_an_event_that_is_no_text_hides_no_others_of_a_finished_run(db: Path, case: str):
    type, payload, shown, value = SAID[case]
    with Agent(db, model=ScriptedModel([reply("Done.")]), durability="process") as agent:
        session = agent.session(".", options())
        session.send("Go.", run_id="r")
        say(db, "r", type, payload)
        say(db, "r", b"note", b'{"n":2}')
        assert_shown(session, shown, value)


def test_a_message_that_is_no_text_reaches_the_model_as_it_is(db: Path):
    """Only a program that writes our tables can do that: nothing is lost unheard, and the turn goes on."""
    holding, go = threading.Event(), threading.Event()

    @tool(effect="idempotent")
    def hold() -> str:
        holding.set()
        assert go.wait(PATIENCE_S)
        return "held"

    def other() -> None:
        assert holding.wait(PATIENCE_S)
        with plain(db) as connection:
            connection.execute(
                """INSERT INTO inbox
                     (session_pk, stream_pk, kind, type, request_id, payload, waiting_no, off, bytes, ts_ms)
                   SELECT 1, 1, 'steer', 'steer', CAST(? AS TEXT), CAST(? AS TEXT), 0, 0, 0, 0""",
                (b"q" + CUT, b'{"text":"' + CUT + b'"}'),
            )
        go.set()

    script = [reply("", [call("hold")]), reply("Done."), reply("Heard.")]
    with Agent(db, model=ScriptedModel(script), tools=[hold], durability="process") as agent:
        speaker = threading.Thread(target=other)
        speaker.start()
        session = agent.session(".", options())
        assert session.send("Go.").status == "completed"
        speaker.join()
        assert '{"text":"\ufffd"}' in str(session.history())


def test_a_trace_or_a_piece_that_is_no_text_hides_no_others(db: Path):
    @tool(effect="read")
    def look() -> str:
        return "seen"

    script = [reply("", [call("look"), call("look")]), reply("Done.")]
    with Agent(db, model=ScriptedModel(script), tools=[look], durability="process") as agent:
        session = agent.session(".", options())
        session.send("Go.", run_id="r")
        with plain(db) as other:
            other.execute("UPDATE trace SET payload = CAST(? AS TEXT) WHERE number = 0", (b'{"n":"' + CUT + b'"}',))
        damaged, sound = session.trace_events()
        assert damaged.payload == {"unreadable": '{"n":"\ufffd"}'}
        assert sound.payload["name"] == "look"


def test_options_that_are_no_mapping_are_told(db: Path):
    with Agent(db, model=ScriptedModel([reply("Done.")]), durability="process") as agent:
        agent.session(".", options()).send("Go.")
    with plain(db) as other:
        other.execute("UPDATE session_option SET options = '[]'")
    with Agent(db, durability="process") as agent, pytest.raises(StoreError, match="options of session 's'"):
        agent.resume_session("s")
