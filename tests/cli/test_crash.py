"""``demo --crash``: what it shows is so, and it says so when it is not; and a file that a crash left is only read."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from thence.cli.app import cli
from thence.cli.crash_worker import ENTRIES


@pytest.fixture
def place(shell, tmp_path):
    """A shell in an empty folder; temporary files go beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    shell.folder = tmp_path / "here"
    shell.env["TMPDIR"] = str(tmp_path / "tmp")
    return shell


def verdicts(out: str) -> list[str]:
    return re.findall(r"^  (ok|NO)  ", out, re.MULTILINE)


def check(place, out: str, session_id: str) -> None:
    """What the demo says, asked of the file and of the ledger anew."""
    assert verdicts(out) == ["ok"] * 8
    assert max(map(len, out.partition("prompt ")[2].partition("Look yourself")[0].splitlines())) <= 80
    first, second = json.loads(place.ok("--db", "demo.db", "runs", session_id, "--json"))
    assert (first["state"], second["state"], second["resumed_from"]) == ("superseded", "completed", first["id"])
    (ledger,) = Path(place.env["TMPDIR"]).glob(f"*/{session_id}.ledger")
    lines = [line.split(" ", 2)[2] for line in ledger.read_text().splitlines()]
    rent, bread, flowers = (f"booked {entry} {euros}" for entry, euros in ENTRIES)
    assert lines == ["begins rent", rent, "begins bread", "begins bread", bread, "begins flowers", flowers]
    pids = [line.split(" ")[1] for line in ledger.read_text().splitlines()]
    assert len(set(pids)) == 2 and pids == [pids[0]] * 3 + [pids[3]] * 4
    connection = sqlite3.connect(place.folder / "demo.db")
    heads = connection.execute(
        "SELECT DISTINCT head_hash FROM sessions WHERE session_id IN (?, ?)", (session_id, f"{session_id}-undisturbed")
    ).fetchall()
    connection.close()
    assert len(heads) == 1 and heads[0][0][:16] in out


def test_the_crash(place):
    done = place.run("demo", "--crash")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "NO MODEL, a script" in done.stdout and "demo.db (new)" in done.stdout and "SIGKILL" in done.stdout
    check(place, done.stdout, "crash-1")
    again = place.run("demo", "--crash", "--db", "demo.db")
    assert again.returncode == 0 and "two sessions are added" in again.stdout
    check(place, again.stdout, "crash-2")


@pytest.mark.parametrize(
    ("fault", "claim"),
    [
        # nobody dies
        ("os.kill = lambda *_: None", "NO  process"),
        # a call that had finished runs again
        ("worker.booking = lambda ledger, *, dies: twice(ledger, dies)", "NO  the finished call"),
        # the resumed turn comes to another answer
        ("worker._sum_up = lambda request: worker.reply(str(os.getpid()))", "NO  same answer"),
    ],
)
def test_a_claim_that_does_not_hold_is_said(place, fault, claim):
    (place.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'crash_worker' in ' '.join(sys.orig_argv):\n"
        "    import thence.cli.crash_worker as worker\n"
        "    honest = worker.booking\n"
        "    def twice(ledger, dies):\n"
        "        if not dies: ledger.open('a').write('process 1 begins rent\\n')\n"
        "        return honest(ledger, dies=dies)\n"
        f"    {fault}\n"
        # run as a program it would be made anew, without the fault
        "    worker.main(), os._exit(0) if sys.stdout.flush() is None else None\n"
    )
    place.env["PYTHONPATH"] = f"{place.folder}:{place.environment()['PYTHONPATH']}"
    done = place.run("demo", "--crash")
    assert done.returncode == 1, done
    assert claim in done.stdout + done.stderr, done


def test_a_process_that_fails_is_told(place):
    (place.folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if '\"resumes\": \"run-' in ' '.join(sys.orig_argv):\n"
        "    sys.stderr.write('no such luck\\n'); sys.stderr.flush()\n"
        "    import os; os._exit(7)\n"
    )
    place.env["PYTHONPATH"] = f"{place.folder}:{place.environment()['PYTHONPATH']}"
    done = place.run("demo", "--crash")
    assert done.returncode == 1 and "ended with 7: no such luck" in done.stderr, done


def test_not_with_a_provider_and_not_on_windows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["demo", "--crash", "-m", "openai:m"])
    assert (result.exit_code, "scripted, local" in result.stderr) == (2, True)
    monkeypatch.setattr(sys, "platform", "win32")
    result = CliRunner().invoke(cli, ["demo", "--crash"])
    assert (result.exit_code, "not supported" in result.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.real_model
def test_with_the_real_model(place):
    done = place.run("demo", "--crash", "--model", "local")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "135M" in done.stdout
    check(place, done.stdout, "crash-1")


DIES = """
import os, signal
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply
def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
with Agent("thence.db", model=ScriptedModel([reply(calls=[call("die")])]), tools=[die]) as agent:
    agent.session(".", SessionOptions(session_id="s")).send("x")
"""


@pytest.mark.parametrize("index", [True, False])
def test_reading_after_a_crash_changes_no_byte(shell, tmp_path, index):
    """Also not in a copy that came without its -shm."""
    assert shell.start(program=("-c", DIES)).wait(60) == -signal.SIGKILL
    if not index:
        (tmp_path / "thence.db-shm").unlink()

    def state() -> dict[str, str]:
        # -shm is SQLite's scratch paper: each process that opens the file may write it anew
        return {
            file.name: "" if file.name.endswith("-shm") else hashlib.sha256(file.read_bytes()).hexdigest()
            for file in tmp_path.iterdir()
            if file.is_file()
        }

    before = state()
    assert (tmp_path / "thence.db-wal").stat().st_size > 0
    (session,) = json.loads(shell.ok("ls", "--json"))
    for words in (["ls"], ["show", "s"], ["facts", "s"], ["tail", session["last_run_id"]], ["stats"]):
        assert shell.ok(*words)
        assert state() == before
    assert session["last_run_state"] == "interrupted"
    # a program that writes still finds all of it
    connection = sqlite3.connect(tmp_path / "thence.db")
    assert connection.execute("SELECT count(*) FROM facts").fetchone()[0] > 1
    connection.close()
    assert not (tmp_path / "thence.db-wal").exists()


def test_whoever_reads_to_the_end_of_a_run_leaves_one_complete_file(shell, provider, live, tmp_path):
    """The owner goes in good order while we look: its -wal is folded in by whoever is last."""
    (session,) = json.loads(shell.ok("ls", "--json"))
    follower = shell.start("tail", session["last_run_id"])
    assert follower.stdout is not None and follower.stdout.read(10) == "prompt: He"
    live.send_signal(signal.SIGINT)
    assert live.wait(30) == 130
    assert follower.wait(30) == 0
    assert sorted(file.name for file in tmp_path.glob("thence.db-*") if "-gate" not in file.name) == []
