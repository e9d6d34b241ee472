"""``steer`` and ``interrupt``: real processes that are spoken to, and asked to stop."""

from __future__ import annotations

import json
import time

import pytest

LIVE = """
import sys, threading
from thence import Agent, RunInterrupted, SessionOptions
from thence.testing import ScriptedModel, call, reply

class Guard:
    def check_before_llm(self, session_id, estimated_tokens): return None

gate = threading.Event()
def hold() -> str:
    print("holding", flush=True)
    gate.wait(60)
    return "ok"

def listen():
    sys.stdin.readline()
    gate.set()

threading.Thread(target=listen, daemon=True).start()
model = ScriptedModel([reply("", [call("hold")]), reply("Done.")])
with Agent("thence.db", model=model, tools=[hold]) as agent:
    session = agent.session(".", SessionOptions(session_id="s", budget_guard=Guard()))
    try:
        session.send("Go.")
        print([message.text for message in model.requests[-1].messages][-1])
    except RunInterrupted as error:
        print(error.reason)
"""


@pytest.fixture
def live(shell):
    process = shell.start(program=("-c", LIVE), stdin=-1)
    assert process.stdout.readline() == "holding\n"
    yield process
    if process.poll() is None:
        process.communicate("\n", timeout=60)


def run_of(shell):
    (run,) = json.loads(shell.ok("runs", "s", "--json"))
    return run["id"]


def release(live):
    """Let its tool go, if it still runs; what it said at its end."""
    out, _ = live.communicate("\n", timeout=60)
    return out.splitlines()


@pytest.mark.parametrize("by", ["run", "session"])
def test_a_live_run_is_told(shell, live, by):
    run_id = run_of(shell)
    target = run_id if by == "run" else "s"
    assert shell.ok("steer", target, "Be brief.") == f"{run_id}: told; it reads it at its next safe point\n"
    told = json.loads(shell.ok("steer", target, "Be briefer.", "--request-id", "q", "--json"))
    assert told == {"session_id": "s", "run_id": run_id, "request_id": "q", "told": True}
    shell.ok("steer", target, "Not this.", "--request-id", "q")
    time.sleep(0.3)  # while it works it looks every 250 ms (§8)
    assert release(live) == ["Be briefer."]
    assert "[steer] Be brief." in shell.ok("facts", "s")
    for words in (("steer", target, "x"), ("interrupt", target)):
        done = shell.run(*words)
        assert (done.returncode, done.stdout) == (1, "") and "has ended already (completed)" in done.stderr, done
        assert json.loads(shell.run(*words, "--json").stderr)["error"]["code"] == "RUN_NOT_LIVE"


@pytest.mark.parametrize("by", ["run", "session"])
def test_a_live_run_is_interrupted_and_says_why(shell, live, by):
    run_id = run_of(shell)
    target = run_id if by == "run" else "s"
    done = shell.run("interrupt", target, "--reason", "the node is drained")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith(f"{run_id}: interrupted; to go on: from the program that began it: ")
    assert f"session.resume_run('{run_id}')" in done.stdout
    assert release(live) == ["the node is drained"]
    assert '"reason": "the node is drained"' in shell.ok("events", run_id, "--nl")
    for words in (("steer", target, "x"), ("interrupt", target)):
        again = shell.run(*words)
        assert again.returncode == 1 and "nobody works on run" in again.stderr, again


def test_what_cannot_be_told(shell, filled):
    for words, code, message in (
        (("steer", "nobody", "x"), 3, "no run and no session is called nobody"),
        (("interrupt", "nobody"), 3, "no run and no session is called nobody"),
        (("steer", "t-0", "x"), 1, "has ended already"),
        (("interrupt", "t-0"), 1, "has ended already"),
    ):
        done = shell.run(*words)
        assert (done.returncode, done.stdout) == (code, "") and message in done.stderr, done


def test_what_cannot_be_said(shell, live):
    for words in (("s", "  "), ("s", "x", "--request-id", " ")):
        done = shell.run("steer", *words)
        assert done.returncode == 2 and "must not be empty" in done.stderr, done
    release(live)
