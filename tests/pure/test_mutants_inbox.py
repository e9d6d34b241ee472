"""What the statements about messages for a live run change and give, to the last column (§8)."""

from __future__ import annotations

from typing import Any

import pytest

from ..store.schema_kit import SchemaFile
from .test_mutants_neighbours import A, B, C, Changes, neighbours, perform
from .test_mutants_reads import ask

RUN, FENCE = 5, 3
STEER: dict[str, Any] = {"stream_pk": RUN, "request_id": None, "ts_ms": 9, "payload": '{"é":1}'}
END: dict[str, Any] = {
    "run_pk": RUN, "fence": FENCE, "now_ms": 90_000, "rounds": 6, "tool_calls_count": 7, "prompt_tokens": 1,
    "completion_tokens": 2, "total_tokens": 3, "cache_read_tokens": 4, "cache_write_tokens": 5,
    "requests_without_usage": 8, "resumable": 1, "error_code": "C", "error_message": "m", "result_text": "r",
}  # fmt: skip


def owned(*also: str) -> SchemaFile:
    """The three sessions, each with an owner."""
    f = neighbours()
    for sql in ("UPDATE session SET owner = 'o'", *also):
        f.sql(sql)
    return f


def steered(*of: int) -> SchemaFile:
    """The three sessions, with a message for each of ``of``; its number is 6 + the session's place in ``of``."""
    f = neighbours()
    for pk in of:
        f.control(pk, pk + 3, "steer", request_id=f"s{pk}", payload=f'{{"text":"{pk}"}}')
    return f


def superseded() -> SchemaFile:
    """Another run goes on from the one in the middle, which never had an end."""
    f = owned()
    f.run(B, resumed_from=RUN)
    assert f.all("SELECT status FROM run WHERE run_pk = ?", RUN) == [("executing",)]
    return f


def test_a_message_is_left_for_a_run_that_somebody_works_on():
    returned, changes = perform(owned(), "inbox_steer", **{**STEER, "request_id": "q"})
    assert returned == [(7,)]
    assert changes == {
        ("inbox", 7): {
            "inbox_pk": 7, "session_pk": B, "stream_pk": RUN, "kind": "steer", "request_id": "q", "waiting_no": 1,
            "off": 8, "bytes": 8, "ts_ms": 9, "type": "steer", "payload": '{"é":1}',
        },
        ("request", B, "q"): {"session_pk": B, "request_id": "q", "stream_pk": RUN, "taken_no": 1},
    }  # fmt: skip


NOT_LEFT: dict[str, tuple[SchemaFile, dict[str, Any]]] = {
    "let go": (neighbours(), {}),
    "let go, unlike its neighbours": (owned("UPDATE session SET owner = NULL WHERE session_pk = 2"), {}),
    "parked": (owned("UPDATE run SET status = 'parked' WHERE run_pk = 5"), {}),
    "completed": (owned("UPDATE run SET status = 'completed' WHERE run_pk = 5"), {}),
    "failed": (owned("UPDATE run SET status = 'failed' WHERE run_pk = 5"), {}),
    "cancelled": (owned("UPDATE run SET status = 'cancelled' WHERE run_pk = 5"), {}),
    "superseded": (superseded(), {}),
    "evicted": (owned("DELETE FROM run WHERE run_pk = 5"), {}),
    "a known request": (owned(), {"request_id": "q2"}),
}


@pytest.mark.parametrize("case", NOT_LEFT)
def test_no_message_is_left_where_nobody_would_read_it(case: str):
    f, other = NOT_LEFT[case]
    assert perform(f, "inbox_steer", **{**STEER, **other}) == ([], {})


def test_a_request_of_another_session_is_not_known_here():
    returned, _ = perform(owned(), "inbox_steer", **{**STEER, "request_id": "q1"})
    assert returned == [(7,)]
    f = neighbours()
    assert ask(f, "request_known", session_pk=B, request_id="q2") == [(1,)]
    assert ask(f, "request_known", session_pk=B, request_id="q1") == [(0,)]


def test_messages_are_seen_apart_from_what_else_waits():
    f = steered(A, B, C)
    f.control(B, RUN, "steer", payload='{"text":"2"}')
    rows = [(8, b"s2", b'{"text":"2"}'), (10, None, b'{"text":"2"}')]
    for turned in (False, True):
        assert ask(f, "inbox_steers", turned, session_pk=B, limit=9) == rows
        assert ask(f, "inbox_steers", turned, session_pk=B, limit=1) == rows[:1]
    assert [row[2] for row in ask(f, "inbox_list", session_pk=B, limit=9)] == ["event", "cancel"]
    assert [ask(f, "inbox_steered", session_pk=pk) for pk in (A, B, C)] == [[(1,)]] * 3
    assert [ask(steered(A, C), "inbox_steered", session_pk=pk) for pk in (A, B, C)] == [[(1,)], [(0,)], [(1,)]]


def test_messages_are_forgotten_by_whoever_owns_the_session_alone():
    forgotten: Changes = {("inbox", 8): None}
    assert perform(steered(A, B, C), "inbox_forget_steers", session_pk=B, fence=FENCE) == ([], forgotten)
    assert perform(steered(A, B, C), "inbox_forget_steers", session_pk=B, fence=FENCE - 1) == ([], {})


def test_a_run_does_not_complete_while_a_message_waits():
    assert perform(steered(B), "run_end", status="completed", **END) == ([], {})
    for f, status in ((steered(A, C), "completed"), (steered(B), "failed"), (steered(B), "cancelled")):
        _, changes = perform(f, "run_end", status=status, **END)
        assert (changes["run", RUN] or {})["status"] == status
