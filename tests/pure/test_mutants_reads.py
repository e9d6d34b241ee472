"""What each named statement that reads gives: which rows, which columns, in which order, and where it stops (§8, §10).

It is asked about the session in the middle of three that look alike (`test_mutants_neighbours`).
"""

from __future__ import annotations

from typing import Any

import pytest

from ..store.schema_kit import SchemaFile
from .test_mutants_neighbours import STATEMENTS, A, B, neighbours

BRANCH, RUN = 8, 5
TAGS = ("tenant_id", "principal", "agent_template_id", "correlation_id")
Rows = list[tuple[Any, ...]]


def ask(f: SchemaFile, statement: str, turned: bool = True, /, **params: Any) -> Rows:
    """The rows. ``turned``: SQLite turns round every order that the statement does not demand."""
    f.sql(f"PRAGMA reverse_unordered_selects = {turned:d}")
    return f.db.execute(STATEMENTS[statement].sql, params).fetchall()


# statement -> parameters -> rows. An event of run 5 came at 3068 + its number.
def event(n: int) -> tuple[Any, ...]:
    return (n, b"t", 3068 + n, f'{{"n":{n},"é":2}}'.encode())


def delta(n: int) -> tuple[Any, ...]:
    return (n, f"step-{n // 2}".encode(), b"t", b"{}")


IDENTITY = {
    "old": ("run-2-0", 2, "b", 1, "00"), "new": ("run-2-1", RUN, "b", 1, "00"),
}  # fmt: skip
PAGED: list[tuple[str, dict[str, Any], Rows]] = [
    ("event_page", {"stream_pk": RUN, "after": 0, "limit": 2}, [event(1), event(2)]),
    ("event_page", {"stream_pk": RUN, "after": 2, "limit": 9}, [event(3)]),
    ("event_page", {"stream_pk": RUN, "after": 3, "limit": 9}, []),
    ("event_page", {"stream_pk": 7, "after": 0, "limit": 9}, []),
    ("event_page_from_start", {"stream_pk": RUN, "limit": 9}, [event(n) for n in range(4)]),
    ("event_page_from_start", {"stream_pk": RUN, "limit": 1}, [event(0)]),
    ("stream_span", {"stream_pk": RUN}, [(0, 4)]),
    ("stream_span", {"stream_pk": 2}, [(None, 0)]),
    ("stream_end", {"stream_pk": 2}, [("failed", 1, None)]),
    ("stream_end", {"stream_pk": RUN}, [("executing", 0, None)]),
    ("delta_list", {"stream_pk": RUN, "after": 0, "limit": 2}, [delta(1), delta(2)]),
    ("delta_list", {"stream_pk": RUN, "after": 0, "limit": 9}, [delta(n) for n in range(1, 4)]),
    ("delta_list", {"stream_pk": RUN, "after": 2, "limit": 9}, [delta(3)]),
    ("trace_list", {"session_pk": B}, [(0, "run-2-1", 3071, b'{"n":0}'), (1, "run-2-1", 3071, b'{"n":1}')]),
    ("owner_list", {}, [("o3", 1, "p", 100), ("o2", 2, "p", 200), ("o1", 3, "p", 300)]),
    ("file_row", {}, []),
    ("checkpoint_get", {"run_pk": RUN}, [(1, 42, 2)]),
    ("checkpoint_get", {"run_pk": 2}, []),
    ("checkpoint_state", {"session_pk": B}, [(42, b"state-2", b"proof-2")]),
    ("checkpoint_state", {"session_pk": 9}, []),
    ("blob_get", {"session_pk": B, "sha256": "sha-2-2-2"}, [(b"sha-2-2-2",)]),
    ("blob_get", {"session_pk": B, "sha256": "sha-1-1-2"}, []),
    ("inflight_list", {"session_pk": B}, [
        ("call-0", 0, "t", None, "landed", '{"of":2}', '["sha-2-2-2","sha-2-2-3"]', 1),
        ("call-1", 1, "t", None, "landed", "{}", '["sha-2-2-2"]', 1),
        ("call-2", 2, "t", "once", "started", None, None, 2),
    ]),
    ("run_identity_get", {"run_id": "run-2-0"}, [IDENTITY["old"]]),
    ("run_identity_get", {"run_id": "run-2-1"}, [IDENTITY["new"]]),
    ("run_identity_get", {"run_id": "none"}, []),
    ("run_newest", {"run_id": "run-2-0"}, [IDENTITY["new"]]),
    ("run_newest", {"run_id": "run-2-1"}, [IDENTITY["new"]]),
    ("run_newest", {"run_id": "none"}, []),
    ("run_oldest", {"run_id": "run-2-1"}, [IDENTITY["old"]]),
    ("run_oldest", {"run_id": "run-2-0"}, [IDENTITY["old"]]),
    ("run_oldest", {"run_id": "none"}, []),
    ("run_last", {"session_pk": B}, [("run-2-1", RUN, "executing", None, None)]),
    ("session_without_index", {"session_id": "b"}, [(1,)]),
    ("session_without_index", {"session_id": "none"}, [(0,)]),
    ("session_interrupted", {}, [("a", "run-1-1", None), ("b", "run-2-1", None), ("c", "run-3-1", None)]),
    ("journal_mode", {}, [("memory",)]),
    ("waiting_count", {}, [(0, 6)]),
    ("stats", {}, [(3, 6, 6, 21, 12, 6, 21, 189, 6, 9, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "params", "expected"), PAGED)
def test_the_rows_of(statement: str, params: dict[str, Any], expected: Rows):
    for turned in (False, True):
        assert ask(neighbours(), statement, turned, **params) == expected


def test_what_waits_comes_oldest_first():
    f = neighbours()
    pks = [pk for (pk,) in f.all("SELECT inbox_pk FROM inbox WHERE session_pk = ? ORDER BY 1", B)]
    rows = [
        (pks[0], RUN, "event", b"t", '{"é":1}'.encode()),
        (pks[1], RUN, "cancel", b"cancel", b"{}"),
    ]
    assert ask(f, "inbox_list", session_pk=B, limit=9) == rows
    assert ask(f, "inbox_list", session_pk=B, limit=1) == rows[:1]


def test_the_first_kept_event_is_not_the_first_ever():
    f = neighbours()
    f.sql("DELETE FROM event WHERE stream_pk = ? AND sequence < 2", RUN)
    assert ask(f, "stream_span", stream_pk=RUN) == [(2, 4)]


def test_a_chain_of_three_runs_has_a_newest_and_an_oldest():
    f = neighbours()
    f.run_identity(B, "third", resumed_from=RUN)
    f.run_identity(B, "of another turn")
    for run in ("run-2-0", "run-2-1", "third"):
        assert [row[0] for row in ask(f, "run_newest", run_id=run)] == ["third"]
        assert [row[0] for row in ask(f, "run_oldest", run_id=run)] == ["run-2-0"]


def test_a_run_without_its_row_has_failed():
    f = neighbours()
    f.end_run(RUN, "failed")
    f.sql("UPDATE run SET error_code = 'C', error_message = 'm' WHERE run_pk = ?", RUN)
    assert ask(f, "run_last", session_pk=B) == [("run-2-1", RUN, "failed", "C", "m")]
    f.sql("DELETE FROM run WHERE run_pk = ?", RUN)
    assert ask(f, "run_last", session_pk=B) == [("run-2-1", RUN, "failed", None, None)]


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "parked"])
def test_a_session_whose_newest_run_has_ended_is_not_interrupted(status: str):
    f = neighbours()
    f.sql("UPDATE run SET status = ? WHERE run_pk = ?", status, RUN)
    f.claim(A, "me")
    assert ask(f, "session_interrupted") == [("a", "run-1-1", "me"), ("c", "run-3-1", None)]
    f.sql("DELETE FROM run WHERE run_pk = 4")  # evicted: so it has ended
    assert ask(f, "session_interrupted") == [("c", "run-3-1", None)]


