"""E02: where the linked SQLite has the WAL-reset bug, a checkpoint runs only under the write lock (§8)."""

from __future__ import annotations

import json

import pytest

from .kit import PRELUDE, verify

WATCHED = """
import sqlite3, sys, json
sqlite3.sqlite_version_info = tuple(json.loads(sys.argv[2]))
log, count = [], 0
real = sqlite3.connect
def watched(*args, **kwargs):
    global count
    connection = real(*args, **kwargs)
    number, count = count, count + 1
    connection.set_trace_callback(lambda text: log.append((number, text[:80].strip().upper().rstrip(";"))))
    return connection
sqlite3.connect = watched
"""

WORK = """
import itertools
with Agent(db, model=ScriptedModel(itertools.repeat(reply("x" * 1_000_000)))) as agent:
    session = agent.session(".", options(session_id="s"))
    for number in range(5): session.send("y" * 1_000_000)
say(json.dumps(log))
"""


def judge(log: list[tuple[int, str]]) -> tuple[int, int]:
    """Checkpoints that ran while another connection of ours held the write lock, and those that did not."""
    writing: set[int] = set()
    guarded = bare = 0
    for connection, text in log:
        if text.startswith("BEGIN IMMEDIATE"):
            writing.add(connection)
        elif text.startswith(("COMMIT", "ROLLBACK")):
            writing.discard(connection)
        elif "WAL_CHECKPOINT" in text:
            held = bool(writing - {connection})
            guarded += held
            bare += not held
    return guarded, bare


@pytest.mark.parametrize(
    ("version", "repaired"),
    [
        ((3, 51, 2), False),
        ((3, 40, 1), False),
        pytest.param((3, 50, 6), False, marks=pytest.mark.slow),
        pytest.param((3, 44, 5), False, marks=pytest.mark.slow),
        ((3, 51, 3), True),
        ((3, 50, 7), True),
        ((3, 44, 6), True),
    ],
)
def test_e02_the_guard_is_active_where_the_bug_is(spawn, db, version, repaired):
    child = spawn(WORK, json.dumps(version), prelude=WATCHED + PRELUDE, own=True)
    log = json.loads(child.line())
    child.finish()
    guarded, bare = judge(log)
    assert guarded + bare > 0, "nothing was checkpointed: the test saw nothing"
    if repaired:
        assert guarded == 0
    else:
        assert bare == 0
    # SQLite itself must not checkpoint behind our back on any writing connection
    automatic = [text for _, text in log if "WAL_AUTOCHECKPOINT" in text]
    assert automatic
    assert all(text.endswith(("=0", "(0)")) for text in automatic)
    verify(db)
