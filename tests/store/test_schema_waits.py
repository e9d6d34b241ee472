"""Who answers a wait, and when it counts: decided inside SQLite, whichever program inserts (§10)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from .schema_kit import SchemaFile, refused

VERBS = ("INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ABORT", "INSERT OR ROLLBACK")


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def asked(file: SchemaFile) -> dict[str, int]:
    """Waits of two sessions: open for ever, open until 100, acted on; and another one's, about something else."""
    pk, other = file.session(), file.session("t")
    run, theirs = file.run(pk), file.run(other)
    return {
        "open": file.wait(pk, run, "open"),
        "until 100": file.wait(pk, run, "until 100", deadline_ms=100),
        "closed": file.wait(pk, run, "closed", closed_ms=1),
        "another": file.wait(other, theirs, "open", digest="e", deadline_ms=5),
        "another closed": file.wait(other, theirs, "closed", digest="d", closed_ms=1),
    }


def answer(file: SchemaFile, wait_pk: int, verb: Any = "INSERT", **more: Any) -> None:
    row: dict[str, Any] = {"wait_pk": wait_pk, "value": "true", "digest": "d", "answered_ms": 50} | more
    file.insert("wait_answer", verb=verb, **row)


def refuses(file: SchemaFile, code: str, wait_pk: int, **more: Any) -> None:
    before = file.dump()
    for verb in VERBS[:-1]:
        with refused(code):
            answer(file, wait_pk, verb, **more)
        assert file.dump() == before


def test_an_answer_counts(file: SchemaFile) -> None:
    waits = asked(file)
    answer(file, waits["open"], answered_ms=10**15)
    answer(file, waits["until 100"], answered_ms=100)
    answer(file, waits["another"], digest="e", answered_ms=5)
    assert file.all("SELECT wait_pk, expired FROM wait_answer") == [
        (waits[name], 0) for name in ("open", "until 100", "another")
    ]


def test_a_deadline_that_has_passed_answers(file: SchemaFile) -> None:
    waits = asked(file)
    answer(file, waits["until 100"], answered_ms=101, expired=1, value="null")
    assert file.all("SELECT wait_pk, value, expired FROM wait_answer") == [(waits["until 100"], "null", 1)]
    refuses(file, "WAIT_ALREADY_ANSWERED", waits["until 100"], answered_ms=99)


def test_a_wait_has_one_answer(file: SchemaFile) -> None:
    waits = asked(file)
    answer(file, waits["open"])
    refuses(file, "WAIT_ALREADY_ANSWERED", waits["open"])
    refuses(file, "WAIT_ALREADY_ANSWERED", waits["open"], digest="other", expired=1)
    file.sql("UPDATE wait SET closed_ms = 60")
    refuses(file, "WAIT_ALREADY_ANSWERED", waits["open"])


def test_an_answer_needs_its_wait(file: SchemaFile) -> None:
    asked(file)
    for wait_pk in (99, -1):
        refuses(file, "WAIT_NOT_FOUND", wait_pk)


def test_nobody_answers_what_nobody_waits_for(file: SchemaFile) -> None:
    waits = asked(file)
    refuses(file, "WAIT_CLOSED", waits["closed"])
    refuses(file, "WAIT_CLOSED", waits["closed"], digest="other")


def test_an_answer_is_for_what_was_asked_about(file: SchemaFile) -> None:
    waits = asked(file)
    for digest in ("e", "", "D", "d "):
        refuses(file, "WAIT_DIGEST_MISMATCH", waits["open"], digest=digest)
    refuses(file, "WAIT_DIGEST_MISMATCH", waits["until 100"], digest="e", answered_ms=101)


def test_an_answer_comes_before_the_deadline_and_the_deadline_after_it(file: SchemaFile) -> None:
    waits = asked(file)
    refuses(file, "WAIT_EXPIRED", waits["until 100"], answered_ms=101)
    refuses(file, "WAIT_EXPIRED", waits["until 100"], answered_ms=100, expired=1)
    refuses(file, "WAIT_EXPIRED", waits["open"], answered_ms=10**15, expired=1)
    answer(file, waits["until 100"], answered_ms=100)


def test_an_answer_lives_as_long_as_its_wait(file: SchemaFile) -> None:
    waits = asked(file)
    answer(file, waits["open"])
    answer(file, waits["another"], digest="e", answered_ms=5)
    before = file.dump()
    for statement in ("DELETE FROM wait_answer", f"DELETE FROM wait_answer WHERE wait_pk = {waits['open']}"):
        with refused("WAIT_ALREADY_ANSWERED"):
            file.sql(statement)
        assert file.dump() == before
    file.sql("DELETE FROM wait WHERE wait_pk = ?", waits["open"])
    assert file.all("SELECT wait_pk FROM wait_answer") == [(waits["another"],)]


def test_an_evicted_run_takes_its_closed_waits_and_no_others(file: SchemaFile) -> None:
    waits = asked(file)
    answer(file, waits["open"])
    answer(file, waits["another"], digest="e", answered_ms=5)
    file.sql("UPDATE session SET max_runs_retained = 0 WHERE session_id = 's'")
    file.end_run(1, "cancelled")
    assert file.count("run") == 1
    # An open one is that of the run that goes on from this one: it is about to take it over.
    left = sorted(waits[name] for name in ("open", "until 100", "another", "another closed"))
    assert file.all("SELECT wait_pk FROM wait ORDER BY 1") == [(pk,) for pk in left]
    assert file.all("SELECT wait_pk FROM wait_answer ORDER BY 1") == sorted([(waits["open"],), (waits["another"],)])


@pytest.mark.parametrize("value", ["", "yes", "{", "nan"])
def test_an_answer_is_json(file: SchemaFile, value: str) -> None:
    waits = asked(file)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        answer(file, waits["open"], value=value)
    assert file.count("wait_answer") == 0


def test_an_answer_is_a_text_where_sqlite_can_tell(file: SchemaFile) -> None:
    wait_pk = asked(file)["open"]
    put = f"""INSERT INTO wait_answer(wait_pk, value, by, digest, answered_ms)
              SELECT {wait_pk}, CAST(? AS TEXT), CAST(? AS TEXT), 'd', 50"""
    for value, by in ((b'"caf\xe9"', None), (b'"caf\xe9"', b"ann"), (b"true", b"Ren\xe9")):
        with refused("BAD_INPUT value and by must be UTF-8"):
            file.sql(put, value, by)
    for said in ("é", "\ufffd", "\ufffe", "\uffff"):
        file.sql("SAVEPOINT one")
        file.sql(put, f'"{said}"'.encode(), said.encode())
        file.sql("ROLLBACK TO one")
    file.sql(put, b'"\xe2\x82"', None)  # not all is noticed: readers decode what slips through
