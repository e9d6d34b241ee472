"""``run`` and what can be seen meanwhile, in real processes against a provider on loopback."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import time

import pytest
from click.testing import CliRunner

from thence import Agent, SessionOptions
from thence.cli.app import cli
from thence.models.scripted import ScriptedReply
from thence.testing import ScriptedModel, reply


def test_a_run_with_a_call(shell, provider, tmp_path):
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    provider.answers = [{"call": "read", "args": {"path": "notes.txt"}}, "It says buy milk."]
    shell.env.update(provider.env())
    done = shell.run("run", "What do the notes say?", "-s", "mine", own=True)
    assert (done.returncode, done.stdout) == (0, "It says buy milk. \n"), done
    assert done.stderr.splitlines()[:2] == ["  > read path=notes.txt", "  < read Buy milk."]
    assert "completed: 1 call" in done.stderr and "thence run -s mine PROMPT" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_session_keeps_its_folder(shell, provider, tmp_path):
    (tmp_path / "ws").mkdir()
    provider.answers = ["One.", "Two.", "Three."]
    shell.env.update(provider.env())
    assert shell.run("run", "a", "-s", "mine", "-w", "ws").returncode == 0
    assert shell.run("run", "b", "-s", "mine").returncode == 0
    (session,) = json.loads(shell.ok("ls", "--json"))
    assert (session["workspace"], session["runs_ever"]) == (str(tmp_path / "ws"), 2)
    assert shell.run("run", "c", "-s", "mine", "-w", ".", "--no-tools").returncode == 0
    (session,) = json.loads(shell.ok("ls", "--json"))
    assert session["workspace"] == str(tmp_path)


def test_json_of_a_run(shell, provider):
    provider.answers = ["All well.", "All well."]
    shell.env.update(provider.env())
    value = json.loads(shell.ok("run", "Well?", "--json"))
    assert (value["status"], value["text"].strip()) == ("completed", "All well.")
    events = [json.loads(line) for line in shell.ok("run", "Well?", "--nl").splitlines()]
    assert [event["type"] for event in events][:: len(events) - 1] == ["agent_start", "agent_end"]


def test_the_prompt_from_standard_input(shell, provider, tmp_path):
    provider.answers = ["Read."]
    shell.env.update(provider.env())
    (tmp_path / "prompt").write_text("From a file.")
    with (tmp_path / "prompt").open() as source:
        done = shell.run("run", "-", "-s", "x", stdin=source)
    assert (done.returncode, done.stdout) == (0, "Read. \n")
    assert json.loads(shell.ok("runs", "x", "--json"))[0]["prompt"] == "From a file."


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", " "], 2, "PROMPT"),
        (["run", "x", "-m", "nobody:x"], 2, "--model"),
        (["run", "x", "-m", "openai:x"], 1, "no API key: set the environment variable OPENAI_API_KEY"),
        (["run", "x", "-s", " "], 2, "session_id"),
        (["run", "x", "--db", "no/such/folder/x.db", "-m", "openai:x"], 1, "folder"),
    ],
)
def test_a_run_that_cannot_begin(tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if "folder" in message:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
    elif message == "session_id":
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        words = [*words, "-m", "openai:x"]
    result = CliRunner().invoke(cli, words, prog_name="thence")
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr
    assert not list(tmp_path.glob("*.db")) or message == "session_id"


def test_a_failing_provider(shell, provider):
    provider.answers = [401]
    shell.env.update(provider.env())
    done = shell.run("run", "x", "-s", "s", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["error"]["code"] == "LLM_ERROR"
    provider.answers = ["Fine."]
    assert shell.run("run", "x", "-s", "s").returncode == 0


def test_a_busy_session(shell, live):
    done = shell.run("run", "-s", "busy", "Me too.", "--json")
    assert (done.returncode, done.stdout) == (4, "")
    assert json.loads(done.stderr)["error"]["code"] == "SESSION_BUSY"


def test_json_errors_have_the_ids(shell, provider):
    """Who reads JSON needs the run, to look at it or to go on with it."""
    provider.answers = [401]
    shell.env.update(provider.env())
    error = json.loads(shell.run("run", "x", "-s", "s", "--json").stderr)["error"]
    (run,) = json.loads(shell.ok("runs", "s", "--json"))
    assert (error["session_id"], error["run_id"]) == ("s", run["id"])
    assert f"thence resume {run['id']}" in error["hint"]


def test_ctrl_c_in_json_has_the_ids_and_how_to_go_on(shell, provider):
    shell.env.update(provider.env())
    provider.answers = [None]
    process = shell.start("run", "x", "-s", "s", "--nl")
    assert provider.hanging.wait(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    error = json.loads(err.splitlines()[-1])["error"]
    (run,) = json.loads(shell.ok("runs", "s", "--json"))
    assert (error["code"], error["session_id"], error["run_id"]) == ("RUN_INTERRUPTED", "s", run["id"])
    assert f"thence resume {run['id']}\n" in error["hint"]


@pytest.mark.parametrize("place", ["thence.cli.running.resolve_model", "thence.Agent.session", "thence.Session.stream"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_before_there_is_a_run_says_so(tmp_path, monkeypatch, place, form):
    def pressed(*words: object, **more: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel([reply("x")]))
    monkeypatch.setattr(place, pressed)
    result = CliRunner().invoke(cli, ["run", "x", *form], prog_name="thence")
    assert (result.exit_code, result.stdout) == (130, ""), result.output
    assert "nothing was started" in result.stderr and "resume" not in result.stderr
    if form:
        assert json.loads(result.stderr)["error"]["code"] == "RUN_INTERRUPTED"


def test_ctrl_c_just_after_the_run_began_names_it(tmp_path, monkeypatch):
    """No event was seen yet, and there is a run all the same."""

    def pressed(stream: object) -> object:
        raise KeyboardInterrupt

    def slow(request: object) -> ScriptedReply:
        time.sleep(3)
        return reply("x")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel([slow]))
    monkeypatch.setattr("thence.host.streams.RunStream.__next__", pressed)
    result = CliRunner().invoke(cli, ["run", "x", "-s", "s"], prog_name="thence")
    with Agent(tmp_path / "thence.db") as agent:
        runs = agent.resume_session("s").runs()
    assert result.exit_code == 130 and len(runs) < 2
    assert (f"run {runs[0].id} was interrupted" if runs else "nothing was started") in result.stderr


def test_a_budget_that_denies(tmp_path, monkeypatch):
    class Deny:
        def check_before_llm(self, session_id: str, estimated_tokens: int) -> object:
            return {"decision": "deny", "resource": "tokens", "reason": "none left"}

    class AgentWithGuard(Agent):
        def session(self, workspace=".", options=None):
            options = options or SessionOptions()
            options.budget_guard = Deny()
            return super().session(workspace, options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("thence.cli.running.Agent", AgentWithGuard)
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel([reply("x")]))
    result = CliRunner().invoke(cli, ["run", "x", "-s", "s"], prog_name="thence")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "Budget exhausted on 'tokens': none left" in result.stderr
    monkeypatch.setattr("thence.cli.running.Agent", Agent)
    result = CliRunner().invoke(cli, ["run", "x", "-s", "s"], prog_name="thence")
    assert result.exit_code == 2 and "--unguarded" in result.stderr
    result = CliRunner().invoke(cli, ["run", "x", "-s", "s", "--unguarded"], prog_name="thence")
    assert (result.exit_code, result.stdout) == (0, "x\n")


def test_reading_while_a_run_is_live(shell, live, provider):
    (session,) = json.loads(shell.ok("ls", "--json"))
    assert (session["session_id"], session["last_run_state"]) == ("busy", "executing")
    run_id = session["last_run_id"]
    for words in (
        ["show", "busy"],
        ["show", run_id],
        ["runs", "busy"],
        ["facts", "busy"],
        ["events", run_id],
        ["stats"],
    ):
        assert shell.ok(*words)
    assert "at work now" in shell.ok("show", "busy")
    assert "tokens   not summed up before it ends or parks\n" in shell.ok("show", run_id)
    assert json.loads(shell.ok("stats", "--json"))["living_owners"] == 1
    follower = shell.start("tail", run_id)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "prompt: Hello there.\n"
    assert follower.stdout.read(10) == "Two words "
    live.send_signal(signal.SIGINT)
    out, _ = follower.communicate(timeout=30)
    assert out.splitlines()[-1] == f"{run_id}: interrupted"
    assert follower.returncode == 0


def test_ctrl_c_interrupts_and_says_how_to_go_on(shell, live, provider):
    live.send_signal(signal.SIGINT)
    out, err = live.communicate(timeout=30)
    assert (live.returncode, out) == (130, "")
    (session,) = json.loads(shell.ok("ls", "--json"))
    run_id = session["last_run_id"]
    assert session["last_run_state"] == "interrupted"
    assert f"run {run_id} was interrupted" in err and f"thence show {run_id}\n" in err
    assert f"thence resume {run_id}\n" in err and "--settle" in err
    assert "Traceback" not in err
    refused = shell.run("run", "-s", "busy", "Go on.")
    assert refused.returncode == 1 and "--settle" in refused.stderr and f"thence resume {run_id}\n" in refused.stderr
    provider.answers = ["Going on."]
    went_on = shell.run("run", "-s", "busy", "--settle", "Go on.")
    assert (went_on.returncode, went_on.stdout) == (0, "Going on. \n")
    # asked for once, not from now on
    assert json.loads(shell.ok("show", "busy", "--json"))["options"] == {}


def test_a_killed_run_shows_as_interrupted_and_reading_changes_nothing(shell, live, tmp_path, listing):
    live.kill()
    live.wait()
    owners = [name for name in os.listdir(tmp_path) if "-owner-" in name]
    assert len(owners) == 1
    facts = shell.ok("facts", "busy", "--nl")
    assert json.loads(shell.ok("runs", "busy", "--json"))[0]["state"] == "interrupted"
    assert "gone (interrupted)" in shell.ok("show", "busy")
    assert shell.ok("tail", json.loads(shell.ok("ls", "--json"))[0]["last_run_id"]).endswith(": interrupted\n")
    assert [name for name in os.listdir(tmp_path) if "-owner-" in name] == owners
    assert shell.ok("facts", "busy", "--nl") == facts


def test_an_owner_that_cannot_be_asked(shell, live, tmp_path):
    (owner,) = tmp_path.glob("*-owner-*")
    moved = owner.rename(tmp_path / "elsewhere")
    # opening it fails, for root too, and not because it is missing
    owner.symlink_to(owner)
    assert json.loads(shell.ok("ls", "--json"))[0]["last_run_state"] == "unknown owner"
    assert "unknown owner" in shell.ok("ls")
    assert "cannot be asked" in shell.ok("show", "busy")
    owner.unlink()
    moved.rename(owner)
    assert json.loads(shell.ok("ls", "--json"))[0]["last_run_state"] == "executing"


def test_a_second_ctrl_c_leaves_at_once(shell, provider, tmp_path):
    shell.env.update(provider.env())
    # a tool that lets nobody go: reading from a pipe that nobody writes
    (tmp_path / "slow.py").write_text(
        "import time, sys\n"
        "from thence.cli import running, main\n"
        "def nap() -> str:\n    time.sleep(60)\n    return ''\n"
        "running.workspace_tools = lambda: (nap,)\n"
        "main()\n"
    )
    provider.answers = [{"call": "nap", "args": {}}]
    process = shell.start("run", "-s", "s", "x", program=("slow.py",), own=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "  > nap\n"
    process.send_signal(signal.SIGINT)
    while "once more" not in process.stderr.readline():
        pass
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert time.monotonic() - began < 3
    assert json.loads(shell.ok("ls", "--json"))[0]["last_run_state"] == "interrupted"


def test_whoever_reads_us_may_leave(shell, live, filled, provider):
    for words in (["facts", "t-0", "--nl"], ["events", "run-t-1"], ["tail", "run-t-1"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = shell.run(*words, stdout=writing)
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_run_whose_reader_leaves_is_interrupted(shell, provider):
    shell.env.update(provider.env())
    provider.answers = ["one two three"]
    reading, writing = os.pipe()
    os.close(reading)
    done = shell.run("run", "-s", "s", "x", stdout=writing)
    os.close(writing)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert "whoever read the output has left: run run-" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_output_that_cannot_be_written(shell, provider, filled):
    """A full disk is told in words, by every command, and a run that cannot be shown is interrupted."""
    shell.env.update(provider.env())
    provider.answers = [None]
    with open("/dev/full", "w") as full:
        for words in (["facts", "t-0", "--nl"], ["ls"], ["show", "t-0", "--json"]):
            done = shell.run(*words, stdout=full)
            assert done.returncode == 1 and "could not be written: No space left" in done.stderr, done
            assert "Traceback" not in done.stderr
        done = shell.run("run", "-s", "s", "x", stdout=full)
    assert done.returncode == 1 and "could not be written (No space left on device): run run-" in done.stderr, done
    assert "Traceback" not in done.stderr and "thence resume run-" in done.stderr


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal_only(shell, provider, tmp_path, no_color):
    (tmp_path / "notes.txt").write_text("Buy \x1b[31mmilk.\n")
    provider.answers = [{"call": "read", "args": {"path": "notes.txt"}}, "Milk \x1b[31m\x07now"]
    shell.env.update({**provider.env(), "TERM": "xterm", **({"NO_COLOR": "1"} if no_color else {})})
    master, slave = pty.openpty()
    process = shell.start("run", "x", stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # how a terminal says that nobody writes any more
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert process.wait(30) == 0
    assert b"Milk \\x1b[31m\\x07now" in seen and b"Buy \\x1b[31mmilk." in seen
    assert (b"\x1b[2m" in seen) is not no_color
    assert b"\x1b[31m" not in seen and b"\x07" not in seen


def test_the_file_that_run_makes_is_plain_sqlite(shell, provider, tmp_path):
    provider.answers = ["Done."]
    shell.env.update(provider.env())
    shell.run("run", "x", "-s", "s")
    connection = sqlite3.connect(tmp_path / "thence.db")
    assert connection.execute("SELECT session_id, state FROM runs").fetchall() == [("s", "completed")]
    connection.close()
