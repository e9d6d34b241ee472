"""Three sessions that look alike, for tests that ask each named statement what it reads and changes (§8).

One session alone hides a statement that forgets whose rows it means: here each has neighbours on both sides, older
branches with facts that its live branch must not see, and runs whose numbers are mixed with those of the others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from thence.store.sql import load

from ..store.schema_kit import SchemaFile

A, B, C = 1, 2, 3
"""Sessions. Their runs have the numbers 1-3, and 4-6 for the runs that resume those: run 5 resumes run 2, and so on."""

STATEMENTS = load().statements
KEYS = {
    "ancestry": ("branch_pk", "first_seq"), "blob_ref": ("session_pk", "sha256"),
    "request": ("session_pk", "request_id"), "tombstone": ("branch_pk", "seq"),
}  # fmt: skip

Changes = dict[tuple[Any, ...], dict[str, Any] | None]
"""By table and key: the columns that have other values now, the columns of a new row that are not NULL, or None for a
row that went."""


def neighbours() -> SchemaFile:
    """A file with three sessions; branch 4-6 go on from 1-3 at seq 2, branch 7-9 from those at seq 3."""
    f = SchemaFile()
    f.db.deserialize(_made())
    return f


@cache
def _made() -> bytes:
    f = SchemaFile()
    for pk in (A, B, C):
        f.now = 1000 * pk
        assert f.session("abc"[pk - 1], owner=None) == pk
        for _ in range(pk):
            f.claim(pk, None)
        tags = {"tenant_id": "t", "principal": "p", "agent_template_id": "a", "correlation_id": "c"}
        for name, value in tags.items():
            f.sql(f"UPDATE session SET {name} = ? WHERE session_pk = ?", f"{value}{pk}", pk)
    for parent, seqs in ((None, (1, 2, 3)), (2, (3, 4)), (3, (4, 5))):
        for pk in (A, B, C):
            f.now += 7
            branch = f.live_branch(pk) if parent is None else f.branch_from(f.live_branch(pk), parent)
            run = f.run(pk, resumed_from=None if parent is None else pk) if parent != 3 else pk + 3
            if parent is None:
                f.end_run(run, "failed", resumable=1)
            for seq in seqs:
                sha = f"sha-{pk}-{branch}-{seq}"
                f.insert("blob", sha256=sha, size=9, bytes=sha.encode())
                f.insert("blob_ref", session_pk=pk, sha256=sha)
                # the abandoned facts of older branches have keys of their own
                f.fact(
                    branch, f"key-{branch}-{seq}", run_pk=run, cause=f"c{seq}", blobs=None if seq == 4 else f'["{sha}"]'
                )
    for pk in (A, B, C):
        run = pk + 3
        for number in range(4):
            f.now += 1
            f.event(pk, run, f'{{"n":{number},"é":{pk}}}')
            f.delta(run, number, fence=f.fence(pk))
            f.sql("UPDATE delta SET step = ? WHERE id = ?", f"step-{number // 2}", run << 32 | number)
        for number in range(2):
            f.trace(pk, run_pk=run, payload=f'{{"n":{number}}}')
        f.checkpoint(pk, run, round=pk, seq=40 + pk, state=f"state-{pk}", proof=b"proof-%d" % pk)
        f.inflight(
            pk, run, "call-0", position=0, state="landed", result=f'{{"of":{pk}}}', landed_ms=5,
            blobs=f'["sha-{pk}-{pk}-2","sha-{pk}-{pk}-3"]',
        )  # fmt: skip
        f.inflight(
            pk, run, "call-1", position=1, state="landed", result="{}", landed_ms=6, blobs=f'["sha-{pk}-{pk}-2"]'
        )
        f.inflight(pk, run, "call-2", position=2, effect="once", starts=2)
        f.event_in(run_id=f"run-{pk}-1", payload='{"é":1}', request_id=f"q{pk}")
        f.control(pk, run, "cancel")
        f.insert("owner", owner=f"o{4 - pk}", pid=pk, program="p", since_ms=100 * pk)
    return f.db.serialize()


def perform(f: SchemaFile, statement: str, /, **params: Any) -> tuple[list[tuple[Any, ...]], Changes]:
    """Run one named statement; what it returned, and every change that it made to the file."""
    before = rows(f)
    returned = [tuple(row) for row in f.db.execute(STATEMENTS[statement].sql, params)]
    after = rows(f)
    changes: Changes = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            changes[key] = {name: value for name, value in new.items() if value is not None}
        elif old is None or new is None:
            changes[key] = None
        elif old != new:
            changes[key] = {name: value for name, value in new.items() if value != old[name]}
    return returned, changes


def rows(f: SchemaFile) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Every row of every table, by its table and key."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for table in f.tables:
        columns = KEYS.get(table, ("rowid",))
        cursor = f.sql(f"SELECT {', '.join(columns)}, * FROM {table}")
        names = [column[0] for column in cursor.description][len(columns) :]
        for row in cursor:
            found[table, *row[: len(columns)]] = dict(zip(names, row[len(columns) :], strict=True))
    return found


def test_the_neighbours_are_alike():
    """Else a statement about the one in the middle would prove nothing about those beside it."""
    f = neighbours()
    for table in ("fact", "event", "delta", "trace", "inflight", "checkpoint", "run", "inbox", "blob_ref", "branch"):
        of = {"fact": "branch_pk % 3", "event": "stream_pk % 3", "delta": "stream_pk % 3"}.get(table, "session_pk % 3")
        counts = f.all(f"SELECT {of}, count(*) FROM {table} GROUP BY 1")
        assert len(counts) == 3 and len({count for _, count in counts}) == 1, table
    assert f.all("SELECT live_branch, fence FROM session") == [(7, 2), (8, 3), (9, 4)]


def test_what_is_performed_is_told_apart():
    f = neighbours()
    assert perform(f, "session_release", session_pk=B, owner="nobody", fence=3) == ([], {})
    f.claim(B, "me")
    assert perform(f, "session_release", session_pk=B, owner="me", fence=4) == ([], {("session", B): {"owner": None}})
