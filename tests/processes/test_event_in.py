"""A program with only `sqlite3` speaks through the view `event_in`, and cannot touch the log (§4, §8, §9)."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from .kit import GENEROUS_S, Child, Plain, verify, wait_for

OWNER = """
@tool
def hold(context: ToolContext) -> str:
    say("holding")
    while not os.path.exists(args[0]) and not context.cancelled: time.sleep(0.01)
    return "held"

with Agent(db, model=ScriptedModel([reply("", [call("hold")]), reply("Done.")]), tools=[hold]) as agent:
    session = agent.session(".", options(session_id="s", retention_limits=json.loads(args[1])))
    result = session.send("Go.")
    say(json.dumps([[e.metadata["sequence"], e.type, e.payload] for e in session.run_events(result.run_id)]))
"""

ENDED = """
with Agent(db, model=ScriptedModel([reply("Done.")] * 9)) as agent:
    for name in args: say(agent.session(".", options(session_id=name)).send("Go.").run_id)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, str]:
    """A closed file with two finished sessions, made once, and a run of it."""
    path = tmp_path_factory.mktemp("finished") / "agents.db"
    child = Child(ENDED, [path, "s", "other"])
    runs = child.finish()
    child.clean_up()
    return path, runs[0]


@pytest.fixture
def run(finished, db) -> str:
    """The run of a copy of that file, at the test's own path."""
    shutil.copyfile(finished[0], db)
    name: str = finished[1]
    return name


def sequences(eyes: Plain, run: str) -> list[int]:
    return [n for (n,) in eyes.rows("SELECT sequence FROM events WHERE run_id = ? ORDER BY sequence", run)]


def notes(eyes: Plain) -> int:
    return int(eyes.one("SELECT count(*) FROM events WHERE type = 'note'"))


def test_an_outside_event_waits_and_the_owner_numbers_it_while_it_works(spawn, plain, tmp_path, db, measured):
    go = tmp_path / "go"
    owner = spawn(OWNER, go, json.dumps({}))
    owner.expect("holding")
    eyes: Plain = plain()
    (run,) = (row for (row,) in eyes.rows("SELECT run_id FROM runs"))
    owner.kill(signal.SIGSTOP)
    eyes.say(run_id=run, type="note", payload='{"n":0}')
    # nobody but the owner numbers while the run lives, and the owner does not run
    time.sleep(0.4)
    assert notes(eyes) == 0
    assert eyes.one("SELECT count(*) FROM inbox WHERE kind = 'event'") == 1
    owner.kill(signal.SIGCONT)
    wait_for(lambda: notes(eyes) == 1)
    delays = []
    for number in range(1, 4):
        began = time.monotonic()
        eyes.say(run_id=run, type="note", payload=json.dumps({"n": number}), request_id=f"r{number}")
        while notes(eyes) <= number:
            assert time.monotonic() - began < GENEROUS_S
            time.sleep(0.01)
        delays.append(time.monotonic() - began)
    measured("seconds_until_numbered", delays)
    assert max(delays) < 10
    assert eyes.one("SELECT count(*) FROM inbox") == 0
    assert sequences(eyes, run) == list(range(len(sequences(eyes, run))))
    # the same request again, under whatever conflict clause, is ignored
    before = eyes.one("SELECT event_count FROM runs")
    eyes.say(run_id=run, type="note", payload='{"n":1}', request_id="r1")
    eyes.say(verb="INSERT OR REPLACE", run_id=run, type="other", payload='{"n":7}', request_id="r2")
    eyes.say(verb="INSERT OR IGNORE", run_id=run, type="note", payload='{"n":3}', request_id="r3")
    time.sleep(0.6)
    assert eyes.one("SELECT event_count FROM runs") == before
    go.touch()
    events = json.loads(owner.line())
    owner.finish()
    assert [sequence for sequence, *_ in events] == list(range(len(events)))
    assert [payload["n"] for _, kind, payload in events if kind == "note"] == [0, 1, 2, 3]
    verify(db)


