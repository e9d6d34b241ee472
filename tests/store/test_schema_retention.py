"""Retention (§9): the triggers against a plain-Python model, step by step, and the edges by hand."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from .schema_kit import TERMINAL, SchemaFile, padded, schema_sql
from .schema_model import CAP_NAMES, CAP_VALUES, REQUESTS, Pair

SQL = schema_sql()
sessions = st.sampled_from("st")
streams = st.integers(0, 4)
batches = st.lists(st.integers(2, 12), min_size=1, max_size=4)


class Retention(RuleBasedStateMachine):
    """Two sessions in one file and in the model, whatever happens to them in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(SchemaFile(SQL))

    @rule(name=sessions, cap=st.sampled_from(CAP_NAMES), value=st.sampled_from(CAP_VALUES))
    def set_cap(self, name: str, cap: str, value: int | None) -> None:
        self.pair.set_cap(name, cap, value)

    @rule(name=sessions, owned=st.booleans())
    def claim_or_release(self, name: str, owned: bool) -> None:
        self.pair.claim(name, owned)

    @rule(name=sessions)
    def start_or_resume_run(self, name: str) -> None:
        self.pair.start_run(name)

    @rule(name=sessions, status=st.sampled_from((*TERMINAL, "parked")))
    def end_or_park_run(self, name: str, status: str) -> None:
        self.pair.end_run(name, status)

    @rule(name=sessions, which=streams, batch=batches)
    def emit(self, name: str, which: int, batch: list[int]) -> None:
        for size in batch:
            self.pair.emit(name, which, size)

    @rule(name=sessions, which=streams, batch=batches, request=st.sampled_from(REQUESTS))
    def outside(self, name: str, which: int, batch: list[int], request: str | None) -> None:
        for number, size in enumerate(batch):
            self.pair.outside(name, which, size, request and f"{request}{number}")

    @rule(name=sessions, limit=st.integers(1, 9))
    def drain(self, name: str, limit: int) -> None:
        self.pair.drain(name, limit)

    @rule(name=sessions, count=st.integers(1, 4))
    def trace(self, name: str, count: int) -> None:
        for _ in range(count):
            self.pair.trace(name)

    @rule(name=sessions, task=st.integers(0, 9), at=st.none() | st.integers(1, 6))
    def start_or_finish_task(self, name: str, task: int, at: int | None) -> None:
        self.pair.task(name, task, at)

    @rule(name=sessions)
    def delete_session(self, name: str) -> None:
        self.pair.delete_session(name)

    @invariant()
    def the_file_keeps_what_the_model_keeps(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        self.pair.file.db.close()


TestRetention = Retention.TestCase
TestRetention.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
)


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def test_long_random_walks_agree_with_the_model(file: SchemaFile) -> None:
    pair = Pair(file)
    random = Random(9)
    for _ in range(1_500):
        pair.random_step(random)
        pair.check()


def sequences(file: SchemaFile, run: int) -> list[int]:
    return [n for (n,) in file.all("SELECT sequence FROM event WHERE stream_pk = ? ORDER BY id", run)]


def test_each_run_has_its_own_window(file: SchemaFile) -> None:
    """Case F12: noise of one run evicts nothing of another."""
    pk = file.session(max_events_per_run=20, max_event_bytes_per_run=1_000)
    quiet = file.run(pk, "quiet")
    file.event(pk, quiet, '{"budget_threshold_hit":1}')
    file.end_run(quiet)
    noisy = file.run(pk, "noisy")
    for _ in range(500):
        file.event(pk, noisy)
    assert sequences(file, quiet) == [0]
    assert sequences(file, noisy) == list(range(480, 500))
    assert file.one("SELECT event_count FROM stream WHERE stream_pk = ?", noisy) == 500


def test_an_event_above_the_byte_cap_is_counted_and_pushes_nothing_out(file: SchemaFile) -> None:
    """Cases F06 and F13: no error, and the run can end beside it."""
    pk = file.session(max_event_bytes_per_run=8 << 20, max_events_per_run=4)
    run = file.run(pk)
    for _ in range(4):
        file.event(pk, run, padded(2 << 20))
    file.sql("SAVEPOINT settle")
    file.event(pk, run, padded(9 << 20))
    file.end_run(run)
    file.sql("RELEASE settle")
    assert sequences(file, run) == [0, 1, 2, 3]
    assert file.all("SELECT event_count, event_bytes FROM stream WHERE stream_pk = ?", run) == [(5, 8 << 20)]
    assert file.one("SELECT status FROM run") == "completed"


def test_the_byte_cap_is_inclusive_and_exact(file: SchemaFile) -> None:
    pk = file.session(max_event_bytes_per_run=10)
    run = file.run(pk)
    file.event(pk, run, padded(10))
    assert sequences(file, run) == [0]
    file.event(pk, run, padded(2))
    assert sequences(file, run) == [1]
    file.event(pk, run, padded(8))
    assert sequences(file, run) == [1, 2]
    file.event(pk, run, "{}\0\0")  # bytes behind a NUL count too
    assert sequences(file, run) == [3]


def test_a_lowered_cap_holds_at_the_next_insert_even_if_that_is_not_kept(file: SchemaFile) -> None:
    pk = file.session()
    by_bytes, by_count = file.run(pk), file.run(pk)
    for run in (by_bytes, by_count):
        for _ in range(5):
            file.event(pk, run, padded(4))
    file.set_caps(pk, max_event_bytes_per_run=8)
    file.event(pk, by_bytes, padded(9))
    assert sequences(file, by_bytes) == [3, 4]
    file.set_caps(pk, max_event_bytes_per_run=20, max_events_per_run=2)
    file.event(pk, by_count, padded(21))
    assert sequences(file, by_count) == [3, 4]
    file.set_caps(pk, max_event_bytes_per_run=0)
    file.event(pk, by_count)
    assert sequences(file, by_count) == []
    assert file.one("SELECT event_count FROM stream WHERE stream_pk = ?", by_count) == 7


