"""``resume`` and ``cancel``: real processes that die, live on, are stuck or are asked to end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from thence import Agent, SessionOptions

DIES = """
import os, signal, sys
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply

path, session_id, tool = sys.argv[1:]
count = 0

def read(path: str) -> str:
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return "landed"

read.__name__ = tool
calls = [call(tool, {"path": "a.txt"}), call(tool, {"path": "notes.txt"})]
with Agent(path, model=ScriptedModel([reply(calls=calls)]), tools=[read]) as agent:
    class Guard:
        def check_before_llm(self, session_id, estimated_tokens): return None
    options = SessionOptions(session_id=session_id, max_parallel_tools=1)
    if session_id.startswith("guarded"):
        options.budget_guard = Guard()
    agent.session(".", options).send("Read them.")
"""

MINE = "--reconfigured"
"""Goes on with the model and the tools that are here: the process that died had others."""


@pytest.fixture
def crashed(shell, provider, tmp_path):
    """``crashed("s")``: a process that died in its second call of ``read``; the id of its run."""
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    shell.env.update(provider.env())

    def make(session_id: str, tool: str = "read") -> str:
        process = shell.start("thence.db", session_id, tool, program=("-c", DIES))
        assert process.wait(60) == -signal.SIGKILL, process.stderr.read()
        return last_run(shell, session_id)["last_run_id"]

    return make


def last_run(shell, session_id: str) -> dict[str, str]:
    return next(one for one in json.loads(shell.ok("ls", "--json")) if one["session_id"] == session_id)


def results(shell, session_id: str) -> list[str]:
    facts = json.loads(shell.ok("facts", session_id, "--json"))
    return [fact["payload"]["parts"][0]["text"] for fact in facts if fact["kind"] == "tool.result"]


def test_a_killed_run_goes_on(shell, provider, crashed):
    run_id = crashed("s")
    provider.answers = ["Both read."]
    done = shell.run("resume", run_id, MINE)
    assert (done.returncode, done.stdout) == (0, "Both read. \n"), done
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"goes on as run-\S+, model m", lines[0])
    assert "  > read path=notes.txt" in lines and "  > read path=a.txt" not in lines
    assert any(line.startswith("completed: 2 calls") for line in lines)
    assert results(shell, "s") == ["landed", "Buy milk.\n"]
    old, new = json.loads(shell.ok("runs", "s", "--json"))
    assert (old["state"], new["state"], new["resumed_from"]) == ("superseded", "completed", run_id)
    # once more: its recorded answer, and nobody is asked (the provider has no answer left)
    for form in ([], ["--json"], ["--nl"]):
        again = shell.run("resume", run_id, *form)
        assert again.returncode == 0 and "Both read." in again.stdout, again
        assert ("nothing was called" in again.stderr) is (form == [])
        assert not form or json.loads(again.stdout)["replayed"] is True
    assert len(json.loads(shell.ok("runs", "s", "--json"))) == 2


ACCOUNTANT = """
import os, signal
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel

class Dies:
    name = "gpt-big"
    def stream(self, request):
        os.kill(os.getpid(), signal.SIGKILL)
        yield

with Agent("thence.db", model=Dies(), tools=[TOOLS], instructions="You are the accountant.") as agent:
    agent.session(".", SessionOptions(session_id="s")).send("Which invoices are due?")
