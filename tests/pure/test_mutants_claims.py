"""Statements that depend on what is there: forks, facts, events, runs and claims, to the last column (§4, §8).

Each is about the session in the middle of three that look alike (`test_mutants_neighbours`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from .test_mutants_neighbours import A, B, C, Changes, neighbours, perform
from .test_mutants_writes import BRANCH, CASES, FENCE, RUN, USED, packed

HASH = bytes(range(32))


def test_a_first_word_is_kept():
    """What is there once for the whole file, or under a hash, is not changed by whoever comes later."""
    f = neighbours()
    perform(f, "file_add", lineage_id="l", created_ms=9, allow_network_fs=1)
    assert perform(f, "file_add", lineage_id="other", created_ms=8, allow_network_fs=0) == ([], {})
    kept = {"sha256": "sha-2-2-2", "size": 9}
    assert perform(f, "blob_add", bytes=b"sha-2-2-2", **kept) == ([], {})
    assert perform(f, "blob_ref_add", session_pk=B, sha256="sha-2-2-2") == ([], {})


def test_a_run_ends_under_the_claim_that_ends_it():
    f = neighbours()
    f.sql("UPDATE session SET fence = 9")
    perform(f, "run_end", **{**CASES["run_end"][1], "fence": 9})
    assert f.all("SELECT run_pk FROM run WHERE fence = 9") == [(RUN,)]


def test_a_run_that_ends_keeps_what_was_counted_of_it_before():
    """A stop, or another process, may have counted requests of unknown cost that whoever ends it knows nothing of."""
    f = neighbours()
    f.sql("UPDATE run SET requests_without_usage = 9 WHERE run_pk = ?", RUN)
    perform(f, "run_end", **CASES["run_end"][1])
    assert f.all("SELECT requests_without_usage FROM run WHERE run_pk = ?", RUN) == [(9,)]


def test_a_root_has_nothing_before_it():
    """The first fork sees the root's own facts, be it only one, and nothing of a session that forked later."""
    f = neighbours()
    f.sql("UPDATE session SET live_branch = 2 WHERE session_pk = 2")
    one = f.session("d")
    f.fact(f.live_branch(one), "only")
    for session, first in ((B, 11), (one, 12), (C, 13)):
        assert perform(f, "branch_fork", session_pk=session)[0] == [(first,)]
    for session, branch, stretch in ((B, 11, (2, 1, 3)), (one, 12, (10, 1, 1))):
        perform(f, "ancestry_fork", session_pk=session)
        assert f.all("SELECT ancestor_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = ?", branch) == [stretch]


def test_a_fork_sees_what_its_parent_saw_and_the_parents_own_facts():
    f = neighbours()
    [(head,)] = f.all("SELECT head_hash FROM branch WHERE branch_pk = ?", BRANCH)
    row = {"branch_pk": 10, "session_pk": B, "parent_pk": BRANCH, "first_seq": 6, "head_seq": 5, "head_hash": head}
    assert perform(f, "branch_fork", session_pk=B) == ([(10,)], {("branch", 10): {**row, "pruned_to": 0}})
    stretches = [(2, 1, 2), (5, 3, 3), (BRANCH, 4, 5)]
    for branch in (10, 11):
        seen = {
            ("ancestry", branch, first): {
                "branch_pk": branch, "ancestor_pk": ancestor, "first_seq": first, "last_seq": last,
            }
            for ancestor, first, last in stretches
        }  # fmt: skip
        assert perform(f, "ancestry_fork", session_pk=B) == ([], seen)
        perform(f, "session_go_live_again", session_pk=B)
        if branch == 10:  # it got no fact of its own: a branch from it sees nothing more
            assert perform(f, "branch_fork", session_pk=B)[0] == [(11,)]


