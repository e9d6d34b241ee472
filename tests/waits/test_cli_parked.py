"""`run`, `resume`, `show` and `cancel` of parked runs (§13): real processes, Shows 4."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thence import Agent, SessionOptions
from thence.cli.app import cli
from thence.testing import ScriptedModel, call, reply

from .kit import C0, C1, Plain, asks

W = f"{C0}-w1"


@pytest.fixture
def unguarded(shell, provider, quick: Path) -> Callable[[str], str]:
    """``unguarded("s")``: a run that is parked before its `read`, by a process that was killed; its id."""
    (quick / "notes.txt").write_text("Buy milk.\n")
    shell.folder = quick
    shell.env.update(provider.env())

    def make(session_id: str) -> str:
        process = shell.start("thence.db", session_id, program=("-c", PARKS))
        out, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
        return str(out.strip())

    return make


PARKS = """
import os, signal, sys
from thence import Agent, PermissionPolicy, SessionOptions
from thence.testing import ScriptedModel, call, reply

def read(path: str) -> str:
    raise AssertionError("not approved")

path, session_id = sys.argv[1:]
agent = Agent(path, model=ScriptedModel([reply(calls=[call("read", {"path": "notes.txt"})])]), tools=[read])
options = SessionOptions(session_id=session_id, permission_policy=PermissionPolicy(ask=("read",)))
result = agent.session(".", options).send("Read them.")
assert result.status == "parked"
print(result.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_shows_4_parked_approved_and_gone_on_by_three_processes(shell, provider, unguarded, quick):
    """Shows 4: a run parked for approval, its process gone; approved by CLI from a second process; a third goes on:
    the tool ran once, same run id."""
    run_id = unguarded("s")
    waiting = shell.run("resume", run_id, "--unguarded", "--reconfigured")
    # parked is 8; that the session is taken by an open wait is 4: the contract allows to say either
    assert waiting.returncode in (4, 8) and W in waiting.stdout + waiting.stderr, waiting
    approved = shell.run("approve", run_id, "--by", "ann")
    assert approved.returncode == 0, approved
    provider.answers = ["They say: buy milk."]
    done_ = shell.run("resume", run_id, "--unguarded", "--reconfigured", "--json")
    assert done_.returncode == 0, done_
    value = json.loads(done_.stdout)
    assert (value["run_id"], value["status"], value["text"].strip()) == (run_id, "completed", "They say: buy milk.")
    with Plain(quick / "thence.db") as plain:
        assert plain.rows("SELECT run_id, state, tool_calls_count FROM runs") == [(run_id, "completed", 1)]
        [payload] = [json.loads(text) for (text,) in plain.rows("SELECT payload FROM facts WHERE kind = 'tool.result'")]
        assert payload["parts"][0]["text"] == "Buy milk.\n"
        said = [kind for (kind,) in plain.rows("SELECT type FROM events ORDER BY sequence")]
        assert said.count("tool_execution_start") == said.count("confirmation_received") == 1


def test_resume_of_a_session_with_a_policy_needs_a_word(shell, unguarded):
    """§2: the CLI has no policy to give; it refuses unless `--unguarded`."""
    run_id = unguarded("s")
    assert shell.run("approve", run_id).returncode == 0
    refused = shell.run("resume", run_id)
    assert refused.returncode == 1 and "--reconfigured --unguarded" in refused.stderr, refused
    refused = shell.run("resume", run_id, "--reconfigured")
    assert refused.returncode == 2 and "--unguarded" in refused.stderr, refused


def test_resume_all_goes_on_with_what_is_answered(shell, provider, unguarded, quick):
    """§7, §13: `resume --all` acts on every answered wait and leaves the others."""
    first, second = unguarded("a"), unguarded("b")
    assert shell.run("approve", first).returncode == 0
    provider.answers = ["One."]
    done_ = shell.run("resume", "--all", "--unguarded", "--reconfigured")
    assert "One." in done_.stdout and first in done_.stdout, done_
    with Plain(quick / "thence.db") as plain:
        assert dict(plain.rows("SELECT run_id, state FROM runs")) == {first: "completed", second: "parked"}


ONCE = """
import os, signal, sys
from thence import Agent, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

@tool(effect="once")
def read(path: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""

model = ScriptedModel([reply(calls=[call("read", {"path": "notes.txt"})])])
with Agent("thence.db", model=model, tools=[read]) as agent:
    agent.session(".", SessionOptions(session_id="s")).send("Read them.")
"""


def test_resume_that_parks_says_how_to_go_on(shell, provider, quick):
    """§13: 8 parked; the wait is printed; `answer` and `resume` bring it to its end."""
    shell.folder = quick
    shell.env.update(provider.env())
    process = shell.start(program=("-c", ONCE))
    assert process.wait(60) == -signal.SIGKILL, process.stderr.read()
    [run] = json.loads(shell.ok("runs", "s", "--json"))
    parked = shell.run("resume", run["id"], "--reconfigured")
    assert parked.returncode == 8 and W in parked.stdout + parked.stderr, parked
    assert "thence answer" in parked.stdout + parked.stderr
    newest = json.loads(shell.ok("runs", "s", "--json"))[-1]
    assert (newest["state"], newest["resumed_from"]) == ("parked", run["id"])
    assert shell.run("approve", W).returncode not in (0, 3, 8)
    value = json.dumps({"outcome": "done", "result": "Buy milk."})
    assert shell.run("answer", W, value, "--json-value", "-s", "s").returncode == 0
    provider.answers = ["Milk."]
    ended = shell.run("resume", run["id"], "--reconfigured")
    assert (ended.returncode, ended.stdout) == (0, "Milk. \n"), ended
    states = [one["state"] for one in json.loads(shell.ok("runs", "s", "--json"))]
    assert states == ["superseded", "completed"]


# ------------------------------------------------------------------ run


@pytest.fixture
def careful(monkeypatch, quick: Path) -> Callable[..., Result]:
    """`thence run` in this process, by a host whose policy asks before every `read`."""

    class Careful(Agent):
        def session(self, workspace=".", options=None):
            options = options or SessionOptions()
            options.permission_policy = asks("read")
            return super().session(workspace, options)

        def resume_session(self, session_id, options=None, **more):
            options = options or SessionOptions()
            options.permission_policy = asks("read")
            return super().resume_session(session_id, options, **more)

    script = [reply("I look.", calls=[call("read", {"path": "notes.txt"})]), reply("Milk.")]
    monkeypatch.chdir(quick)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("thence.cli.running.Agent", Careful)
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel(script))

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="thence")

    return run


