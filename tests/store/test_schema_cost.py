"""Eviction counts nothing (§9): triggers only seek, an insert costs the same at any size, the file is flat."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .schema_kit import SchemaFile, schema_sql

CAPS = {
    "max_runs_retained": 40,
    "max_events_per_run": 50,
    "max_event_bytes_per_run": 400,
    "max_trace_events": 50,
    "max_terminal_subagent_tasks": 50,
}
SMALL = 100


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def queries(trigger: str) -> Iterator[str]:
    """The statements of one trigger, WHEN included, as they can be planned outside of it."""
    head, body = re.split(r"\bBEGIN\b", trigger, maxsplit=1)
    statements = [part.strip() for part in body.rsplit("END", 1)[0].split(";")]
    if " WHEN " in (flat := re.sub(r"\s+", " ", head)):
        statements.insert(0, f"SELECT {flat.split(' WHEN ', 1)[1]}")
    for statement in filter(None, statements):
        text = re.sub(r"RAISE\((IGNORE|ABORT, '(''|[^'])*')\)", "NULL", statement)
        yield re.sub(r"\b(NEW|OLD)\.(\w+)", r":\1_\2", text)


class AnyValue(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 1


def test_every_query_inside_a_trigger_seeks(file: SchemaFile) -> None:
    seen = 0
    for name, sql in file.all("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"):
        for query in queries(re.sub(r"--[^\n]*", "", sql)):
            plan = [row[3] for row in file.db.execute(f"EXPLAIN QUERY PLAN {query}", AnyValue())]
            seen += len(plan)
            bad = [step for step in plan if re.match(r"SCAN (?!CONSTANT ROW|\(subquery)|USE TEMP B-TREE", step)]
            assert not bad, (name, query, plan)
    assert seen > 100


def test_a_scan_inside_a_trigger_would_be_seen(file: SchemaFile) -> None:
    (query,) = queries("CREATE TRIGGER x AFTER INSERT ON event BEGIN DELETE FROM event WHERE type = NEW.type; END")
    assert [row[3] for row in file.db.execute(f"EXPLAIN QUERY PLAN {query}", AnyValue())] == ["SCAN event"]


def steps(file: SchemaFile, write: Callable[[], Any]) -> int:
    """Virtual machine steps of one write, as far as the progress handler sees them."""
    seen = 0

    def tick() -> int:
        nonlocal seen
        seen += 1
        return 0

    file.db.set_progress_handler(tick, 1)
    write()
    file.db.set_progress_handler(None, 1)
    return seen


class Writer:
    """One of each insert, again and again, in a session with one long-lived run."""

    def __init__(self, file: SchemaFile, caps: dict[str, int]) -> None:
        self.file = file
        self.pk = file.session("s", **caps)
        self.run_pk = file.run(self.pk, "live")
        self.branch = file.branch_from(self.seeded_root(), 1)
        self.number = 0

    def seeded_root(self) -> int:
        root = self.file.live_branch(self.pk)
        self.file.fact(root, "first")
        return root

    def event(self) -> None:
        self.file.event(self.pk, self.run_pk, '{"n":1}')

    def trace(self) -> None:
        self.file.trace(self.pk)

    def fact(self) -> None:
        self.file.fact(self.branch, f"k{self.number}")

    def inbox(self) -> None:
        self.file.event_in(run_id="live", payload='{"n":1}')

    def inbox_with_request(self) -> None:
        self.file.event_in(session_id="s", payload='{"n":1}', request_id=f"q{self.number}")

    def task(self) -> None:
        self.file.task(self.pk, f"t{self.number}", status="completed", finished_ms=self.number)

    def run(self) -> None:
        """A whole run, so that one is evicted with its stream, events and requests."""
        run = self.file.insert(
            "run_identity", run_id=f"r{self.number}", session_pk=self.pk, branch_pk=1, first_seq=1, input_sha256=""
        )
        self.file.insert("stream", stream_pk=run, session_pk=self.pk)
        self.file.sql(
            """INSERT INTO run(run_pk, session_pk, run_no, fence, status, created_ms, updated_ms, prompt)
               SELECT ?, session_pk, run_count, fence, 'executing', 1, 1, '' FROM session WHERE session_pk = ?""",
            run, self.pk)  # fmt: skip
        self.file.event(self.pk, run)
        self.file.end_run(run)

    def steady_steps(self, write: Callable[[], Any]) -> int:
        """The most of ten writes in a row: eviction by bytes works in small bursts."""
        most = 0
        for _ in range(10):
            self.number += 1
            most = max(most, steps(self.file, write))
        return most

    def fill(self, write: Callable[[], Any], rows: int) -> None:
        self.file.sql("BEGIN")
        for _ in range(rows):
            self.number += 1
            write()
        self.file.sql("COMMIT")


KINDS = ("event", "trace", "fact", "inbox", "inbox_with_request", "task", "run")


@pytest.mark.parametrize("caps", [CAPS, {}], ids=["evicting", "unbounded"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [6_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_an_insert_costs_the_same_at_any_size(file: SchemaFile, kind: str, caps: dict[str, int], rows: int) -> None:
    writer = Writer(file, caps)
    write = getattr(writer, kind)
    large = rows if caps or kind == "fact" else rows // 4
    writer.fill(write, SMALL)
    small_steps = writer.steady_steps(write)
    writer.fill(write, large)
    large_steps = writer.steady_steps(write)
    assert small_steps > 0 and large_steps < small_steps * 1.2, (small_steps, large_steps)


def test_the_steps_are_really_counted(file: SchemaFile) -> None:
    """The measure must see a scan: without its index, evicting a task passes by all that are running."""
    writer = Writer(file, CAPS)
    writer.fill(writer.task, SMALL)
    small_steps = writer.steady_steps(writer.task)
    for number in range(500):
        file.task(writer.pk, f"running-{number}")
    assert writer.steady_steps(writer.task) == small_steps
    file.sql("DROP INDEX task_finished")
    assert writer.steady_steps(writer.task) > small_steps * 3


def test_the_file_is_flat_once_the_caps_bite(tmp_path: Path) -> None:
    """Case F07, smaller: 50,000 events of 2 kB through a cap take no more room than 10,000."""
    file = SchemaFile(schema_sql(), tmp_path / "a.db")
    for pragma in ("journal_mode = WAL", "synchronous = OFF", "secure_delete = OFF"):
        file.sql(f"PRAGMA {pragma}")
    pk = file.session("s", max_events_per_run=200)
    run, pages = file.run(pk), list[int]()
    for upto in (10_000, 50_000):
        file.sql("BEGIN")
        while file.one("SELECT event_count FROM stream WHERE stream_pk = ?", run) < upto:
            for _ in range(500):
                file.event(pk, run, '{"x":"' + "x" * 2_000 + '"}', fence=1)
        file.sql("COMMIT")
        pages.append(file.one("PRAGMA page_count"))
    assert file.count("event") == 200
    assert pages[1] <= pages[0] * 1.05, pages
    file.db.close()
    assert (tmp_path / "a.db").stat().st_size < 200 * 2_100 * 1.5 + 400_000