@pytest.mark.parametrize("by", ["number", "id"])
def test_a_fact_is_appended_at_the_head(by: str):
    f = neighbours()
    [(prev,)] = f.all("SELECT head_hash FROM branch WHERE branch_pk = ?", BRANCH)
    row = {
        "fence": FENCE, "ts_ms": 9, "kind": "k", "key": "new", "cause": "why", "prev_hash": prev, "hash": HASH,
        "blobs": '["x"]', "payload": "{}",
    }  # fmt: skip
    numbered = {"run_pk": 2, "run_id": "run-3-0"} if by == "number" else {"run_pk": None, "run_id": "run-2-0"}
    given = {"branch_pk": BRANCH, "seq": 6, **numbered, **row}
    changes = {
        ("fact", packed(BRANCH, 6)): {"id": packed(BRANCH, 6), "branch_pk": BRANCH, "seq": 6, "run_pk": 2, **row},
        ("branch", BRANCH): {"head_seq": 6, "head_hash": HASH},
    }
    assert perform(f, "fact_append", **given) == ([], changes)
    assert perform(f, "fact_append", **given) == ([], {}), "the same again is a no-op"
    with pytest.raises(sqlite3.IntegrityError, match="thence:FACT_CONFLICT"):
        perform(f, "fact_append", **{**given, "hash": bytes(32)})
    copy = {**given, "branch_pk": 7, "fence": 2, "prev_hash": f.one("SELECT head_hash FROM branch WHERE branch_pk = 7")}
    assert ("fact", packed(7, 6)) in perform(f, "fact_append", **copy)[1], "an equal hash elsewhere is another fact"


@pytest.mark.parametrize("by", ["number", "id"])
@pytest.mark.parametrize(("now_ms", "ts_ms"), [(90_000, 90_000), (5, 3071)], ids=["later", "the clock went back"])
def test_an_event_gets_the_next_number_of_its_stream(by: str, now_ms: int, ts_ms: int):
    f = neighbours()
    assert f.all("SELECT event_bytes, last_ms FROM stream WHERE stream_pk = ?", RUN) == [(56, 3071)]
    changes = {
        ("event", packed(RUN, 4)): {
            "id": packed(RUN, 4), "stream_pk": RUN, "sequence": 4, "off": 56, "bytes": 8, "fence": FENCE,
            "ts_ms": ts_ms, "type": "ty", "payload": '{"é":1}',
        },
        ("stream", RUN): {"event_count": 5, "event_bytes": 64, **({"last_ms": ts_ms} if now_ms == ts_ms else {})},
    }  # fmt: skip
    numbered = {"stream_pk": RUN, "run_id": "run-3-1"} if by == "number" else {"stream_pk": None, "run_id": "run-2-1"}
    given = {"fence": FENCE, "ts_ms": now_ms, "type": "ty", "payload": '{"é":1}', **numbered}
    assert perform(f, "event_append", **given) == ([], changes)


@pytest.mark.parametrize(("now_ms", "ts_ms"), [(90_000, 90_000), (5, 3071)], ids=["later", "the clock went back"])
def test_a_waiting_event_gets_the_next_number_of_its_stream(now_ms: int, ts_ms: int):
    f = neighbours()
    assert f.all("SELECT inbox_pk, stream_pk FROM inbox WHERE kind = 'event'") == [(1, 4), (3, RUN), (5, 6)]
    f.sql("UPDATE inbox SET type = 'ty', payload = ?, bytes = 99 WHERE inbox_pk = 3", '{"éé":1}')
    changes = {
        ("event", packed(RUN, 4)): {
            "id": packed(RUN, 4), "stream_pk": RUN, "sequence": 4, "off": 56, "bytes": 10, "fence": FENCE,
            "ts_ms": ts_ms, "type": "ty", "payload": '{"éé":1}',
        },
        ("stream", RUN): {"event_count": 5, "event_bytes": 66, **({"last_ms": ts_ms} if now_ms == ts_ms else {})},
    }  # fmt: skip
    assert perform(f, "event_take", inbox_pk=3, fence=FENCE, ts_ms=now_ms) == ([], changes)
    assert perform(f, "event_take", inbox_pk=99, fence=FENCE, ts_ms=now_ms) == ([], {})


