"""Fences, final words and deletion (§7, §8): a stale owner writes nothing, an end is an end, deleted is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .schema_kit import TERMINAL, SchemaFile, refused

VERBS = ("INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE")


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def writes_of_a_run(file: SchemaFile, pk: int, run: int) -> dict[str, Callable[[int], Any]]:
    """Every write that carries a fence, as a function of the fence."""
    return {
        "fact": lambda fence: file.fact(file.live_branch(pk), f"k{fence}", fence=fence),
        "event": lambda fence: file.event(pk, run, fence=fence),
        "event of the channel": lambda fence: file.event(pk, -pk, fence=fence),
        "delta": lambda fence: file.delta(run, fence, fence),
        "delta of the channel": lambda fence: file.delta(-pk, fence, fence),
        "trace": lambda fence: file.trace(pk, fence=fence),
        "run": lambda fence: file.insert(
            "run", run_pk=900 + fence, session_pk=pk, run_no=900 + fence, fence=fence, status="created",
            created_ms=1, updated_ms=1, prompt="p"),
        "run update": lambda fence: file.sql("UPDATE run SET rounds = 1, fence = ? WHERE run_pk = ?", fence, run),
        "run end": lambda fence: file.sql("UPDATE run SET status = 'failed', fence = ? WHERE run_pk = ?", fence, run),
        "inflight": lambda fence: file.inflight(pk, run, f"c{fence}", fence=fence, position=fence + 1),
        "inflight landed": lambda fence: file.sql(
            "UPDATE inflight SET state = 'landed', result = '{}', fence = ? WHERE call_key = 'call'", fence),
        "checkpoint": lambda fence: file.checkpoint(pk, run + 50 + fence, fence=fence),
        "checkpoint again": lambda fence: file.sql(
            """INSERT INTO checkpoint SELECT run_pk, session_pk, branch_pk, 2, 2, ?, ts_ms, 1, '{}', '{}', '{}', x''
               FROM checkpoint WHERE run_pk = ?
               ON CONFLICT(run_pk) DO UPDATE SET round = 2, fence = excluded.fence""", fence, run),
        "checkpoint update": lambda fence: file.sql(
            "UPDATE checkpoint SET round = 3, fence = ? WHERE run_pk = ?", fence, run),
        "wait": lambda fence: file.wait(pk, run, f"w{fence}", fence=fence),
        "wait closed": lambda fence: file.sql("UPDATE wait SET closed_ms = 1, fence = ? WHERE wait_id = 'open'", fence),
        "task update": lambda fence: file.sql("UPDATE task SET output = 'o', fence = ? WHERE task_id = 'open'", fence),
        "task": lambda fence: file.task(pk, f"t{fence}", fence=fence),
    }  # fmt: skip


def test_a_stale_fence_writes_nothing(file: SchemaFile) -> None:
    pk = file.session()
    run = file.run(pk)
    file.inflight(pk, run, "call")
    file.checkpoint(pk, run)
    file.wait(pk, run, "open")
    file.task(pk, "open")
    file.claim(pk, "another")
    current = file.fence(pk)
    before = file.dump()
    for name, write in writes_of_a_run(file, pk, run).items():
        for fence in (current - 1, current + 1, 0):
            with refused("OWNERSHIP_LOST"):
                write(fence)
            assert file.dump() == before, name
    for write in writes_of_a_run(file, pk, run).values():
        write(current)
    assert file.one("SELECT round FROM checkpoint WHERE run_pk = ?", run) is None  # "run end" took it


def test_a_run_of_a_stale_fence_cannot_be_updated_with_the_right_one_of_another_session(file: SchemaFile) -> None:
    pk, other = file.session(), file.session("t")
    run = file.run(pk)
    file.claim(other, "me")
    for change, code in (("fence = ?", "OWNERSHIP_LOST"), ("session_pk = 2, fence = ?", "(OWNERSHIP_LOST|RUN_EXISTS)")):
        with refused(code):
            file.sql(f"UPDATE run SET {change} WHERE run_pk = ?", file.fence(other), run)


def test_a_fence_only_grows_and_a_session_keeps_its_name(file: SchemaFile) -> None:
    pk = file.session()
    file.claim(pk, "me")
    before = file.dump()
    file.sql("UPDATE session SET fence = fence")  # a release may name it
    for change in ("fence = fence - 1", "session_pk = 9", "session_id = 'z'", "owner = 'x', fence = 0"):
        with refused("OWNERSHIP_LOST"):
            file.sql(f"UPDATE OR REPLACE session SET {change}")
    for verb in VERBS:
        for row in ({"session_id": "s"}, {"session_id": "z", "session_pk": pk}):
            with refused("SESSION_EXISTS"):
                file.insert("session", verb=verb, workspace="/", created_ms=1, **row)
    assert file.dump() == before


def test_a_terminal_status_is_final(file: SchemaFile) -> None:
    pk = file.session()
    for status in TERMINAL:
        run = file.run(pk, status)
        file.end_run(run, status)
        before = file.dump()
        for late in ("executing", "parked", *TERMINAL):
            if late != status:
                file.end_run(run, late)  # in silence: a late end is no error
                file.sql("UPDATE OR REPLACE run SET status = ? WHERE run_pk = ?", late, run)
        for verb in VERBS:
            row = {"session_pk": pk, "fence": 1, "status": "executing", "created_ms": 1, "updated_ms": 1, "prompt": "x"}
            number = file.one("SELECT run_no FROM run WHERE run_pk = ?", run)
            for same in ({"run_pk": run, "run_no": 99}, {"run_pk": 99, "run_no": number}):
                with refused("RUN_EXISTS"):
                    file.insert("run", verb=verb, **row, **same)
        assert file.dump() == before, status


def test_what_a_run_leaves_when_it_ends(file: SchemaFile) -> None:
    pk = file.session()
    for status, resumable, kept in (("completed", 0, 0), ("cancelled", 1, 0), ("failed", 0, 0), ("failed", 1, 1)):
        run = file.run(pk)
        file.checkpoint(pk, run)
        file.delta(run)
        file.end_run(run, status, resumable)
        assert file.count("delta") == 0
        assert file.one("SELECT count(*) FROM checkpoint WHERE run_pk = ?", run) == kept, (status, resumable)
    parked = file.run(pk)
    file.checkpoint(pk, parked)
    file.end_run(parked, "parked")
    assert file.one("SELECT count(*) FROM checkpoint WHERE run_pk = ?", parked) == 1


def test_a_finished_task_is_final(file: SchemaFile) -> None:
    pk = file.session()
    file.task(pk, "one", status="cancelled", finished_ms=5)
    before = file.dump()
    for status, at in (("completed", 6), ("running", None), ("failed", 5)):
        file.sql("UPDATE task SET status = ?, finished_ms = ? WHERE task_id = 'one'", status, at)
        assert file.dump() == before, status
    file.sql("UPDATE task SET finished_ms = 6, output = 'x'")  # the same end, told better, is not one more
    assert file.one("SELECT terminal_tasks FROM session") == 1
    before = file.dump()
    for verb in VERBS:
        for row in ({"task_id": "one"}, {"task_id": "two", "task_pk": file.one("SELECT task_pk FROM task")}):
            with refused("TASK_EXISTS"):
                file.task(pk, verb=verb, **row)
    assert file.dump() == before


def test_the_first_answer_of_a_wait_is_the_answer(file: SchemaFile) -> None:
    pk = file.session()
    run = file.run(pk)
    wait = file.wait(pk, run, "w1")
    file.insert("wait_answer", wait_pk=wait, value='"yes"', digest="d", answered_ms=1)
    before = file.dump()
    for verb in VERBS:
        with refused("WAIT_ALREADY_ANSWERED"):
            file.insert("wait_answer", verb=verb, wait_pk=wait, value='"no"', digest="d", answered_ms=2)
        with refused("WAIT_EXISTS"):
            file.wait(pk, run, "w1", verb=verb)
    with refused("WAIT_ALREADY_ANSWERED"):
        file.sql("UPDATE wait_answer SET value = '1'")
    assert file.dump() == before


def test_a_call_that_has_started_is_not_started_again(file: SchemaFile) -> None:
    pk = file.session()
    run = file.run(pk)
    file.inflight(pk, run, "t1-r1-c0", state="landed", result="{}")
    before = file.dump()
    for verb in VERBS:
        with refused("FACT_CONFLICT"):
            file.inflight(pk, run, "t1-r1-c0", verb=verb)
    assert file.dump() == before


def test_writes_for_an_evicted_run_are_dropped_in_silence(file: SchemaFile) -> None:
    pk = file.session(max_runs_retained=0)
    run = file.run(pk)
    file.end_run(run)
    assert file.count("run") == file.count("event") == 0
    before = file.dump()
    file.insert("event", id=run << 32, off=0, bytes=2, fence=1, ts_ms=1, type="t", payload="{}")
    file.delta(run)
    assert file.dump() == before


# ------------------------------------------------------------------ delete


def fill(file: SchemaFile, name: str) -> None:
    """A session that has rows in every table that can have one of it."""
    pk = file.session(name)
    root = file.live_branch(pk)
    for number in range(3):
        file.fact(root, f"k{number}")
    digest = file.one("SELECT hash FROM fact WHERE id = ?", root << 32 | 1)
    file.insert("tombstone", branch_pk=root, seq=1, hash=digest, reason="r", ts_ms=1)
    file.fact(file.branch_from(root, 2), "c")
    for sha in ("shared", f"only-{name}"):
        file.insert("blob", sha256=sha, size=1, bytes=b"b")
        file.insert("blob_ref", session_pk=pk, sha256=sha)
    run = file.run(pk, f"{name}-run")
    for stream in (run, -pk):
        file.event(pk, stream)
        file.delta(stream)
    for whom in ({"run_id": f"{name}-run"}, {"session_id": name}):
        file.event_in(request_id=f"r-{len(whom)}-{next(iter(whom))}", **whom)
    file.control(pk, run, "cancel")
    file.checkpoint(pk, run)
    file.checkpoint(pk, run + 500)  # of a run that was evicted long ago
    file.insert("stream", stream_pk=file.run_identity(pk), session_pk=pk)
    file.inflight(pk, run, "call")
    file.insert("wait_answer", wait_pk=file.wait(pk, run, "w"), value="1", digest="d", answered_ms=1)
    file.trace(pk)
    file.task(pk, "running")
    file.task(pk, "done", status="completed", finished_ms=1)


def test_a_deleted_session_takes_all_its_rows_and_no_others(file: SchemaFile) -> None:
    fill(file, "t")
    before = file.dump()
    fill(file, "s")
    with_both = file.dump()
    untouched = {name for name in before if len(with_both[name]) == len(before[name])}
    assert untouched == {"file", "owner"}
    file.sql("DELETE FROM session WHERE session_id = 's'")
    after = file.dump()
    for name, expected in before.items():
        assert after[name] == expected, name
    file.sql("DELETE FROM session")
    assert {name for name, left in file.dump().items() if left} == set()