"""


@pytest.mark.parametrize("everything", [False, True])
def test_another_programs_run_is_left_to_it(shell, provider, everything):
    """It would go on with another model, without its instructions, with other tools: only when somebody says so."""
    shell.env.update(provider.env())
    program = ACCOUNTANT.replace("TOOLS", "pay").replace("class Dies", "def pay() -> str: ...\nclass Dies")
    assert shell.start(program=("-c", program)).wait(60) == -signal.SIGKILL
    run_id = last_run(shell, "s")["last_run_id"]
    facts = shell.ok("facts", "s", "--nl")
    words = ["--all"] if everything else [run_id]
    for more in ([], ["-m", "openai:m"]):
        done = shell.run("resume", *words, *more)
        assert done.returncode == 1, done
        for told in ("instructions (here: none)", "the tools pay (here: ls, read, glob, grep)", "--reconfigured"):
            assert told in done.stderr, done
        assert ("the model gpt-big (here: m;" in done.stderr) == (more == [])
    as_json = shell.run("resume", *words, "--json")
    found = json.loads(as_json.stdout)[0] if everything else json.loads(as_json.stderr)
    assert found["error"]["code"] == "OTHER_CONFIGURATION"
    assert shell.ok("facts", "s", "--nl") == facts
    provider.answers = ["None is due."]
    done = shell.run("resume", *words, MINE)
    assert done.returncode == 0 and "None is due." in done.stdout and "model m" in done.stderr, done


def test_a_run_of_ours_needs_the_model_and_the_tools_it_had(shell, provider):
    shell.env.update(provider.env())
    provider.answers = [401]
    assert shell.run("run", "x", "-s", "s", "-m", "openai:other", "--no-tools").returncode == 1
    run_id = last_run(shell, "s")["last_run_id"]
    refused = shell.run("resume", run_id)
    assert refused.returncode == 1 and "the model other (here: m; -m MODEL chooses it)" in refused.stderr, refused
    assert "the tools none (here: ls, read, glob, grep)" in refused.stderr
    provider.answers = ["Fine."]
    done = shell.run("resume", run_id, "-m", "openai:other", "--no-tools")
    assert (done.returncode, done.stdout) == (0, "Fine. \n"), done


def test_the_forms_of_a_resume(shell, provider, crashed):
    provider.answers = ["One.", "Two."]
    value = json.loads(shell.ok("resume", crashed("a"), "--json", MINE))
    assert (value["session_id"], value["status"], value["text"].strip()) == ("a", "completed", "One.")
    events = [json.loads(line) for line in shell.ok("resume", crashed("b"), "--nl", MINE).splitlines()]
    assert events[0]["type"] == "agent_start" and events[-1]["type"] == "agent_end"


def test_an_answer_whose_events_are_not_kept_is_printed_once(shell, provider, crashed, tmp_path):
    run_id = crashed("s")
    with Agent(tmp_path / "thence.db") as agent:
        agent.resume_session("s", SessionOptions(retention_limits={"max_events_per_run": 0}))
    provider.answers = ["Both read."]
    done = shell.run("resume", run_id, MINE)
    assert (done.returncode, done.stdout.count("Both read.")) == (0, 1), done


def test_all_of_a_file(shell, provider, crashed):
    assert shell.run("resume", "--all").returncode == 3
    first, second, foreign = crashed("a"), crashed("b"), crashed("c", tool="book")
    provider.answers = ["One.", "Two."]
    done = shell.run("resume", "--all", MINE)
    assert done.returncode == 1
    assert re.search(rf"^{first} +completed +One\.$", done.stdout, re.MULTILINE)
    assert re.search(rf"^{second} +completed +Two\.$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("3 interrupted runs: 2 completed, 1 not\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"{foreign}: session 'c' has open calls of tools that are not here (book)" in done.stderr
    # nothing was written for it
    assert last_run(shell, "c")["last_run_state"] == "interrupted"
    (left,) = json.loads(shell.run("resume", "--all", "--json", MINE).stdout)
    assert (left["run_id"], left["result"], left["error"]["code"]) == (foreign, None, "FOREIGN_TOOLS")
    assert shell.run("resume", foreign).returncode == 1
    assert shell.run("run", "-s", "c", "--settle", "Go on.", "-m", "openai:m").returncode == 1  # no answer left


def test_nothing_to_resume(shell, filled):
    shell.env["OPENAI_API_KEY"] = "none"
    done = shell.run("resume", "--all", "-m", "openai:m")
    assert (done.returncode, done.stdout) == (0, "") and "nothing to resume" in done.stderr
    assert json.loads(shell.ok("resume", "--all", "-m", "openai:m", "--json")) == []


def test_a_guarded_session_needs_a_word(shell, provider, crashed):
    run_id = crashed("guarded")
    for words in (["resume", run_id, MINE], ["resume", "--all", MINE]):
        done = shell.run(*words)
        assert done.returncode == 2 and "--unguarded" in done.stderr, done
    provider.answers = ["Both read."]
    assert shell.run("resume", "--all", "--unguarded", MINE).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "RUN, or give --all"),
        (["x", "--all"], 2, "RUN, or give --all"),
        (["--all", "--force"], 2, "--force"),
        (["--all", "-w", "."], 2, "--workspace"),
        (["nobody"], 3, "Run not found: nobody"),
        (["t-0"], 3, "that is a session"),
        (["run-t-1", "--db", "nothing.db"], 3, "no database"),
        (["run-t-1", "-m", "nobody:x"], 2, "--model"),
    ],
)
def test_what_cannot_be_resumed(shell, filled, listing, tmp_path, words, code, message):
    before = listing(tmp_path)
    done = shell.run("resume", *words)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr, done
    assert listing(tmp_path) == before


def test_a_run_that_failed_goes_on_at_the_failed_step(shell, provider):
    shell.env.update(provider.env())
    provider.answers = [401]
    failed = shell.run("run", "x", "-s", "s")
    assert failed.returncode == 1
    run_id = last_run(shell, "s")["last_run_id"]
    assert f"thence resume {run_id}\n" in failed.stderr
    provider.answers = ["Fine."]
    done = shell.run("resume", run_id)
    assert (done.returncode, done.stdout) == (0, "Fine. \n"), done


def test_the_printed_line_resumes(shell, provider, live):
    live.send_signal(signal.SIGINT)
    _, err = live.communicate(timeout=30)
    line = re.search(r"^resume it: +\S+ -m thence (resume .*)$|^resume it: +thence (resume .*)$", err, re.MULTILINE)
    assert line is not None, err
    provider.answers = ["Two words and the rest."]
    done = shell.run(*(line[1] or line[2]).split())
    assert (done.returncode, done.stdout) == (0, "Two words and the rest. \n"), done


def test_the_printed_line_has_the_options_that_were_given(shell, provider):
    shell.env.update(provider.env())
    provider.answers = [None]
    process = shell.start("run", "x", "-s", "s", "-m", "openai:other", "--no-tools")
    assert provider.hanging.wait(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    run_id = last_run(shell, "s")["last_run_id"]
    assert f"thence resume {run_id} -m openai:other --no-tools\n" in err


def test_ctrl_c_in_a_resume(shell, provider, crashed):
    run_id = crashed("s")
    provider.answers = [None]
    process = shell.start("resume", run_id, MINE)
    assert process.stdout is not None
    assert process.stdout.read(10) == "Two words "
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    newest = last_run(shell, "s")
    assert (process.returncode, newest["last_run_state"]) == (130, "interrupted")
    assert newest["last_run_id"] != run_id and f"thence resume {newest['last_run_id']} {MINE}\n" in err
    assert "Traceback" not in err
    provider.released.set()
    provider.answers = ["Both read."]
    # the first one's id goes on where the second stopped
    assert shell.run("resume", run_id, MINE).stdout == "Both read. \n"
    assert results(shell, "s") == ["landed", "Buy milk.\n"]


def test_ctrl_c_in_a_resume_of_all(shell, provider, crashed):
    crashed("a")
    crashed("b")
    provider.answers = [None]
    process = shell.start("resume", "--all", MINE)
    assert provider.hanging.wait(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "interrupted in session a" in err and f"thence resume --all {MINE}\n" in err and "Traceback" not in err
    provider.released.set()
    provider.answers = ["One.", "Two."]
    assert shell.run("resume", "--all", MINE).returncode == 0


def test_interrupted_by_somebody_else_a_resume_ends(shell, provider, crashed, tmp_path):
    provider.answers = [None]
    process = shell.start("resume", crashed("s"), MINE)
    assert provider.hanging.wait(30)
    with Agent(tmp_path / "thence.db") as agent:
        assert agent.resume_session("s").interrupt("enough")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "thence resume run-" in err, err


def test_a_living_owner_is_asked_for(shell, provider, live):
    run_id = last_run(shell, "busy")["last_run_id"]
    busy = shell.run("resume", run_id)
    assert busy.returncode == 4 and f"thence resume {run_id} --force" in busy.stderr
    # nobody is there to say yes
    declined = shell.run("resume", run_id, "--force")
    assert declined.returncode == 1 and f"pid {live.pid}" in declined.stderr and "-y" in declined.stderr
    assert "DECLINED" in shell.run("resume", run_id, "--force", "--json").stderr
    assert last_run(shell, "busy")["last_run_state"] == "executing"
    provider.answers = ["Taken over."]
    taken = shell.run("resume", run_id, "--force", "-y")
    assert (taken.returncode, taken.stdout) == (0, "Taken over. \n"), taken
    provider.released.set()
    _, err = live.communicate(timeout=60)
    assert live.returncode == 4, err
    assert [run["state"] for run in json.loads(shell.ok("runs", "busy", "--json"))] == ["superseded", "completed"]


@pytest.mark.parametrize("key", ["y\n", "n\n", None])
def test_the_question(shell, provider, live, key):
    run_id = last_run(shell, "busy")["last_run_id"]
    provider.answers = ["Taken over."]
    master, slave = pty.openpty()
    process = shell.start("resume", run_id, "--force", stdin=slave)
    os.close(slave)
    assert process.stderr is not None
    asked = ""
    while "over? [y/N]:" not in asked:
        asked += process.stderr.read(1)
    assert max(map(len, asked.splitlines())) <= 100
    if key is not None:
        os.write(master, key.encode())
    while key is None and process.poll() is None:
        # one that comes just before Python begins to read does not wake it
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
    out, _ = process.communicate(timeout=30)
    os.close(master)
    expected = {"y\n": (0, "Taken over. \n"), "n\n": (1, ""), None: (130, "")}
    assert (process.returncode, out) == expected[key]


def test_force_leaves_alone_what_is_not_of_that_run(shell, filled, provider, tmp_path):
    """The forced run ended long ago: whoever works in its session now is not displaced."""
    shell.env.update(provider.env())
    provider.answers = [None]
    process = shell.start("run", "-s", "t-0", "Go on.")
    assert provider.hanging.wait(30)
    done = shell.run("resume", "run-t-1", "--force", "-y")
    assert done.returncode == 4, done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err


def test_cancel_from_another_process(shell, provider, live):
    run_id = last_run(shell, "busy")["last_run_id"]
    done = shell.run("cancel", run_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{run_id}: cancelled\n", "")
    _, err = live.communicate(timeout=30)
    assert live.returncode == 1 and "cancelled" in err
    assert json.loads(shell.ok("cancel", run_id, "--json"))["status"] == "cancelled"
    provider.answers = ["Next."]
    assert shell.run("run", "-s", "busy", "Next?").stdout == "Next. \n"
    resumed = shell.run("resume", run_id)
    assert (resumed.returncode, "cancelled" in resumed.stderr) == (1, True)


def test_a_guarded_run_is_cancelled_too(shell, provider, tmp_path):
    program = """