def test_run_that_parks(careful, quick):
    """§13: exit 8; the wait and the lines that go on are printed; the next `run` of that session is busy: 4."""
    parked = careful("run", "Read them.", "-s", "s")
    assert parked.exit_code == 8, parked.output
    for words in (W, "read", "thence approve", "thence resume"):
        assert words in parked.stderr, parked.stderr
    busy = careful("run", "More?", "-s", "s")
    assert busy.exit_code == 4 and W in busy.stderr, busy.output
    assert careful("waits", "s").exit_code == 0


def test_run_that_parks_as_json(careful):
    """§13: one document that says so, with the waits; 8 all the same."""
    parked = careful("run", "Read them.", "-s", "s", "--json")
    assert parked.exit_code == 8, parked.output
    value = json.loads(parked.stdout)
    assert value["status"] == "parked" and [one["id"] for one in value["waits"]] == [W]


def test_a_parked_run_cannot_be_spoken_to_or_interrupted(file, invoke):
    """§13: nobody is asked, nothing is left behind for the run that goes on; what can be done is said."""
    run_id = file.park()
    for words in (["interrupt", run_id], ["steer", run_id, "Faster."]):
        refused = invoke(*words)
        assert refused.exit_code == 1 and "is parked" in refused.stderr, refused.output
        assert f"waits {run_id}\n" in refused.stderr
    with Plain(file.path) as plain:
        assert plain.one("SELECT count(*) FROM inbox") == 0
    assert "it waits:" in invoke("show", run_id).stdout


def test_show_and_runs_of_a_parked_run(file, invoke):
    """§13: a person sees that it is parked, not interrupted."""
    run_id = file.park("s", "look:0", "put:1", policy=asks("put"))
    assert json.loads(invoke("runs", "s", "--json").stdout)[0]["state"] == "parked"
    [info] = json.loads(invoke("ls", "--json").stdout)
    assert info["last_run_state"] == "parked"
    shown = invoke("show", run_id)
    assert shown.exit_code == 0 and "parked" in shown.stdout
    facts = [one["kind"] for one in json.loads(invoke("facts", "s", "--json").stdout)]
    assert facts[-1] == "wait.opened"
    assert [wait["id"] for wait in json.loads(invoke("waits", "--json").stdout)] == [f"{C1}-w1"]


def test_cancel_of_a_parked_run_by_cli(file, invoke):
    """§10: `cancel` ends it, though nobody works on it; then there is nothing to approve."""
    run_id = file.park()
    cancelled = invoke("cancel", run_id)
    assert cancelled.exit_code == 0, cancelled.output
    assert json.loads(invoke("runs", "s", "--json").stdout)[0]["state"] == "cancelled"
    assert invoke("approve", W).exit_code not in (0, 2) and file.answers() == []
