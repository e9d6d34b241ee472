"""The log of the file format (§4): appended, chained, never changed, whoever writes and with whatever clause."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from .schema_kit import GENESIS, SchemaFile, fact_hash, refused

VERBS = ("INSERT", "INSERT OR ABORT", "INSERT OR FAIL", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR ROLLBACK")
LOG = "thence:FACT_CONFLICT"
FACT_COLUMNS = "id, run_pk, fence, ts_ms, kind, key, cause, prev_hash, hash, blobs, payload"


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def with_log(file: SchemaFile, facts: int = 3) -> int:
    branch = file.live_branch(file.session())
    for number in range(1, facts + 1):
        file.fact(branch, f"k{number}", payload=f'{{"n":{number}}}')
    return branch


def all_refused(file: SchemaFile, code: str, statements: list[str]) -> None:
    """Each statement is refused by name and leaves every row as it was."""
    before = file.dump()
    for statement in statements:
        with refused(code):
            file.sql(statement)
        assert file.dump() == before, statement


def test_facts_are_chained_and_move_the_head(file: SchemaFile) -> None:
    branch = with_log(file)
    previous = GENESIS
    rows = file.all("SELECT seq, kind, key, cause, payload, prev_hash, hash FROM fact ORDER BY id")
    for number, (*what, prev_hash, digest) in enumerate(rows, 1):
        assert what[0] == number and prev_hash == previous
        assert digest == fact_hash(previous, *what)
        previous = digest
    assert file.all("SELECT head_seq, head_hash FROM branch WHERE branch_pk = ?", branch) == [(3, previous)]


def test_a_fact_cannot_be_rewritten_or_removed(file: SchemaFile) -> None:
    with_log(file)
    copy = f"INTO fact({FACT_COLUMNS}) SELECT {FACT_COLUMNS.replace('payload', repr('{}'))} FROM fact WHERE seq = 3"
    all_refused(file, "FACT_CONFLICT", [
        *(f"UPDATE {clause} fact SET payload = '{{}}' WHERE seq = 2" for clause in ("", "OR IGNORE", "OR REPLACE")),
        "UPDATE OR REPLACE fact SET id = id - 1 WHERE seq = 2",
        "UPDATE OR REPLACE fact SET key = 'k1' WHERE seq = 2",
        "UPDATE fact SET hash = zeroblob(32) WHERE seq = 3",
        "DELETE FROM fact", "DELETE FROM fact WHERE seq = 3", "DELETE FROM fact WHERE seq = 1",
        *(f"{verb} {copy}" for verb in VERBS),
        f"INSERT {copy} ON CONFLICT(id) DO UPDATE SET payload = excluded.payload",
        f"INSERT {copy} ON CONFLICT DO NOTHING",
    ])  # fmt: skip


def test_only_the_next_fact_of_the_head_is_taken(file: SchemaFile) -> None:
    branch = with_log(file)
    head = file.one("SELECT head_hash FROM branch")
    before = file.dump()
    for verb in VERBS:
        for wrong in list[dict[str, Any]]((
            {"id": branch << 32 | 5}, {"id": branch << 32 | 3}, {"id": branch << 32}, {"id": (branch + 9) << 32 | 1},
            {"id": None}, {"prev_hash": GENESIS}, {"prev_hash": head + b"\0"}, {"hash": b"short"}, {"hash": bytes(33)},
        )):  # fmt: skip
            with refused("FACT_CONFLICT"):
                file.fact(branch, "k4", verb=verb, **wrong)
            assert file.dump() == before, (verb, wrong)
    file.fact(branch, "k4")
    assert file.one("SELECT head_seq FROM branch") == 4


def test_a_key_is_taken_once_on_a_branch(file: SchemaFile) -> None:
    branch = with_log(file)
    before = file.dump()
    for verb in VERBS:
        with refused("FACT_CONFLICT"):
            file.fact(branch, "k2", verb=verb)
        assert file.dump() == before, verb
    other = file.live_branch(file.session("t"))
    file.fact(other, "k2")


def test_a_key_of_an_ancestor_is_taken_as_far_as_it_is_visible(file: SchemaFile) -> None:
    root = with_log(file, 3)
    child = file.branch_from(root, 2)
    for taken in ("k1", "k2"):
        with refused("FACT_CONFLICT"):
            file.fact(child, taken)
    file.fact(child, "k3")  # beyond the fork point: not visible here
    file.fact(child, "k4")
    grandchild = file.branch_from(child, 3)
    for taken in ("k1", "k2", "k3"):
        with refused("FACT_CONFLICT"):
            file.fact(grandchild, taken)
    file.fact(grandchild, "k4")
    assert file.all("SELECT seq, key FROM facts ORDER BY seq") == [(1, "k1"), (2, "k2"), (3, "k3"), (4, "k4")]
    assert file.count("fact") == 3 + 2 + 1


def test_a_branch_goes_on_from_a_visible_fact_of_its_parent(file: SchemaFile) -> None:
    root = with_log(file, 3)
    child = file.branch_from(root, 2)
    file.fact(child, "c3")
    session_pk = file.one("SELECT session_pk FROM session")
    hashes = dict(file.all("SELECT id, hash FROM fact"))
    at_two, beyond = hashes[root << 32 | 2], hashes[root << 32 | 3]

    def start(**other: object) -> int:
        row: dict[str, Any] = {
            "session_pk": session_pk,
            "parent_pk": child,
            "first_seq": 3,
            "head_seq": 2,
            "head_hash": at_two,
        }
        return file.insert("branch", **(row | other))

    for wrong in (
        {"head_hash": GENESIS}, {"head_seq": 3}, {"first_seq": 2}, {"parent_pk": 99},
        {"first_seq": 4, "head_seq": 3, "head_hash": beyond}, {"first_seq": 1, "head_seq": 0, "head_hash": GENESIS},
    ):  # fmt: skip
        with refused("FACT_CONFLICT"):
            start(**wrong)
    assert start() > child
    assert start(first_seq=4, head_seq=3, head_hash=hashes[child << 32 | 3]) > child


def test_the_head_moves_only_with_its_facts(file: SchemaFile) -> None:
    branch = with_log(file)
    columns = "branch_pk, session_pk, parent_pk, first_seq, head_seq, head_hash, pruned_to"
    copy = f"INTO branch({columns}) SELECT branch_pk, session_pk, NULL, 1, 0, zeroblob(32), 0 FROM branch"
    all_refused(file, "FACT_CONFLICT", [
        "UPDATE branch SET head_seq = 2", "UPDATE branch SET head_seq = 4", "UPDATE branch SET head_seq = head_seq",
        "UPDATE branch SET head_hash = zeroblob(32)", "UPDATE branch SET head_seq = 4, head_hash = zeroblob(32)",
        "UPDATE OR REPLACE branch SET branch_pk = 7", "UPDATE branch SET session_pk = 7",
        "UPDATE branch SET parent_pk = 1", "UPDATE branch SET first_seq = 2", "DELETE FROM branch",
        *(f"{verb} {copy}" for verb in VERBS),
        f"INSERT {copy} WHERE true ON CONFLICT(branch_pk) DO UPDATE SET head_seq = 1",
    ])  # fmt: skip
    assert branch == file.one("SELECT branch_pk FROM branch")


def test_nothing_of_a_branch_but_its_next_head_may_change(file: SchemaFile) -> None:
    """Beside a legal move of the head, no other column can slip through."""
    branch = with_log(file)
    file.sql("DROP TRIGGER IF EXISTS fact_appended")
    file.fact(branch, "k4")
    move = "UPDATE branch SET head_seq = 4, head_hash = (SELECT hash FROM fact WHERE seq = 4)"
    for other in ("branch_pk = 9", "session_pk = 9", "parent_pk = 9", "first_seq = 2"):
        with refused("FACT_CONFLICT"):
            file.sql(f"{move}, {other}")
    file.sql(move)


def test_ancestry_is_part_of_the_log(file: SchemaFile) -> None:
    root = with_log(file)
    file.branch_from(root, 2)
    copy = "INTO ancestry SELECT branch_pk, ancestor_pk, first_seq, 3 FROM ancestry"
    all_refused(file, "FACT_CONFLICT", [
        "UPDATE ancestry SET last_seq = 1", "UPDATE OR REPLACE ancestry SET first_seq = 2",
        "UPDATE OR IGNORE ancestry SET ancestor_pk = 9", "DELETE FROM ancestry",
        *(f"{verb} {copy}" for verb in VERBS),
        f"INSERT {copy} WHERE true ON CONFLICT DO UPDATE SET last_seq = 1",
    ])  # fmt: skip


def tombstone(file: SchemaFile, branch: int, seq: int) -> None:
    digest = file.one("SELECT hash FROM fact WHERE id = ?", branch << 32 | seq)
    file.insert("tombstone", branch_pk=branch, seq=seq, hash=digest, reason="compacted", ts_ms=file.now)


def test_pruning_needs_a_tombstone_and_stops_at_its_mark(file: SchemaFile) -> None:
    branch = with_log(file, 4)
    with refused("FACT_CONFLICT"):
        file.sql("UPDATE branch SET pruned_to = 2")
    tombstone(file, branch, 2)
    tombstone(file, branch, 3)
    for mark in (1, 4, 5):
        with refused("FACT_CONFLICT"):
            file.sql("UPDATE branch SET pruned_to = ?", mark)
    for _ in range(2):
        file.sql("UPDATE branch SET pruned_to = 3")  # the same mark again is no error
    for statement in ("UPDATE branch SET pruned_to = 2", "DELETE FROM fact", "DELETE FROM fact WHERE seq = 4"):
        with refused("FACT_CONFLICT"):
            file.sql(statement)
    file.sql("DELETE FROM fact WHERE seq <= 3")
    assert file.all("SELECT seq FROM fact") == [(4,)]
    file.fact(branch, "k5")
    assert file.one("SELECT head_seq FROM branch") == 5


def test_a_tombstone_with_another_hash_marks_nothing(file: SchemaFile) -> None:
    branch = with_log(file)
    file.insert("tombstone", branch_pk=branch, seq=2, hash=GENESIS, reason="r", ts_ms=1)
    with refused("FACT_CONFLICT"):
        file.sql("UPDATE branch SET pruned_to = 2")


def test_tombstones_stay_as_they_are(file: SchemaFile) -> None:
    branch = with_log(file)
    tombstone(file, branch, 2)
    copy = "INTO tombstone SELECT branch_pk, seq, zeroblob(32), 'r', 1 FROM tombstone"
    all_refused(file, "FACT_CONFLICT", [
        "UPDATE tombstone SET hash = zeroblob(32)", "UPDATE OR REPLACE tombstone SET seq = 1", "DELETE FROM tombstone",
        *(f"{verb} {copy}" for verb in VERBS),
        f"INSERT {copy} WHERE true ON CONFLICT DO UPDATE SET reason = 'x'",
    ])  # fmt: skip


def test_a_blob_is_its_hash(file: SchemaFile) -> None:
    session_pk = file.session()
    file.insert("blob", sha256="aa", size=1, bytes=b"a")
    file.insert("blob_ref", session_pk=session_pk, sha256="aa")
    all_refused(file, "FACT_CONFLICT", [
        "UPDATE blob SET bytes = x'00'", "UPDATE OR REPLACE blob SET sha256 = 'bb'", "DELETE FROM blob",
        *(f"{verb} INTO blob(sha256, size, bytes) VALUES('aa', 1, x'00')" for verb in VERBS),
        "INSERT INTO blob(sha256, size, bytes) VALUES('aa', 1, x'00') ON CONFLICT DO UPDATE SET bytes = x'00'",
    ])  # fmt: skip
    before = file.dump()
    for verb in VERBS:  # the same again is no error: whoever needs it may say so
        file.insert("blob", verb=verb, sha256="aa", size=1, bytes=b"a")
    assert file.dump() == before


def test_a_run_id_is_given_once_and_for_good(file: SchemaFile) -> None:
    session_pk = file.session()
    first = file.run(session_pk, "one")
    file.end_run(first)
    second = file.run(session_pk, "two", resumed_from=first)
    columns = "run_pk, run_id, session_pk, branch_pk, first_seq, input_sha256, resumed_from"
    before = file.dump()
    for verb in VERBS:
        for other in ((first, "three", None), (None, "one", None), (None, "three", first)):
            with refused("RUN_EXISTS"):
                file.sql(f"{verb} INTO run_identity({columns}) VALUES(?, ?, 1, 1, 1, '', ?)", *other)
            assert file.dump() == before, (verb, other)
    all_refused(file, "RUN_EXISTS", [
        "UPDATE run_identity SET input_sha256 = 'ff' WHERE run_id = 'one'",
        "UPDATE OR REPLACE run_identity SET run_id = 'one' WHERE run_id = 'two'",
        f"UPDATE OR REPLACE run_identity SET run_pk = {first} WHERE run_id = 'two'",
        f"UPDATE run_identity SET resumed_from = {second} WHERE run_id = 'two'",
        "DELETE FROM run_identity", "DELETE FROM run_identity WHERE run_id = 'one'",
    ])  # fmt: skip
    file.sql("DELETE FROM run")  # eviction of a run does not free its id
    with refused("RUN_EXISTS"):
        file.run(session_pk, "one")


def test_the_same_outside_id_may_occur_twice(file: SchemaFile) -> None:
    """Case A05: facts are told apart by their own keys, never by an id inside the payload."""
    branch = with_log(file, 0)
    file.fact(branch, "u1/r1/c0/result", payload='{"id":"m1"}', kind="tool.result")
    file.fact(branch, "u1/r2", payload='{"id":"m1"}', kind="model.turn")
    assert file.all("SELECT seq, kind FROM facts ORDER BY seq") == [(1, "tool.result"), (2, "model.turn")]


def test_a_refused_statement_leaves_the_transaction_to_its_caller(file: SchemaFile) -> None:
    if file.db.in_transaction:  # a caller may hold one already
        return
    branch = with_log(file, 1)
    file.sql("BEGIN IMMEDIATE")
    file.fact(branch, "k2")
    with pytest.raises(sqlite3.IntegrityError, match=LOG):
        file.fact(branch, "k2")
    assert file.db.in_transaction
    file.sql("ROLLBACK")
    assert file.count("fact") == 1