def test_event_counts_never_go_down(file: SchemaFile) -> None:
    pk = file.session()
    run = file.run(pk)
    for _ in range(4):
        file.event(pk, run)
    again = "INSERT OR REPLACE INTO event SELECT id, off, ?, fence, ts_ms, type, '[]' FROM event WHERE sequence = 1"
    file.sql(again, 2)
    file.set_caps(pk, max_event_bytes_per_run=1)
    file.sql(again, 9)
    assert file.one("SELECT event_count FROM stream WHERE stream_pk = ?", run) == 4


def test_traces_are_numbered_after_the_newest_that_is_kept(file: SchemaFile) -> None:
    """Eviction leaves the newest, so their numbers go on; where none is kept they begin anew, which nobody follows."""
    before, pk, after = (file.session(name) for name in ("r", "s", "t"))
    numbers = "SELECT number FROM trace WHERE session_pk = ? ORDER BY id"
    file.trace(before)
    file.set_caps(pk, max_trace_events=2)
    session = file.all("SELECT * FROM session WHERE session_pk = ?", pk)
    for _ in range(5):
        file.trace(pk)
    file.sql("INSERT OR REPLACE INTO trace SELECT id, run_pk, fence, 2, kind, name, '[]' FROM trace WHERE number = 3")
    file.trace(after)
    assert file.all("SELECT * FROM session WHERE session_pk = ?", pk) == session, "its row was not written"
    file.trace(pk)
    assert file.all(numbers, pk) == [(4,), (5,)]
    file.set_caps(pk, max_trace_events=0)
    file.trace(pk)
    assert file.all(numbers, pk) == []
    file.set_caps(pk, max_trace_events=None)
    file.trace(pk)
    assert file.all(numbers, pk) == file.all(numbers, before) == [(0,)]


def test_only_a_run_that_can_go_on_is_exempt(file: SchemaFile) -> None:
    pk = file.session(max_runs_retained=1)

    def kept() -> list[str]:
        sql = "SELECT i.run_id FROM run r JOIN run_identity i ON i.run_pk = r.run_pk ORDER BY r.run_no"
        return [name for (name,) in file.all(sql)]

    parked = file.run(pk, "parked")
    file.end_run(parked, "parked")
    for name in ("a", "b", "c"):
        file.end_run(file.run(pk, name))
    assert kept() == ["parked", "c"]
    for payload in ("1", "2"):
        file.event(pk, parked, payload)
    file.checkpoint(pk, parked)
    file.end_run(parked)  # judged when it ends
    assert kept() == ["c"]
    assert file.count("event") == file.count("checkpoint") == 0
    interrupted = file.run(pk, "interrupted")
    file.end_run(file.run(pk, "d"))
    assert kept() == ["interrupted", "d"]
    file.run(pk, "heir", resumed_from=interrupted)  # judged when it is superseded
    assert kept() == ["heir"]
    assert file.one("SELECT count(*) FROM run_identity") == 7
    assert file.one("SELECT run_count FROM session") == 7


def test_a_superseded_run_goes_at_once_when_its_place_is_taken(file: SchemaFile) -> None:
    """The link alone judges it, before any other run is inserted; while there is room for it, it stays."""
    pk = file.session(max_runs_retained=1)
    old = file.run(pk, "old")
    heir = file.run_identity(pk, "heir", resumed_from=old)
    assert file.count("run") == 1
    file.set_caps(pk, max_runs_retained=0)
    file.sql("DELETE FROM run")
    next_run = file.run(pk, "next")
    file.run_identity(pk, "its heir", resumed_from=next_run)
    assert file.count("run") == 0 and heir > old
    assert file.all("SELECT stream_pk FROM stream") == [(-pk,)]


def test_an_evicted_run_takes_all_that_is_its_own(file: SchemaFile) -> None:
    pk = file.session(max_runs_retained=1)
    old = file.run(pk, "old")
    file.event(pk, old)
    file.event_in(run_id="old", request_id="r1")
    file.event_in(session_id="s", request_id="r2")
    file.end_run(old)
    file.delta(old)
    file.checkpoint(pk, old)
    new = file.run(pk, "new")
    file.event(pk, new)
    assert file.all("SELECT stream_pk FROM stream ORDER BY 1") == [(-pk,), (new,)]
    assert file.all("SELECT stream_pk FROM event") == [(new,)]
    assert file.count("checkpoint") == file.count("delta") == 0
    assert file.all("SELECT request_id FROM request") == [("r2",)]
    assert file.all("SELECT stream_pk FROM inbox") == [(-pk,)]


def test_running_tasks_are_never_evicted(file: SchemaFile) -> None:
    pk = file.session(max_terminal_subagent_tasks=2)
    for number in range(5):
        file.task(pk, f"running-{number}")
        file.task(pk, f"done-{number}", status="completed", finished_ms=10 - number)
    done = file.all("SELECT task_id FROM task WHERE finished_ms IS NOT NULL ORDER BY finished_ms")
    assert done == [("done-1",), ("done-0",)]  # the oldest completions went, whenever they came
    assert file.count("task") == 5 + 2
    file.sql("UPDATE task SET status = 'parked' WHERE task_id = 'running-0'")
    assert file.one("SELECT terminal_tasks FROM session") == 2
    file.sql("DELETE FROM task WHERE task_id = 'done-0'")
    assert file.one("SELECT terminal_tasks FROM session") == 1