def test_the_newest_cursor_of_a_session_is_the_one_that_is_farthest():
    f = neighbours()
    f.checkpoint(B, 2, round=1, seq=41, state="older", proof=b"p")
    later = f.run(B)
    f.checkpoint(B, later, round=1, seq=40, state="oldest", proof=b"p")
    for turned in (False, True):
        assert ask(f, "checkpoint_state", turned, session_pk=B) == [(42, b"state-2", b"proof-2")]


# ------------------------------------------------------------------ facts
VISIBLE = [(2, 1), (2, 2), (5, 3), (BRANCH, 4), (BRANCH, 5)]
"""Of the live branch: (whose fact, seq). Fact 3 of branch 2 and fact 4 of branch 5 were abandoned."""


def fact(f: SchemaFile, branch: int, seq: int) -> tuple[Any, ...]:
    [row] = f.all("SELECT prev_hash, hash FROM fact WHERE id = ?", branch << 32 | seq)
    run = "run-2-0" if branch == 2 else "run-2-1"
    return (seq, "user.message", f"key-{branch}-{seq}", f"c{seq}", run, *row, "{}")


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_page_of_facts(after: int, limit: int):
    f = neighbours()
    page = {"branch_pk": BRANCH, "after_seq": after, "up_to_seq": after + limit}
    wanted = VISIBLE[after : after + limit]
    assert ask(f, "fact_list", **page) == [fact(f, *at) for at in wanted]
    assert sorted(ask(f, "fact_page", **page)) == [(*fact(f, *at)[:4], None, *fact(f, *at)[5:]) for at in wanted]
    names = [f"sha-2-{branch}-{seq}" for branch, seq in wanted if seq != 4]
    assert sorted(ask(f, "fact_blobs", **page)) == sorted((name, name.encode()) for name in names)


