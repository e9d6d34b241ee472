"""A resumed run works on a new branch: shared facts, one chain, unique keys, the live one shown (§4)."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from thence import Agent

from ..kit import check_log
from ..processes.kit import verify
from .hand import by_hand
from .kit import Again, Eyes, Tools, calls, done, head, last_run, resume
from .test_counters import nested

SCRIPT = [calls("look:1", "add:2"), calls("add:3"), calls("add:4"), calls("add:5"), done()]


def test_facts_are_shared_and_not_copied(db: Path) -> None:
    after, _ = nested("sync", db, SCRIPT, 3)
    with Eyes(db) as eyes:
        stored = eyes.one("SELECT count(*) FROM fact")
        assert stored == len(after.facts) == eyes.one("SELECT facts FROM sessions")
        assert eyes.one("SELECT count(*) FROM branch") == 4
        assert [row[0] for row in eyes.rows("SELECT hash FROM facts ORDER BY seq")] == [f.hash for f in after.facts]
    check_log(after.facts)
    assert verify(db) == {"s": len(after.facts)}


def test_a_branch_begins_after_its_parents_head_and_ancestry_is_flat(db: Path) -> None:
    nested("async", db, SCRIPT, 3)
    with Eyes(db) as eyes:
        branches = eyes.rows("SELECT branch_pk, parent_pk, first_seq, head_seq FROM branch ORDER BY branch_pk")
        pks = [row[0] for row in branches]
        assert [row[1] for row in branches] == [None, *pks[:-1]]
        for (_, _, _, parent_head), (_, _, first, _) in pairwise(branches):
            assert first == parent_head + 1
        for number, (branch, _, first, _) in enumerate(branches):
            seen = eyes.rows(
                "SELECT ancestor_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = ? ORDER BY first_seq", branch
            )
            assert [row[0] for row in seen] == pks[:number], "ancestry is stored flat"
            assert sum(last - start + 1 for _, start, last in seen) == first - 1
        assert eyes.one("SELECT live_branch FROM session") == pks[-1]


def test_a_branch_without_facts_of_its_own_is_no_ancestor(db: Path) -> None:
    """A resume that died at once leaves a branch that holds nothing."""
    by_hand(db, SCRIPT, at=10)
    run_id = last_run(db) or ""
    for _ in range(3):
        by_hand(db, SCRIPT, at=2, resume=run_id)
    after = resume("sync", db, run_id, SCRIPT)
    assert after.result is not None
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM ancestry WHERE branch_pk = (SELECT live_branch FROM session)") == 1
    assert verify(db) == {"s": len(after.facts)}


def test_keys_are_unique_over_all_visible_facts(db: Path) -> None:
    """A key of the parent's part is refused on the child, whoever writes."""
    by_hand(db, SCRIPT, at=10)
    by_hand(db, SCRIPT, at=2, resume=last_run(db))
    insert = """INSERT INTO fact(id, run_pk, fence, ts_ms, kind, key, prev_hash, hash, payload)
        SELECT s.live_branch << 32 | b.head_seq + ?, 1, s.fence, 0, 'note.x', ?, b.head_hash, zeroblob(32), '{}'
        FROM session s JOIN branch b ON b.branch_pk = s.live_branch"""
    with Eyes(db) as eyes:
        for offset, key, why in ((1, "t1-user", "key exists"), (2, "new", "head + 1"), (0, "new", "head + 1")):
            with pytest.raises(sqlite3.IntegrityError, match="FACT_CONFLICT") as caught:
                eyes.db.execute(insert, (offset, key))
            assert why in str(caught.value)


def test_the_old_branch_takes_no_more_facts_and_keeps_its_own(db: Path) -> None:
    """The parent's stretch cannot be changed or removed while the session lives."""
    nested("sync", db, SCRIPT, 2)
    with Eyes(db) as eyes:
        for sql in ("UPDATE fact SET payload = '{}'", "DELETE FROM fact", "DELETE FROM branch", "DELETE FROM ancestry",
                    "UPDATE ancestry SET last_seq = 0", "UPDATE branch SET head_seq = 1"):  # fmt: skip
            with pytest.raises(sqlite3.IntegrityError, match="FACT_CONFLICT"):
                eyes.db.execute(sql)


def test_the_next_turn_goes_on_from_the_new_branch(db: Path, quick: Path) -> None:
    """Interrupted and resumed, or not: five later turns give the same log."""
    nested("sync", db, SCRIPT, 2)
    by_hand(quick / "undisturbed.db", SCRIPT)
    later = [done(f"Answer {n}.") for n in range(5)]
    for path in (db, quick / "undisturbed.db"):
        with Agent(path, model=Again([*SCRIPT, *later]), tools=Tools().all(), durability="process") as agent:
            session = agent.resume_session("s")
            assert [session.send(f"Question {n}.").text for n in range(5)] == [f"Answer {n}." for n in range(5)]
    assert head(db) == head(quick / "undisturbed.db")


def test_two_sessions_do_not_see_each_others_branches(db: Path) -> None:
    by_hand(db, SCRIPT, at=10)
    by_hand(db, SCRIPT, at=10, session="other")
    resume("sync", db, last_run(db) or "", SCRIPT)
    resume("async", db, last_run(db, "other") or "", SCRIPT, session="other")
    found = verify(db)
    assert set(found) == {"s", "other"} and found["s"] == found["other"]
    assert head(db) == head(db, "other")
