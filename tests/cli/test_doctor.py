"""``doctor``: exit code 0 or 6, in words or JSON, and nothing of the file is touched."""

from __future__ import annotations

import json
import os
import signal

DIES = """
import os, signal
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply
def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
agent = Agent("thence.db", model=ScriptedModel([reply(calls=[call("die")])]), tools=[die])
agent.session(".", SessionOptions(session_id="s")).send("x")
"""


def test_nothing_to_see_to(shell, filled):
    text = shell.ok("doctor")
    assert "No problem found." in text and "journal mode" in text and "wal" in text
    found = json.loads(shell.ok("doctor", "--json"))
    assert (found["problems"], found["owners"], found["interrupted_runs"]) == ([], [], 0)
    assert found["stuck_guard_threads"] is None and found["journal_mode"] == "wal"


def test_a_process_that_died(shell, tmp_path):
    assert shell.start(program=("-c", DIES)).wait(60) == -signal.SIGKILL
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if "shm" not in name}
    text, as_json = shell.run("doctor"), shell.run("doctor", "--json")
    assert [(done.returncode, done.stderr) for done in (text, as_json)] == [(6, "")] * 2
    assert "Problem: " in text.stdout
    found = json.loads(as_json.stdout)
    assert (found["interrupted_runs"], found["orphaned_runs"]) == (1, 1)
    assert [owner["life"] for owner in found["owners"]] == ["dead"]
    (problem,) = found["problems"]
    assert "agent.recover()" in problem and "'thence resume --all' only with" in problem
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if "shm" not in name} == before


def test_no_file(shell):
    assert shell.run("doctor").returncode == 3
