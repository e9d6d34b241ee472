"""What each named statement that reads gives, to the last column: runs, sessions, owners, the file (§8, §10).

It is asked about the session in the middle of three that look alike (`test_mutants_neighbours`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ..store.schema_kit import SchemaFile
from . import test_mutants_claims, test_mutants_inbox, test_mutants_reads, test_mutants_waits, test_mutants_writes
from .test_mutants_neighbours import STATEMENTS, A, B, C, neighbours
from .test_mutants_reads import RUN, TAGS, Rows, ask

ANY = {"after_pk": 0, "limit": 100, **dict.fromkeys(TAGS), **{f"any_{name}": 1 for name in TAGS}}


def fill(f: SchemaFile, table: str, pk: int, columns: str) -> Rows:
    """Give each of ``columns`` of one row a value of its own; returns them."""
    names = columns.split()
    types = dict(f.all("SELECT name, type FROM pragma_table_info(?)", table))
    values = [f"{name}-{pk}" if types[name] == "TEXT" else n + 100 * pk for n, name in enumerate(names)]
    sets = ", ".join(f"{name} = ?" for name in names)
    f.sql(f"UPDATE {table} SET {sets} WHERE rowid = ?", *values, pk)
    return [tuple(values)]


TOTALS = (
    "prompt created_ms updated_ms ended_ms rounds tool_calls_count prompt_tokens completion_tokens total_tokens"
    " cache_read_tokens cache_write_tokens requests_without_usage resumable error_code error_message result_text"
)


def test_every_column_of_a_run():
    f = neighbours()
    f.claim(B, "me")
    f.sql("UPDATE run SET fence = 4 WHERE run_pk IN (2, 5)")
    [old], [new] = fill(f, "run", 2, TOTALS), fill(f, "run", RUN, TOTALS)
    ran = [
        ("run-2-0", "b", "failed", "run-2-1", None, *old, 0, None, "me"),
        ("run-2-1", "b", "executing", None, "run-2-0", *new, 4, 2, "me"),
    ]
    assert ask(f, "run_list", session_pk=B) == ran
    assert [ask(f, "run_get", run_id=row[0]) for row in ran] == [[row] for row in ran]
    assert ask(f, "run_get", run_id="none") == []
    f.run_identity(B, "evicted")
    assert ask(f, "run_get", run_id="evicted") == [], "its id is taken still, but there is nothing to show"
    f.sql("DELETE FROM stream WHERE session_pk = ?", B)  # and one without its events is a run all the same
    assert [row[-3] for row in ask(f, "run_list", session_pk=B)] == [None, None]
    assert ask(f, "run_get", run_id="run-2-1")[0][-3] is None


NAMED = "workspace tenant_id principal agent_template_id correlation_id created_ms live_branch"
CAPS = (
    "forked_from max_runs_retained max_events_per_run max_event_bytes_per_run max_trace_events"
    " max_terminal_subagent_tasks run_count"
)


def test_every_column_of_a_session():
    f = neighbours()
    f.sql("UPDATE session_option SET options = json_array(session_pk), durable_memory = json_array(9, session_pk)")
    f.claim(B, "me")
    [named], [caps] = fill(f, "session", B, NAMED), fill(f, "session", B, CAPS)
    row = (B, "b", *named, "me", 4, *caps, "[2]", "[]", "[9,2]")
    assert ask(f, "session_get", session_id="b") == [row]
    assert ask(f, "session_get", session_id="none") == []
    assert ask(f, "session_list", **{**ANY, "after_pk": A, "limit": 1}) == [row]
    tagged = [(BY_TAG[name], {**ANY, name: tag, f"any_{name}": 0}) for name, tag in zip(TAGS, row[3:7], strict=True)]
    assert [ask(f, statement, **given) for statement, given in tagged] == [[row]] * 4
    f.sql("DELETE FROM session_option")
    row = (*row[:-3], None, None, None)
    assert ask(f, "session_get", session_id="b") == [row]
    assert ask(f, "session_list", **{**ANY, "after_pk": A, "limit": 1}) == [row]
    assert [ask(f, statement, **given) for statement, given in tagged] == [[row]] * 4


BY_TAG = {
    "tenant_id": "session_list_by_tenant_id", "principal": "session_list_by_principal",
    "agent_template_id": "session_list_by_agent_template_id", "correlation_id": "session_list_by_correlation_id",
}  # fmt: skip


OTHERS: list[dict[str, Any]] = [
    {}, {"any_tenant_id": 0, "tenant_id": "t2"}, {"any_principal": 0, "principal": None},
    {"any_tenant_id": 0, "tenant_id": None}, {"any_principal": 0, "principal": "x"},
    {"any_agent_template_id": 0, "agent_template_id": "x"}, {"any_correlation_id": 0, "correlation_id": "x"},
]  # fmt: skip


@pytest.mark.parametrize("name", TAGS)
def test_sessions_of_one_tag_are_those_of_the_list(name: str):
    f = neighbours()
    for pk in range(4, 12):
        f.session(f"s{pk}", owner=None)
        tags = [f"t{pk % 2 + 2}", *(None if pk & bit else "x" for bit in (1, 2, 4))]
        f.sql(f"UPDATE session SET {', '.join(f'{tag} = ?' for tag in TAGS)} WHERE session_pk = ?", *tags, pk)
    for value in ("t2", "p2", "a2", "c2", "x", "none"):
        for others in OTHERS:
            for page in ({}, {"limit": 1}, {"after_pk": B}):
                given = {**ANY, **others, **page, name: value, f"any_{name}": 0}
                for turned in (False, True):
                    assert ask(f, BY_TAG[name], turned, **given) == ask(f, "session_list", turned, **given)


@pytest.mark.parametrize(("after", "limit", "found"), [(0, 9, [A, B, C]), (0, 2, [A, B]), (1, 9, [B, C]), (3, 9, [])])
def test_pages_of_sessions(after: int, limit: int, found: list[int]):
    assert [row[0] for row in ask(neighbours(), "session_list", **{**ANY, "after_pk": after, "limit": limit})] == found


@pytest.mark.parametrize("name", TAGS)
def test_sessions_are_filtered_by_each_tag_alone(name: str):
    f = neighbours()
    f.sql(f"UPDATE session SET {name} = NULL WHERE session_pk = ?", C)
    for value, found in ((f"{name[0]}2", [B]), (None, [C]), ("other", [])):
        given = {**ANY, name: value, f"any_{name}": 0}
        assert [row[0] for row in ask(f, "session_list", **given)] == found


def test_an_empty_file_has_nothing_in_it():
    assert ask(SchemaFile(), "stats") == [(0,) * 11]


def test_the_end_of_a_stream_says_who_has_the_session():
    f = neighbours()
    f.claim(B, "me")
    assert ask(f, "stream_end", stream_pk=RUN) == [("executing", 0, "me")]
    assert ask(f, "stream_end", stream_pk=4) == [("executing", 0, None)]
    assert ask(f, "stream_end", stream_pk=99) == []


def test_owners_of_the_same_moment_come_by_name():
    f = neighbours()
    for owner in ("x", "w"):
        f.insert("owner", owner=owner, pid=9, program="p", since_ms=200)
    assert [row[0] for row in ask(f, "owner_list")] == ["o3", "o2", "w", "x", "o1"]


def test_the_file_says_whose_it_is():
    f = neighbours()
    f.insert("file", file_pk=1, lineage_id="l", created_ms=9, generation=2, allow_network_fs=1)
    assert ask(f, "file_row") == [("l", 9, 2, 1)]


MODULES = (
    test_mutants_writes,
    test_mutants_claims,
    test_mutants_reads,
    test_mutants_waits,
    test_mutants_inbox,
)


def test_every_statement_is_asked_what_it_does():
    """Whoever adds a statement says here what it reads or changes."""
    text = "".join(Path(str(module)).read_text("utf-8") for module in (__file__, *(m.__file__ for m in MODULES)))
    assert [name for name in STATEMENTS if not re.search(rf'"{name}[",]', text)] == []