def test_waiting_events_obey_the_caps_and_dropped_ones_are_counted(spawn, plain, tmp_path):
    go = tmp_path / "go"
    owner = spawn(OWNER, go, json.dumps({"max_events_per_run": 20, "max_event_bytes_per_run": 2000}))
    owner.expect("holding")
    eyes: Plain = plain()
    run = eyes.one("SELECT run_id FROM runs")
    owner.kill(signal.SIGSTOP)
    for number in range(50):
        eyes.say(run_id=run, type="note", payload=json.dumps({"n": number}))
        assert eyes.one("SELECT count(*) FROM inbox") <= 20
    assert eyes.one("SELECT outside_events_dropped FROM runs") == 30
    # by bytes: ten of 200 fit into 2,000; one that is larger than the cap is dropped alone and pushes nothing out
    for number in range(50, 65):
        eyes.say(run_id=run, type="note", payload=json.dumps({"n": number, "x": "y" * 181}))
        held = eyes.one("SELECT sum(length(CAST(payload AS BLOB))) FROM inbox")
        assert held <= 2000
    kept = eyes.one("SELECT count(*) FROM inbox")
    eyes.say(run_id=run, type="note", payload=json.dumps({"n": 65, "x": "y" * 3000}))
    assert eyes.one("SELECT count(*) FROM inbox") == kept
    assert eyes.one("SELECT outside_events_dropped FROM runs") == 66 - kept
    owner.kill(signal.SIGCONT)
    wait_for(lambda: eyes.one("SELECT count(*) FROM inbox") == 0)
    assert len(sequences(eyes, run)) <= 20
    go.touch()
    events = json.loads(owner.line())
    owner.finish()
    assert len(events) <= 20
    told = [payload["n"] for _, kind, payload in events if kind == "note"]
    assert told == sorted(told)
    assert set(told) <= set(range(66 - kept - 1, 65))