import sys
from thence import Agent, SessionOptions
class Guard:
    def check_before_llm(self, session_id, estimated_tokens): return None
options = SessionOptions(session_id="g", budget_guard=Guard())
with Agent("thence.db", model="openai:m") as agent:
    print(agent.session(".", options).send("x").status)
"""
    shell.env.update(provider.env())
    provider.answers = [None]
    process = shell.start(program=("-c", program))
    assert provider.hanging.wait(30)
    assert shell.run("cancel", last_run(shell, "g")["last_run_id"]).returncode == 0
    assert process.communicate(timeout=30)[0] == "cancelled\n"


def test_what_cannot_be_cancelled(shell, crashed, filled):
    dead = crashed("dead")
    for run_id, code, message in (
        (dead, 1, "nobody works on run"),
        ("run-t-1", 1, "has ended already (completed)"),
        ("nobody", 3, "Run not found"),
        ("t-0", 3, "that is a session"),
    ):
        done = shell.run("cancel", run_id)
        assert (done.returncode, done.stdout) == (code, "") and message in done.stderr, done
        assert json.loads(shell.run("cancel", run_id, "--json").stderr)["error"]["code"]


def test_a_process_that_does_not_answer(shell, live, monkeypatch):
    run_id = last_run(shell, "busy")["last_run_id"]
    live.send_signal(signal.SIGSTOP)
    try:
        program = "from thence.cli import stopping, main; stopping._ANSWER_WAIT_S = 0.2; main()"
        done = shell.run("cancel", run_id, program=("-c", program))
        assert done.returncode == 4 and "has not answered" in done.stderr, done
    finally:
        live.send_signal(signal.SIGCONT)
    assert live.wait(30) == 1
    assert last_run(shell, "busy")["last_run_state"] == "cancelled"


def test_show_says_how_to_resume(shell, provider, crashed):
    run_id = crashed("s")
    shown = shell.ok("show", run_id)
    assert f"agent.recover(), or session.resume_run('{run_id}')" in shown and "thence resume" not in shown
    for words in ([], ["--no-tools"]):
        provider.answers = [None]
        process = shell.start("run", "x", "-s", "mine", "--settle", *words)
        assert provider.hanging.wait(30)
        provider.hanging.clear()
        process.kill()
        process.wait()
        run_id = last_run(shell, "mine")["last_run_id"]
        assert f"{' '.join(['thence resume', run_id, *words])}\n" in shell.ok("show", run_id)


def test_tools_that_nobody_has_are_no_obstacle(shell, provider, tmp_path):
    """The model called a tool that never was: the refusal is given here as well as anywhere."""
    program = """
import os, signal, sys
from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, call, reply
def read(path: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
calls = [call("read", {"path": "notes.txt"}), call("malloc")]
with Agent("thence.db", model=ScriptedModel([reply(calls=calls)]), tools=[read]) as agent:
    agent.session(".", SessionOptions(session_id="s")).send("x")
"""
    (tmp_path / "notes.txt").write_text("Buy milk.\n")
    shell.env.update(provider.env())
    assert shell.start(program=("-c", program)).wait(60) == -signal.SIGKILL
    provider.answers = ["Fine."]
    done = shell.run("resume", last_run(shell, "s")["last_run_id"], MINE)
    assert (done.returncode, done.stdout) == (0, "Fine. \n"), done
    milk, none = results(shell, "s")
    assert milk == "Buy milk.\n" and "malloc" in none
