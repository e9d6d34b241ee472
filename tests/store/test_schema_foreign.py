"""What nobody may do to our tables, however well the statement is made: each would cost somebody a session (§4, §8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .schema_kit import SchemaFile, padded
from .test_schema_log import VERBS, all_refused, with_log


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def test_a_session_names_its_blobs_as_long_as_it_lives(file: SchemaFile) -> None:
    first, second = file.session("s"), file.session("t")
    for sha in ("aa", "bb"):
        file.insert("blob", sha256=sha, size=1, bytes=b"a")
        file.insert("blob_ref", session_pk=first, sha256=sha)
    file.insert("blob_ref", session_pk=second, sha256="aa")
    for recursive in (True, False):
        file.sql(f"PRAGMA recursive_triggers = {recursive:d}")
        all_refused(file, "FACT_CONFLICT", [
            "DELETE FROM blob_ref", f"DELETE FROM blob_ref WHERE session_pk = {second}",
            *(f"UPDATE {clause} blob_ref SET sha256 = 'cc'" for clause in ("", "OR IGNORE", "OR REPLACE")),
            f"UPDATE OR REPLACE blob_ref SET session_pk = {second} WHERE session_pk = {first}",
        ])  # fmt: skip
    file.sql("DELETE FROM session WHERE session_id = 's'")
    assert file.all("SELECT session_pk, sha256 FROM blob_ref") == [(second, "aa")]
    assert file.all("SELECT sha256 FROM blob") == [("aa",)]


def test_a_branch_sees_what_its_parent_saw_where_it_begins(file: SchemaFile) -> None:
    root = with_log(file, 4)
    child = file.branch_from(root, 3)
    file.fact(child, "c4")
    other = file.live_branch(file.session("t"))
    for number in (1, 2, 3, 4):
        file.fact(other, f"k{number}")
    session_pk = file.one("SELECT session_pk FROM branch WHERE branch_pk = ?", root)

    def begins(parent: int, at: int) -> int:
        """A branch that sees nothing yet."""
        seen = "SELECT hash FROM fact WHERE seq = ? AND branch_pk IN (?, ?) ORDER BY branch_pk = ? DESC"
        return file.insert(
            "branch", session_pk=session_pk, parent_pk=parent, first_seq=at + 1, head_seq=at,
            head_hash=file.one(seen, at, parent, root, parent),
        )  # fmt: skip

    at_two, at_four = begins(child, 2), begins(child, 4)
    all_refused(file, "FACT_CONFLICT", [
        f"{verb} INTO ancestry(branch_pk, ancestor_pk, first_seq, last_seq) VALUES({row})"
        for verb in VERBS
        for row in (
            # a root has no parent, the child has facts of its own, and nobody has this branch
            f"{root}, {root}, 1, 3", f"{root}, {child}, 4, 4", f"{child}, {other}, 1, 3", f"{child}, {child}, 4, 4",
            f"99, {root}, 1, 3",
            # another branch's facts, more or less than the parent saw, another stretch of them
            f"{at_four}, {other}, 1, 3", f"{at_four}, {root}, 1, 4", f"{at_four}, {root}, 1, 2",
            f"{at_four}, {root}, 2, 3", f"{at_four}, {child}, 4, 3", f"{at_four}, {child}, 4, 5",
            f"{at_four}, {child}, 3, 4",
            f"{at_four}, {root}, 4, 4", f"{at_four}, {child}, 1, 3",
            # past where it begins, and the parent's facts after that
            f"{at_two}, {root}, 1, 3", f"{at_two}, {child}, 4, 2", f"{at_two}, {child}, 4, 4",
        )
    ])  # fmt: skip
    for row in ((at_two, root, 1, 2), (at_four, root, 1, 3), (at_four, child, 4, 4)):
        file.insert("ancestry", **dict(zip(("branch_pk", "ancestor_pk", "first_seq", "last_seq"), row, strict=True)))
    file.fact(begins(child, 4), "late")
    late = file.one("SELECT max(branch_pk) FROM branch")
    all_refused(file, "FACT_CONFLICT", [f"INSERT INTO ancestry VALUES({late}, {root}, 1, 3)"])


def test_a_branch_goes_on_from_a_branch_of_its_session(file: SchemaFile) -> None:
    root = with_log(file)
    short = file.branch_from(root, 1)
    file.branch_from(root, 3)  # what this one sees, the other does not
    all_refused(file, "FACT_CONFLICT", [
        f"""INSERT INTO branch(session_pk, parent_pk, first_seq, head_seq, head_hash)
            SELECT 1, {short}, 4, 3, hash FROM fact WHERE seq = 3"""
    ])  # fmt: skip
    pk = file.session("t")
    copy = f"SELECT {pk}, {root}, head_seq + 1, head_seq, head_hash FROM branch WHERE branch_pk = {root}"
    all_refused(file, "FACT_CONFLICT", [
        f"{verb} INTO branch(session_pk, parent_pk, first_seq, head_seq, head_hash) {copy}" for verb in VERBS
    ])  # fmt: skip


def test_the_number_of_runs_only_grows(file: SchemaFile) -> None:
    pk = file.session(max_runs_retained=1)
    for _ in range(3):
        file.end_run(file.run(pk))
    all_refused(file, "RUN_EXISTS", [
        f"UPDATE {clause} session SET run_count = {count}"
        for clause in ("", "OR IGNORE", "OR REPLACE") for count in (0, 2, -1)
    ])  # fmt: skip
    file.sql("UPDATE session SET run_count = run_count")
    file.run(pk)
    assert file.one("SELECT run_count FROM session") == 4


def test_a_stream_does_not_begin_anew(file: SchemaFile) -> None:
    pk = file.session("s", max_events_per_run=2)
    run = file.run(pk, "r")
    for number in range(4):
        file.event(pk, run, padded(2 + number))
        file.event_in(run_id="r", payload=padded(2 + number))
    counts = "event_count, event_bytes, last_ms, waiting_count, waiting_bytes, waiting_dropped"
    assert file.all(f"SELECT {counts} FROM stream WHERE stream_pk = ?", run) == [(4, 14, 1000, 4, 14, 2)]
    all_refused(file, "STREAM_EXISTS", [
        *(f"{verb} INTO stream(stream_pk, session_pk) VALUES({run}, {pk})" for verb in VERBS),
        *(f"UPDATE {clause} stream SET {change} WHERE stream_pk = {run}"
          for clause in ("", "OR IGNORE", "OR REPLACE")
          for change in ("waiting_count = 3", "waiting_bytes = 13", "waiting_dropped = 1", f"stream_pk = {-pk}",
                         "stream_pk = 99", "session_pk = 99")),
    ])  # fmt: skip
    file.sql("UPDATE stream SET waiting_count = waiting_count")


def test_an_event_with_wrong_numbers_moves_no_counter_back(file: SchemaFile) -> None:
    pk = file.session()
    run = file.run(pk)
    for _ in range(3):
        file.event(pk, run, padded(9))
    row = {"bytes": 9, "fence": file.fence(pk), "type": "t", "payload": padded(9)}
    counts = "SELECT event_count, event_bytes, last_ms FROM stream WHERE stream_pk = ?"
    for cap in (None, 1):
        file.set_caps(pk, max_event_bytes_per_run=cap)
        file.insert("event", "INSERT OR REPLACE", id=run << 32 | 2, off=-5_000_000_000, ts_ms=1, **row)
        assert file.all(counts, run) == [(3, 27, 1000)]


def test_a_run_stays_where_it_is(file: SchemaFile) -> None:
    pk, other = file.session("s"), file.session("t")
    runs = [file.run(pk), file.run(pk), file.run(other)]
    for recursive in (True, False):
        file.sql(f"PRAGMA recursive_triggers = {recursive:d}")
        all_refused(file, "RUN_EXISTS", [
            f"UPDATE {clause} run SET {change} WHERE run_pk = {runs[0]}"
            for clause in ("", "OR IGNORE", "OR REPLACE")
            for change in ("run_no = 1", "run_no = 9", f"run_pk = {runs[1]}", "run_pk = 99", f"session_pk = {other}")
        ])  # fmt: skip
    file.sql("UPDATE run SET run_no = run_no, updated_ms = 5")