def test_a_run_begins_with_the_next_number_of_its_session():
    f = neighbours()
    f.run_identity(A, "without a row")
    given = {"session_pk": B, "run_id": "new", "first_seq": 6, "input_sha256": "ab", "resumed_from": None}
    perform(f, "run_identity_add", **given)
    row = {"fence": FENCE, "status": "executing", "prompt": "p"}
    empty = {"rounds": 0, "tool_calls_count": 0, "requests_without_usage": 0, "resumable": 0, **dict.fromkeys(USED, 0)}
    returned, changes = perform(f, "run_begin", run_id="new", now_ms=9, **row)
    assert returned == [(8,)]
    assert changes == {
        ("run", 8): {
            "run_pk": 8, "session_pk": B, "run_no": 2, "created_ms": 9, "updated_ms": 9, **row, **empty,
        },
        ("session", B): {"run_count": 3},
    }  # fmt: skip


def test_a_run_does_not_end_before_it_began():
    f = neighbours()
    f.sql("UPDATE run SET created_ms = 50, updated_ms = 60 WHERE run_pk = ?", RUN)
    given = {"status": "completed", "now_ms": 40, "rounds": 0, "tool_calls_count": 0, "requests_without_usage": 0}
    nothing = {"resumable": 0, "error_code": None, "error_message": None, "result_text": "", **dict.fromkeys(USED, 0)}
    perform(f, "run_end", run_pk=RUN, fence=FENCE, **given, **nothing)
    assert f.all("SELECT created_ms, updated_ms, ended_ms FROM run WHERE run_pk = ?", RUN) == [(50, 60, 50)]


# owner now, claimed with -> whether it is claimed
CLAIMS = [
    (None, {}, True), ("me", {}, True), ("dead", {"dead_owner": "dead"}, True), ("other", {}, False),
    ("other", {"dead_owner": "dead"}, False), ("other", {"force": 1}, True), ("dead", {}, False),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "how", "claimed"), CLAIMS)
def test_who_may_claim(owner: str | None, how: dict[str, Any], claimed: bool):
    f = neighbours()
    f.sql("UPDATE session SET owner = ?", owner)
    [(head,)] = f.all("SELECT head_hash FROM branch WHERE branch_pk = ?", BRANCH)
    given = {"session_pk": B, "owner": "me", "dead_owner": None, "force": 0, **how}
    returned, changes = perform(f, "session_claim", **given)
    assert returned == ([(FENCE + 1, BRANCH, 5, head)] if claimed else [])
    now = {"fence": FENCE + 1} if owner == "me" else {"fence": FENCE + 1, "owner": "me"}
    assert changes == ({("session", B): now} if claimed else {})


@pytest.mark.parametrize(("owner", "fence", "freed"), [("me", 9, True), ("me", 8, False), ("other", 9, False)])
def test_only_the_claim_itself_is_released(owner: str, fence: int, freed: bool):
    f = neighbours()
    f.sql("UPDATE session SET owner = 'me', fence = 9")
    changes: Changes = {("session", B): {"owner": None}} if freed else {}
    assert perform(f, "session_release", session_pk=B, owner=owner, fence=fence) == ([], changes)


def test_a_deleted_session_takes_its_own_rows_and_no_others():
    f = neighbours()
    _, changes = perform(f, "session_delete", session_pk=B)
    assert set(changes.values()) == {None} if changes else False
    assert f.all("SELECT session_pk FROM session") == [(A,), (C,)]
    for table in ("branch", "run", "run_identity", "stream", "inbox", "inflight", "trace", "checkpoint", "blob_ref"):
        assert f.all(f"SELECT DISTINCT session_pk FROM {table} ORDER BY 1") == [(A,), (C,)], table