def test_after_the_end_events_are_numbered_at_once(spawn, plain, db, run):
    eyes: Plain = plain()
    before = sequences(eyes, run)
    for number in range(3):
        eyes.say(run_id=run, type="note", payload=json.dumps({"n": number}), request_id=f"r{number}")
        assert sequences(eyes, run) == list(range(len(before) + number + 1))
    eyes.say(verb="INSERT OR REPLACE", run_id=run, type="note", payload='{"n":9}', request_id="r1")
    assert len(sequences(eyes, run)) == len(before) + 3
    assert [json.loads(p)["n"] for (p,) in eyes.rows("SELECT payload FROM events WHERE type = 'note'")] == [0, 1, 2]
    assert eyes.one("SELECT count(*) FROM inbox") == 0
    # the session's own channel has a numbering of its own
    eyes.say(session_id="s", type="note", payload='{"own":true}')
    channel = eyes.rows("SELECT sequence, type, payload FROM events WHERE run_id IS NULL")
    assert channel == [(0, "note", '{"own":true}')]
    eyes.close()
    reader = spawn(
        """
with Agent(db) as agent:
    session = agent.resume_session("s")
    say(json.dumps([[e.type, e.payload, e.metadata["run_id"], e.metadata["sequence"]] for e in session.events()]))
    say([e.type for e in session.run_events(args[0])].count("note"))
""",
        run,
    )
    assert json.loads(reader.line()) == [["note", {"own": True}, None, 0]]
    reader.expect("3")
    reader.finish()
    verify(db)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"run_id": "nobody", "type": "note", "payload": "{}"}, "NOT_FOUND"),
        ({"session_id": "nobody", "type": "note", "payload": "{}"}, "NOT_FOUND"),
        ({"run_id": "RUN", "session_id": "other", "type": "note", "payload": "{}"}, "NOT_FOUND"),
        ({"type": "note", "payload": "{}"}, "BAD_INPUT run_id or session_id"),
        ({"run_id": "RUN", "type": "  ", "payload": "{}"}, "BAD_INPUT type"),
        ({"run_id": "RUN", "payload": "{}"}, "BAD_INPUT type"),
        ({"run_id": "RUN", "type": b"note", "payload": "{}"}, "BAD_INPUT type"),
        ({"run_id": "RUN", "type": "note"}, "BAD_INPUT payload"),
        ({"run_id": "RUN", "type": "note", "payload": "{oops"}, "BAD_INPUT payload"),
        ({"run_id": "RUN", "type": "note", "payload": "[1]"}, "BAD_INPUT payload"),
        ({"run_id": "RUN", "type": "note", "payload": '{"a":1}\0x'}, "BAD_INPUT payload"),
        ({"run_id": "RUN", "type": "note", "payload": 5}, "BAD_INPUT payload"),
        ({"run_id": "RUN", "type": "note", "payload": "{}", "request_id": ""}, "BAD_INPUT request_id"),
        ({"run_id": "RUN", "type": "note", "payload": "{}", "request_id": 5}, "BAD_INPUT request_id"),
        ({"run_id": "RUN", "type": "note", "payload": "{}", "ts_ms": "now"}, "BAD_INPUT ts_ms"),
    ],
)
def test_the_door_refuses_by_name_and_nothing_is_written(plain, run, columns, words):
    eyes: Plain = plain()
    before = list(eyes.db.iterdump())
    given = {name: run if value == "RUN" else value for name, value in columns.items()}
    with pytest.raises(sqlite3.Error, match=f"thence:{words}"):
        eyes.say(**given)
    assert list(eyes.db.iterdump()) == before


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE fact SET payload = '{}' WHERE id = (SELECT max(id) FROM fact)",
        "UPDATE fact SET ts_ms = 0",
        "UPDATE OR REPLACE fact SET id = (SELECT min(id) FROM fact) WHERE id = (SELECT max(id) FROM fact)",
        "UPDATE OR IGNORE fact SET kind = 'x'",
        "DELETE FROM fact",
        "DELETE FROM fact WHERE id = (SELECT max(id) FROM fact)",
        "INSERT OR REPLACE INTO fact(id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload) "
        "SELECT id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, '{}' FROM fact ORDER BY id LIMIT 1",
        "REPLACE INTO fact(id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload) "
        "SELECT id + 1, run_pk, fence, ts_ms, kind, key, cause, hash, hash, blobs, '{}' FROM fact "
        "ORDER BY id DESC LIMIT 1",
        "INSERT OR REPLACE INTO fact(id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload) "
        "SELECT id + 5, run_pk, fence, ts_ms, kind, 'new', cause, hash, hash, blobs, '{}' FROM fact "
        "ORDER BY id DESC LIMIT 1",
        "INSERT OR REPLACE INTO fact(id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload) "
        "SELECT id + 1, run_pk, fence, ts_ms, kind, 'new', cause, prev_hash, hash, blobs, '{}' FROM fact "
        "ORDER BY id DESC LIMIT 1",
        "UPDATE branch SET head_seq = head_seq - 1",
        "UPDATE branch SET head_hash = zeroblob(32)",
        "UPDATE branch SET pruned_to = 99",
        "DELETE FROM branch",
        "INSERT INTO facts(seq) VALUES(1)",
        "UPDATE facts SET payload = ''",
        "DELETE FROM facts",
    ],
)
def test_facts_cannot_be_changed_by_anybody(plain, db, sql):
    before = verify(db)
    eyes: Plain = plain()
    dump = [line for line in eyes.db.iterdump() if '"fact"' in line or '"branch"' in line]
    said = eyes.refused(sql)
    assert "thence:" in said or "cannot modify facts because it is a view" in said
    assert [line for line in eyes.db.iterdump() if '"fact"' in line or '"branch"' in line] == dump
    eyes.close()
    assert verify(db) == before