def test_a_blob_that_two_facts_name_is_read_once():
    f = neighbours()
    f.fact(BRANCH, "again", blobs='["sha-2-2-2"]')
    found = ask(f, "fact_blobs", branch_pk=BRANCH, after_seq=0, up_to_seq=9)
    assert len(found) == len(set(found)) == 4  # of six facts, one without
    assert sorted(ask(f, "inflight_blobs", session_pk=B)) == [
        ("sha-2-2-2", b"sha-2-2-2"), ("sha-2-2-3", b"sha-2-2-3"),
    ]  # fmt: skip


def test_a_page_of_an_older_branch_ends_with_its_own_facts():
    f = neighbours()
    page = {"branch_pk": 2, "after_seq": 0, "up_to_seq": 99}
    keys = ["key-2-1", "key-2-2", "key-2-3"]
    assert [row[2] for row in ask(f, "fact_list", **page)] == keys
    assert sorted(row[2] for row in ask(f, "fact_page", **page)) == keys
    assert sorted(ask(f, "fact_blobs", branch_pk=2, after_seq=0, up_to_seq=99)) == [
        (f"sha-2-2-{seq}", b"sha-2-2-%d" % seq) for seq in (1, 2, 3)
    ]


@pytest.mark.parametrize("at", VISIBLE)
def test_a_fact_is_found_by_its_key_wherever_it_is_visible(at: tuple[int, int]):
    f = neighbours()
    given = {"branch_pk": BRANCH, "key": f"key-{at[0]}-{at[1]}"}
    assert ask(f, "fact_by_key", **given) == [fact(f, *at)]
    name = f"sha-2-{at[0]}-{at[1]}"
    assert ask(f, "fact_by_key_blobs", **given) == ([(name, name.encode())] if at[1] != 4 else [])


@pytest.mark.parametrize("key", ["key-2-3", "key-5-4", "key-7-4", "key-1-1", "none"])
def test_what_is_not_visible_is_not_found_by_its_key(key: str):
    assert ask(neighbours(), "fact_by_key", branch_pk=BRANCH, key=key) == []


def test_blobs_of_another_sessions_fact_of_the_same_key_are_not_read():
    f = neighbours()
    f.fact(7, "same", blobs='["sha-1-1-2"]')
    f.fact(BRANCH, "same", blobs='["sha-2-2-2"]')
    f.fact(1, "same", blobs='["sha-1-1-3"]')
    assert ask(f, "fact_by_key_blobs", branch_pk=BRANCH, key="same") == [("sha-2-2-2", b"sha-2-2-2")]


def test_a_fact_and_a_trace_of_an_unknown_run_are_shown_all_the_same():
    f = neighbours()
    f.fact(BRANCH, "odd", run_pk=99)
    f.trace(B, run_pk=99)
    assert [row[4] for row in ask(f, "fact_list", branch_pk=BRANCH, after_seq=4, up_to_seq=9)] == ["run-2-1", None]
    assert [row[4] for row in ask(f, "fact_by_key", branch_pk=BRANCH, key="odd")] == [None]
    assert [row[1] for row in ask(f, "trace_list", session_pk=B)] == ["run-2-1", "run-2-1", None]
    f.run(B, "newer")
    f.fact(f.branch_from(BRANCH, 6), "newest")
    assert [row[4] for row in ask(f, "fact_by_key", branch_pk=10, key="odd")] == [None]


def test_the_newest_compaction_that_a_branch_sees():
    f = neighbours()
    newest = {"branch_pk": BRANCH}
    assert ask(f, "fact_newest_compaction", **newest) == []
    f.fact(1, "elsewhere", '{"kept_from":1}', kind="compaction.done")
    f.fact(BRANCH, "first", '{"kept_from":2,"kept_message":1}', kind="compaction.done")
    assert ask(f, "fact_newest_compaction", **newest) == [(6, 2, 1)]
    f.fact(BRANCH, "second", '{"kept_from":7}', kind="compaction.done")
    assert ask(f, "fact_newest_compaction", **newest) == [(7, 7, None)]
    child, blind = f.branch_from(BRANCH, 7), f.branch_from(BRANCH, 6)
    f.fact(BRANCH, "third", '{"kept_from":8}', kind="compaction.done")
    assert ask(f, "fact_newest_compaction", branch_pk=child) == [(7, 7, None)]
    assert ask(f, "fact_newest_compaction", branch_pk=blind) == [(6, 2, 1)]
    f.fact(BRANCH, "damaged", "{", kind="compaction.done")
    assert ask(f, "fact_newest_compaction", **newest) == [(9, None, None)]


def test_the_head_of_a_branch():
    f = neighbours()
    [(last,)] = f.all("SELECT hash FROM fact WHERE id = ?", BRANCH << 32 | 5)
    assert ask(f, "branch_head", branch_pk=BRANCH) == [(B, 5, last, 4, 5)]
