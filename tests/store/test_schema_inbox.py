"""The door for other programs (§8, §9): ``INSERT INTO event_in(...)``, whoever inserts and whatever the clause."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .schema_kit import SchemaFile, padded, refused, schema_sql

VERBS = ("INSERT", "INSERT OR ABORT", "INSERT OR FAIL", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR ROLLBACK")


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def waiting(file: SchemaFile) -> list[Any]:
    return [payload for (payload,) in file.all("SELECT payload FROM inbox ORDER BY inbox_pk")]


def events(file: SchemaFile) -> list[tuple[Any, ...]]:
    return file.all("SELECT run_id, sequence, payload FROM events ORDER BY run_id, sequence")


def test_bad_input_is_refused_by_name(file: SchemaFile) -> None:
    pk = file.session("s", owner=None)
    file.run(pk, "live")
    file.run(file.session("t"), "of t")
    deep = "[" * 2100 + "]" * 2100
    bad: list[tuple[str, dict[str, Any]]] = [
        *(("BAD_INPUT type", {"type": value}) for value in (None, "", "  ", 7, b"t")),
        *(("BAD_INPUT payload must be JSON text", {"payload": value})
          for value in (None, "", "{", "{'a':1}", "NaN", b"{}", 5, '{"a":1}\0junk', "{}{}", f'{{"a":{deep}}}')),
        *(("BAD_INPUT payload must be a JSON object", {"payload": value}) for value in ("[]", "1", "null", '"x"')),
        *(("BAD_INPUT request_id", {"request_id": value}) for value in ("", 7, b"r", 1.5)),
        *(("BAD_INPUT ts_ms", {"ts_ms": value}) for value in ("now", 1.5, b"1", "")),
        ("BAD_INPUT run_id or session_id", {"run_id": None}),
        ("NOT_FOUND no such session", {"run_id": None, "session_id": "x"}),
        ("NOT_FOUND no such run", {"run_id": "x"}),
        ("NOT_FOUND no such run", {"run_id": "of t", "session_id": "s"}),
        ("NOT_FOUND no such run", {"session_id": "x"}),
    ]  # fmt: skip
    before = file.dump()
    for verb in VERBS:
        for code, columns in bad:
            with refused(code):
                file.event_in(verb, **({"run_id": "live"} | columns))
            assert file.dump() == before, (verb, columns)


def test_an_event_of_a_live_run_waits_for_its_owner(file: SchemaFile) -> None:
    pk = file.session("s")
    run = file.run(pk, "r")
    file.event(pk, run, '{"own":0}')
    file.event_in(run_id="r", payload='{"n":1}', session_id="s")
    file.event_in(run_id="r", payload='{"n":2}')
    assert events(file) == [("r", 0, '{"own":0}')]
    assert waiting(file) == ['{"n":1}', '{"n":2}']
    file.event(pk, run, '{"own":1}')
    file.drain(pk)
    assert [payload for _, _, payload in events(file)] == ['{"own":0}', '{"own":1}', '{"n":1}', '{"n":2}']
    assert waiting(file) == []


def test_a_run_without_owner_that_can_go_on_is_not_numbered_by_others(file: SchemaFile) -> None:
    pk = file.session("s", owner=None)
    run = file.run(pk, "r")
    for status in ("created", "planning", "executing", "verifying", "parked"):
        file.end_run(run, status)
        file.event_in(run_id="r")
        assert events(file) == []
    assert len(waiting(file)) == 5


def test_an_event_of_a_finished_or_superseded_run_is_numbered_at_once(file: SchemaFile) -> None:
    pk = file.session("s", owner=None)
    for status in ("completed", "failed", "cancelled"):
        run = file.run(pk, status)
        file.end_run(run, status)
        file.event_in(run_id=status)
        file.event_in(run_id=status)
        assert file.all("SELECT event_count, event_bytes FROM stream WHERE stream_pk = ?", run) == [(2, 4)]
    old = file.run(pk, "old")
    file.run(pk, "new", resumed_from=old)
    file.event_in(run_id="old")
    file.event_in(run_id="new")
    assert [(run, number) for run, number, _ in events(file)] == [
        *((status, number) for status in ("cancelled", "completed", "failed") for number in (0, 1)),
        ("old", 0),
    ]
    assert len(waiting(file)) == 1


def test_while_somebody_owns_the_session_even_finished_runs_wait(file: SchemaFile) -> None:
    pk = file.session("s")
    file.end_run(file.run(pk, "r"))
    file.event_in(run_id="r")
    file.event_in(session_id="s")
    assert events(file) == [] and len(waiting(file)) == 2


def test_an_event_never_overtakes_one_that_still_waits(file: SchemaFile) -> None:
    pk = file.session("s")
    file.end_run(file.run(pk, "r"))
    file.event_in(run_id="r", payload='{"n":1}')
    file.claim(pk, None)  # the owner left without looking into the inbox
    file.event_in(run_id="r", payload='{"n":2}')
    file.event_in(session_id="s", payload='{"other":1}')
    assert events(file) == [(None, 0, '{"other":1}')]
    file.drain(pk)
    file.event_in(run_id="r", payload='{"n":3}')
    assert [(n, payload) for run, n, payload in events(file) if run] == [(0, '{"n":1}'), (1, '{"n":2}'), (2, '{"n":3}')]


def test_an_evicted_run_hears_nothing_and_nobody_is_told(file: SchemaFile) -> None:
    pk = file.session("s", owner=None, max_runs_retained=1)
    for name in ("old", "new"):
        file.end_run(file.run(pk, name))
    before = file.dump()
    for verb in VERBS:
        file.event_in(verb, run_id="old", request_id="r")
    assert file.dump() == before
    file.event_in(run_id="new", request_id="r")
    assert len(events(file)) == 1


def test_a_known_request_is_ignored_under_any_clause(file: SchemaFile) -> None:
    pk = file.session("s", owner=None)
    file.end_run(file.run(pk, "done"))
    file.run(pk, "live")
    other = file.run(file.session("t", owner=None), "of t")
    for whom in ({"run_id": "done"}, {"run_id": "live"}, {"session_id": "s"}):
        file.event_in(request_id=f"r{whom}", payload='{"first":1}', **whom)
    before = file.dump()
    for verb in VERBS:
        for whom in ({"run_id": "done"}, {"run_id": "live"}, {"session_id": "s"}):
            for known in ("r{'run_id': 'done'}", "r{'run_id': 'live'}", "r{'session_id': 's'}"):
                file.event_in(verb, request_id=known, payload='{"second":2}', **whom)
                assert file.dump() == before, (verb, whom, known)
    file.event_in(run_id="of t", request_id="r{'run_id': 'live'}")  # another session's ids are its own
    assert file.one("SELECT count(*) FROM inbox WHERE stream_pk = ?", other) == 1
    file.drain(pk)
    file.event_in(run_id="live", request_id="r{'run_id': 'live'}")  # drained, and still known
    assert file.one("SELECT count(*) FROM inbox WHERE session_pk = ?", pk) == 0


def test_requests_are_remembered_as_long_as_their_run(file: SchemaFile) -> None:
    pk = file.session("s", owner=None, max_runs_retained=1, max_events_per_run=2)
    file.end_run(file.run(pk, "old"))
    for number in range(9):
        file.event_in(run_id="old", request_id=f"r{number}")
        file.event_in(session_id="s", request_id=f"c{number}")
    known = {request for (request,) in file.all("SELECT request_id FROM request")}
    assert known == {*(f"r{n}" for n in range(9)), "c7", "c8"}  # a channel never ends: its window is the cap's
    file.end_run(file.run(pk, "new"))
    assert file.count("request") == 2


def test_a_controls_request_is_known_too_and_no_cap_counts_it(file: SchemaFile) -> None:
    pk = file.session("s", max_events_per_run=0, max_event_bytes_per_run=0)
    run = file.run(pk, "r")
    for kind in ("cancel", "interrupt", "steer", "answer"):
        file.control(pk, run, kind, request_id=kind)
        file.control(pk, run, kind, request_id=kind, verb="INSERT OR REPLACE", payload='{"again":1}')
    assert waiting(file) == ["{}"] * 4
    assert file.all("SELECT waiting_count, waiting_dropped, event_count FROM stream WHERE stream_pk = ?", run) == [
        (0, 0, 0)
    ]
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint"):
        file.control(pk, run, "other")


def test_waiting_events_obey_the_caps_and_dropped_ones_are_counted(file: SchemaFile) -> None:
    pk = file.session("s", max_events_per_run=3, max_event_bytes_per_run=20)
    file.run(pk, "r")
    for size in (6, 6, 6, 6, 20, 21, 2):
        file.event_in(run_id="r", payload=padded(size))
    assert [len(payload) for payload in waiting(file)] == [2]
    assert file.all("SELECT outside_events_dropped, event_count FROM runs") == [(6, 0)]
    file.event_in(session_id="s", payload=padded(21))
    assert file.one("SELECT waiting_dropped FROM stream WHERE stream_pk = ?", -pk) == 1


def test_the_byte_cap_of_waiting_events_is_inclusive(file: SchemaFile) -> None:
    pk = file.session("s", max_event_bytes_per_run=20)
    file.run(pk, "r")
    for size in (4, 8, 12):
        file.event_in(run_id="r", payload=padded(size))
    assert [len(payload) for payload in waiting(file)] == [8, 12]
    file.event_in(run_id="r", payload=padded(20))
    assert [len(payload) for payload in waiting(file)] == [20]


def test_a_waiting_event_above_the_byte_cap_is_dropped_alone(file: SchemaFile) -> None:
    pk = file.session("s", max_events_per_run=2, max_event_bytes_per_run=20)
    file.run(pk, "r")
    for size in (4, 8, 21):
        file.event_in(run_id="r", payload=padded(size))
    assert [len(payload) for payload in waiting(file)] == [4, 8]
    assert file.one("SELECT outside_events_dropped FROM runs") == 1


def test_a_row_that_names_another_sessions_run_is_dropped(file: SchemaFile) -> None:
    pk, other = file.session("s"), file.session("t")
    file.control(pk, file.run(other), "cancel")
    assert waiting(file) == []
    file.control(other, -other, "cancel")
    assert waiting(file) == ["{}"]


def test_an_event_at_once_that_no_cap_lets_stay_is_still_counted(file: SchemaFile) -> None:
    pk = file.session("s", owner=None, max_events_per_run=0)
    run = file.run(pk, "r")
    file.end_run(run)
    file.event_in(run_id="r")
    file.set_caps(pk, max_events_per_run=None, max_event_bytes_per_run=5)
    file.event_in(run_id="r", payload=padded(6))
    counts = "SELECT event_count, waiting_dropped FROM stream WHERE stream_pk = ?"
    assert file.all(counts, run) == [(2, 0)]
    assert events(file) == [] and waiting(file) == []


def test_bytes_are_counted_in_utf8(file: SchemaFile) -> None:
    pk = file.session("s", owner=None, max_event_bytes_per_run=12)
    file.end_run(file.run(pk, "r"))
    file.event_in(run_id="r", payload='{"x":"ééé"}')  # 11 characters, 14 bytes
    file.event_in(run_id="r", payload='{"x":"éé"}')
    assert file.all("SELECT bytes FROM event") == [(12,)]


def test_times_never_go_back_and_default_to_now(file: SchemaFile) -> None:
    pk = file.session("s", owner=None)
    file.end_run(file.run(pk, "r"))
    for ts_ms in (2_000_000_000_000, 5, None):
        file.event_in(run_id="r", ts_ms=ts_ms)
    file.event_in(session_id="s")
    now = file.one("SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000")
    times = [t for (t,) in file.all("SELECT ts_ms FROM event WHERE stream_pk > 0 ORDER BY id")]
    assert times == [2_000_000_000_000] * 3 or now > times[0]
    assert abs(file.one("SELECT ts_ms FROM event WHERE stream_pk < 0") - now) < 60_000


def shell_of(tmp_path: Path) -> list[str]:
    """The ``sqlite3`` tool, or the interpreter's own stand-in that reads SQL from its arguments."""
    if found := shutil.which("sqlite3"):
        return [found, str(tmp_path / "a.db")]
    code = "import sqlite3,sys; d = sqlite3.connect(sys.argv[1]); d.executescript(sys.argv[2]); d.close()"
    return [sys.executable, "-c", code, str(tmp_path / "a.db")]


def test_another_program_needs_only_sqlite(tmp_path: Path) -> None:
    made = SchemaFile(schema_sql(), tmp_path / "a.db")
    for pragma in ("journal_mode = WAL", "synchronous = OFF"):
        made.sql(f"PRAGMA {pragma}")
    pk = made.session("s", owner=None)
    made.end_run(made.run(pk, "r"))
    shell = shell_of(tmp_path)

    def say(sql: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*shell, sql], capture_output=True, text=True, timeout=60, check=False)

    ok = say("""INSERT INTO event_in(run_id, type, payload, request_id) VALUES ('r', 'peer_invocation', '{"é":1}', 'q');
                INSERT OR REPLACE INTO event_in(run_id, type, payload, request_id) VALUES ('r', 't', '{}', 'q');
                INSERT INTO event_in(session_id, type, payload) VALUES ('s', 't', '{}');""")
    assert (ok.returncode, ok.stderr) == (0, "")
    bad = say("INSERT INTO event_in(run_id, type, payload) VALUES ('r', 't', 'nonsense');")
    assert bad.returncode != 0 and "thence:BAD_INPUT payload must be JSON text" in bad.stderr
    assert events(made) == [(None, 0, "{}"), ("r", 0, '{"é":1}')]
    made.db.close()
