"""What each named statement about waits and parked runs reads and changes, to the last column (§8, §10).

It is about the session in the middle of three that look alike (`test_mutants_neighbours`).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from ..store.schema_kit import SchemaFile
from .test_mutants_neighbours import A, B, C, Changes, neighbours, perform
from .test_mutants_reads import RUN, Rows, ask
from .test_mutants_writes import FENCE, USED

WAITS = {"open": 6, "heard": 7, "late": 8, "closed": 9, "late but heard": 10}
"""Of session B, with their numbers: not answered; answered; with a deadline at 50; acted on; answered before its
deadline. Those of A come before them and those of C after them, under the same names."""


def waiting() -> SchemaFile:
    f = neighbours()
    for pk in (A, B, C):
        run = pk + 3
        for number, name in enumerate(WAITS):
            deadline = 50 if name.startswith("late") else None
            payload = f'{{"question":"{name} {pk}?"}}'
            f.wait(
                pk, run, name, kind="question", subject=f"call-{number}", digest=f"d{pk}-{number}",
                deadline_ms=deadline, opened_ms=10 + number, payload=payload,
            )  # fmt: skip
    for name, value, by in (("heard", "[1]", "ann"), ("closed", "[2]", None), ("late but heard", "null", "bob")):
        f.sql(
            """INSERT INTO wait_answer(wait_pk, value, by, digest, answered_ms)
               SELECT wait_pk, ?, ?, digest, 50 FROM wait WHERE wait_id = ?""", value, by, name,
        )  # fmt: skip
    f.sql("UPDATE wait SET closed_ms = 60 WHERE wait_id = 'closed'")
    return f


def answer_row(name: str, **more: Any) -> Changes:
    pk = WAITS[name]
    return {("wait_answer", pk): {"wait_pk": pk, "digest": f"d{B}-{list(WAITS).index(name)}", **more}}


NEW = {"session_pk": B, "run_pk": RUN, "wait_id": "new", "kind": "child", "subject": "s", "digest": "dd",
       "deadline_ms": 8, "fence": FENCE, "opened_ms": 9, "payload": "{}"}  # fmt: skip
SAID = {"session_pk": B, "wait_id": "open", "value": '{"v":1}', "by": "ann", "now_ms": 9}
ENDED = {"run_pk": RUN, "fence": FENCE, "now_ms": 90_000}
TOTALS = {"rounds": 6, "tool_calls_count": 7, "requests_without_usage": 8, **USED}

# name -> (what is done to the file before, parameters, what changes)
NO_ORDERS = "UPDATE inbox SET kind = 'steer' WHERE session_pk = 2"
"""An order to stop keeps a run from parking; a message does not."""

CASES: dict[str, tuple[str, dict[str, Any], Changes]] = {
    "wait_open": ("", NEW, {("wait", 16): {"wait_pk": 16, **NEW}}),
    "wait_answer": (
        "", {**SAID, "digest": None}, answer_row("open", value='{"v":1}', by="ann", answered_ms=9, expired=0),
    ),
    "wait_answer, with the digest that was seen": (
        "", {**SAID, "digest": f"d{B}-0"}, answer_row("open", value='{"v":1}', by="ann", answered_ms=9, expired=0),
    ),
    "wait_answer, to nothing": ("", {**SAID, "digest": None, "wait_id": "none"}, {}),
    "wait_expire": (
        "", {"session_pk": B, "now_ms": 51}, answer_row("late", value="null", answered_ms=51, expired=1),
    ),
    "wait_expire, at the last moment": ("", {"session_pk": B, "now_ms": 50}, {}),
    "wait_expire, of a turn that is over": (
        "UPDATE wait SET closed_ms = 60", {"session_pk": B, "now_ms": 51}, {},
    ),
    "wait_close": (
        "UPDATE session SET fence = 9", {"session_pk": B, "wait_id": "heard", "now_ms": 70, "fence": 9},
        {("wait", WAITS["heard"]): {"closed_ms": 70, "fence": 9}},
    ),
    "wait_close_all": (
        "UPDATE session SET fence = 9", {"session_pk": B, "now_ms": 70, "fence": 9},
        {("wait", pk): {"closed_ms": 70, "fence": 9} for name, pk in WAITS.items() if name != "closed"},
    ),
    "wait_adopt": (
        "UPDATE session SET fence = 9", {"session_pk": B, "run_id": "run-2-0", "fence": 9},
        {("wait", pk): {"run_pk": 2, "fence": 9} for name, pk in WAITS.items() if name != "closed"},
    ),
    "run_park": (
        f"UPDATE wait SET closed_ms = 70; {NO_ORDERS}", {**ENDED, **TOTALS},
        {("run", RUN): {"status": "parked", "updated_ms": 90_000, **TOTALS}},
    ),
    "run_park, with answers elsewhere": (
        f"UPDATE wait SET closed_ms = 70 WHERE session_pk = 2; {NO_ORDERS}", {**ENDED, **TOTALS},
        {("run", RUN): {"status": "parked", "updated_ms": 90_000, **TOTALS}},
    ),
    "run_park, though nobody has answered": (
        f"DELETE FROM wait WHERE wait_id LIKE '%heard'; {NO_ORDERS}", {**ENDED, **TOTALS},
        {("run", RUN): {"status": "parked", "updated_ms": 90_000, **TOTALS}},
    ),
    "run_park, but somebody has answered": (NO_ORDERS, {**ENDED, **TOTALS}, {}),
    "run_park, but somebody said cancel": (
        f"DELETE FROM wait; {NO_ORDERS}; UPDATE inbox SET kind = 'cancel' WHERE session_pk = 2", {**ENDED, **TOTALS},
        {},
    ),
    "run_park, but somebody said interrupt": (
        f"DELETE FROM wait; {NO_ORDERS}; UPDATE inbox SET kind = 'interrupt' WHERE session_pk = 2", {**ENDED, **TOTALS},
        {},
    ),
    "run_park, under a new claim": (
        f"DELETE FROM wait; {NO_ORDERS}; UPDATE session SET fence = 9", {**ENDED, **TOTALS, "fence": 9, "now_ms": 5},
        {("run", RUN): {"status": "parked", "fence": 9, **TOTALS}},
    ),
    "run_wake": (
        "UPDATE run SET status = 'parked'", ENDED, {("run", RUN): {"status": "executing", "updated_ms": 90_000}},
    ),
    "run_wake, under a new claim": (
        "UPDATE run SET status = 'parked'; UPDATE session SET fence = 9", {**ENDED, "fence": 9, "now_ms": 5},
        {("run", RUN): {"status": "executing", "fence": 9}},
    ),
    "run_wake, somebody else did": ("", ENDED, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_changes_this_and_nothing_else(case: str):
    before, params, changes = CASES[case]
    f = waiting()
    f.db.executescript(before)
    assert perform(f, case.partition(",")[0], **params) == ([], changes)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"wait_id": "heard"}, "WAIT_ALREADY_ANSWERED"), ({"wait_id": "closed"}, "WAIT_ALREADY_ANSWERED"),
        ({"digest": f"d{A}-0"}, "WAIT_DIGEST_MISMATCH"), ({"wait_id": "late", "now_ms": 51}, "WAIT_EXPIRED"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_count(change: dict[str, Any], code: str):
    f = waiting()
    before = f.dump()
    with pytest.raises(sqlite3.IntegrityError, match=f"^thence:{code}"):
        perform(f, "wait_answer", **{**SAID, "digest": None, **change})
    assert f.dump() == before


# ------------------------------------------------------------------ reading
def row(name: str, **more: Any) -> tuple[Any, ...]:
    number = list(WAITS).index(name)
    value, by = {"heard": (b"[1]", b"ann"), "closed": (b"[2]", None), "late but heard": (b"null", b"bob")}.get(
        name, (None, None)
    )
    return (
        "b", "run-2-1", name, "question", f"call-{number}", f"d{B}-{number}", 50 if name.startswith("late") else None,
        10 + number, 60 if name == "closed" else None, f'{{"question":"{name} {B}?"}}'.encode(), value, by,
    )  # fmt: skip


LISTED = [row(name) for name in WAITS if name != "closed"]


@pytest.mark.parametrize(
    ("statement", "params", "expected"),
    [
        ("wait_list", {"session_pk": B, "run_id": None}, LISTED),
        ("wait_list", {"session_pk": None, "run_id": "run-2-1"}, LISTED),
        ("wait_list", {"session_pk": B, "run_id": "run-2-1"}, LISTED),
        ("wait_list", {"session_pk": B, "run_id": "run-2-0"}, []),
        ("wait_list", {"session_pk": B, "run_id": "run-1-1"}, []),
        *(("wait_get", {"session_pk": B, "wait_id": name}, [row(name)]) for name in WAITS),
        ("wait_get", {"session_pk": B, "wait_id": "none"}, []),
        (
            "wait_answers", {"session_pk": B},
            [("heard", b"[1]", b"ann", 0), ("late but heard", b"null", b"bob", 0)],
        ),
    ],
)  # fmt: skip
def test_the_rows_of(statement: str, params: dict[str, Any], expected: Rows):
    for turned in (False, True):
        assert ask(waiting(), statement, turned, **params) == expected


def test_waits_of_all_sessions_come_oldest_first():
    for turned in (False, True):
        listed = ask(waiting(), "wait_list", turned, session_pk=None, run_id=None)
        assert [(found[0], found[2]) for found in listed] == [
            (session, name) for session in "abc" for name in WAITS if name != "closed"
        ]


def test_a_deadline_that_answered_is_told_as_that():
    f = waiting()
    perform(f, "wait_expire", session_pk=B, now_ms=51)
    assert ask(f, "wait_answers", session_pk=B) == [
        ("heard", b"[1]", b"ann", 0), ("late", b"null", None, 1), ("late but heard", b"null", b"bob", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", ["", "UPDATE stream SET event_count = 7 WHERE stream_pk <> 5"])
def test_what_a_parked_run_goes_on_from(wrong: str):
    f = waiting()
    f.db.executescript(wrong)
    sets = ", ".join(f"{name} = {number}" for name, number in USED.items())
    f.sql(f"UPDATE run SET tool_calls_count = 7, {sets} WHERE run_pk = ?", RUN)
    unknown = f.sql("SELECT requests_without_usage FROM run WHERE run_pk = ?", RUN).fetchone()[0]
    assert ask(f, "run_parked", run_pk=RUN) == [(4, 7, unknown, *USED.values())]
    assert ask(f, "run_parked", run_pk=99) == []


def test_what_nobody_has_answered_is_counted():
    """Of all sessions: neither what has its answer nor what nobody asks any more. Messages are counted beside it."""
    f = waiting()
    f.sql("DELETE FROM inbox WHERE session_pk = ?", B)
    assert ask(f, "waiting_count") == [(6, 4)]
    perform(f, "wait_answer", **{**SAID, "digest": None})
    f.sql("UPDATE wait SET closed_ms = 9 WHERE wait_pk IN (1, 2)")
    assert ask(f, "waiting_count") == [(4, 4)]


# what is done to session B alone (its neighbours wait on), whose run is parked -> whether its run can go on at 51
ANSWERED = [
    ("", False), ("DELETE FROM wait WHERE wait_pk = 6", True),
    ("UPDATE wait SET closed_ms = 9 WHERE wait_pk = 6", True),
    ("UPDATE wait SET deadline_ms = 50 WHERE wait_pk = 6", True),
    ("UPDATE wait SET deadline_ms = 51 WHERE wait_pk = 6", False),
    ("DELETE FROM wait WHERE session_pk = 2", True),
    ("DELETE FROM wait WHERE session_pk = 2; UPDATE run SET status = 'executing'", False),
    ("DELETE FROM wait WHERE session_pk = 2; UPDATE run SET status = 'completed' WHERE run_pk = 5", False),
    ("INSERT INTO wait_answer SELECT wait_pk, '1', NULL, digest, 9, 0 FROM wait WHERE wait_pk = 6", True),
]  # fmt: skip


@pytest.mark.parametrize(("before", "found"), ANSWERED)
def test_which_parked_runs_can_go_on(before: str, found: bool):
    f = waiting()
    f.sql("UPDATE run SET status = 'parked' WHERE run_pk = ?", RUN)
    f.db.executescript(before)
    for turned in (False, True):
        assert ask(f, "wait_answered_runs", turned, now_ms=51) == [("b", "run-2-1")] * found


def test_parked_runs_of_all_sessions_and_only_their_newest():
    f = waiting()
    f.db.executescript("DELETE FROM wait; UPDATE run SET status = 'parked' WHERE run_pk > 3")
    for turned in (False, True):
        expected = [("a", "run-1-1"), ("b", "run-2-1"), ("c", "run-3-1")]
        assert ask(f, "wait_answered_runs", turned, now_ms=51) == expected
    f.run(B, "newer")
    assert ask(f, "wait_answered_runs", now_ms=51) == [("a", "run-1-1"), ("c", "run-3-1")]
