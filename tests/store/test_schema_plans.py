"""What each named statement costs as a file grows: it seeks, unless it is about the whole file (§3, §8, §9)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from thence import reads
from thence.store.sql import load

from .schema_kit import SchemaFile

STATEMENTS = load().statements
SMALL = {
    "ancestry_fork": "n", "fact_blobs": "v", "fact_list": "v", "fact_newest_compaction": "v", "fact_page": "v",
    "run_newest": "c", "run_oldest": "c",
}  # fmt: skip
"""What is walked there is made by the statement itself: the stretches of a branch, a chain of runs."""
WHOLE = {"file_add", "file_row", "owner_list", "session_without_index", "stats", "waiting_count"}
"""About the whole file, or about a table that has one row for each process."""
RECOVERY = {"session_interrupted": "s", "wait_answered_runs": "s"}
"""All sessions, a microsecond each: an index of open runs would cost every run two pages more."""


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


class AnyValue(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 1


def plan(file: SchemaFile, statement: str) -> list[str]:
    sql = STATEMENTS[statement].sql
    return [row[3] for row in file.db.execute(f"EXPLAIN QUERY PLAN {sql}", AnyValue())]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - WHOLE))
def test_a_statement_seeks(file: SchemaFile, name: str) -> None:
    known = {"CONSTANT", "j", SMALL.get(name), RECOVERY.get(name)}
    scanned = {found[1] for step in plan(file, name) if (found := re.match(r"SCAN (\w+)", step))}
    assert scanned <= known, plan(file, name)


@pytest.mark.parametrize("tag", ["tenant_id", "principal", "agent_template_id", "correlation_id"])
def test_a_tag_is_looked_up(file: SchemaFile, tag: str) -> None:
    first = plan(file, f"session_list_by_{tag}")[0]
    assert re.match(rf"SEARCH s USING INDEX \w+ \({tag}=\? AND rowid>\?\)", first), first


def test_open_waits_are_found_among_closed_ones(file: SchemaFile) -> None:
    first = plan(file, "wait_list")[0]
    assert first == "SEARCH w USING INDEX wait_open (session_pk>? AND session_pk<?)"


@pytest.mark.parametrize("statement", ["run_newest", "run_list", "run_get", "stream_end", "inbox_steer"])
def test_who_goes_on_from_a_run_is_looked_up(file: SchemaFile, statement: str) -> None:
    assert any("INDEX run_identity_resumed (resumed_from=?)" in step for step in plan(file, statement))


def test_the_library_asks_by_the_tag_that_fewest_share() -> None:
    tags: dict[str, str | None] = {"agent_template_id": "a", "tenant_id": "t", "principal": "p", "correlation_id": "c"}
    for by in ("correlation_id", "principal", "tenant_id", "agent_template_id"):
        assert reads.sessions(tags).selects[0].statement == f"session_list_by_{by}"
        tags[by] = None  # untagged ones have no index
    assert reads.sessions(tags).selects[0].statement == reads.sessions({}).selects[0].statement == "session_list"
