"""Cases from public reports about tools, threads and the life of processes: M01, M03, M04, M06."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from .kit import verify

FACES = ("sync", "async")


def run(face: str, body: str) -> str:
    """``body`` in one face: written with ``WAIT`` where the async face awaits."""
    agent = "AsyncAgent" if face == "async" else "Agent"
    text = body.replace("AGENT", agent).replace("WAIT ", "await " if face == "async" else "")
    return "async def main():\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "asyncio.run(main())\n"


@pytest.mark.parametrize("face", FACES)
def test_M01_a_background_process_that_inherits_the_pipes_holds_nothing_up(spawn, db, face):
    """A call is complete when its function returns, not when a pipe is at its end."""
    child = spawn(
        run(
            face,
            """
import subprocess
def start() -> str:
    return str(subprocess.Popen(["sleep", "60"]).pid)
agent = AGENT(db, model=ScriptedModel([reply(calls=[call("start")]), reply("Done.")]), tools=[start])
session = WAIT agent.session(".", options(session_id="s", tool_timeout_ms=2000))
begun = time.monotonic()
text = (WAIT session.send("Go.")).text
pid = [m.text for m in WAIT session.history() if m.role == "tool"][0]
say(json.dumps([text, pid, time.monotonic() - begun]))
os.kill(int(pid), signal.SIGKILL)
WAIT agent.close()
""",
        )
    )
    text, pid, took = json.loads(child.line())
    assert text == "Done." and pid.isdigit() and took < 20  # not the 60 s of the process
    child.finish()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_M03_opening_and_cancelling_leaves_nothing_behind(spawn, db):
    """Two hundred times: opened, cancelled somewhere on the way, closed. No descriptor and no thread stays."""
    child = spawn("""
import gc
def count():
    gc.collect()
    return [len(os.listdir("/proc/self/fd")), threading.active_count()]

async def once(turns):
    agent = AsyncAgent(db, model=ScriptedModel([reply("One.")]))
    async def use():
        session = await agent.session(".", options(session_id="s"))
        await session.facts()
        await session.send("Go.")
    task = asyncio.ensure_future(use())
    for _ in range(turns): await asyncio.sleep(0)
    task.cancel()
    try: await task
    except (asyncio.CancelledError, ThenceError): pass
    await agent.close()

async def main():
    for n in range(5): await once(n)
    await asyncio.sleep(0.2)
    before = count()
    for n in range(200): await once(n % 40)
    for _ in range(100):
        after = count()
        if after[0] <= before[0] + 2 and after[1] <= before[1]: break
        await asyncio.sleep(0.1)
    say(json.dumps([before, after]))
asyncio.run(main())
""")
    (fds, threads), (fds_after, threads_after) = json.loads(child.line(90))
    assert fds_after - fds <= 2 and threads_after - threads <= 0
    child.finish()
    verify(db)


@pytest.mark.parametrize("face", FACES)
def test_M04_a_hung_guard_does_not_keep_the_interpreter(spawn, db, face, measured):
    """Main returns without ``close``, one guard call hangs: out at once, code 0, what was acknowledged is there."""
    child = spawn(
        run(
            face,
            """
class Hung:
    def check_before_llm(self, session_id, estimated_tokens):
        if len(model.requests): time.sleep(60)
global agent, session
model = ScriptedModel([reply("One.")])
agent = AGENT(db, model=model)
session = WAIT agent.session(".", options(session_id="s", budget_guard=Hung(), budget_guard_timeout_ms=200))
say((WAIT session.send("Go.")).text)
try: WAIT session.send("Again.")
except BudgetExhausted as error: say(error.resource)
say(time.time())
""",
        ),
        own=True,
    )
    child.expect("One.")
    child.expect("budget_guard_timeout")
    at = float(child.line())
    child.finish(0)
    took = time.time() - at
    measured("seconds_until_exit", took)
    assert took < 10  # the guard sleeps for 60
    assert "Traceback" not in child.errors
    assert verify(db)["s"] == 5  # run.configured, the first turn, and the message of the second


def test_M06_ten_killed_runs_are_shown_as_interrupted_and_each_is_resumable_once(spawn, db):
    owner = spawn("""
@tool
def hold() -> str:
    say("holding")
    time.sleep(100)
    return ""
agent = Agent(db, model=ScriptedModel([reply("", [call("hold")])] * 10), tools=[hold])
for number in range(10):
    session = agent.session(".", options(session_id=f"s{number}"))
    threading.Thread(target=session.send, args=("Go.",), daemon=True).start()
time.sleep(100)
""")
    for _ in range(10):
        owner.expect("holding")
    owner.kill()
    survivor = spawn("""
@tool
def hold() -> str: return "held"
with Agent(db, model=ScriptedModel([reply("Resumed.")] * 10), tools=[hold]) as agent:
    sessions = [agent.resume_session(info.session_id) for info in agent.list_sessions()]
    runs = [run for session in sessions for run in session.runs()]
    say(json.dumps([run.state for run in runs]))
    say(json.dumps([session.resume_run(run.id).text for session, run in zip(sessions, runs)]))
    again = [session.resume_run(run.id) for session, run in zip(sessions, runs)]
    say(json.dumps([[result.text, result.replayed] for result in again]))
    say(json.dumps([[run.state for run in session.runs()] for session in sessions]))
""")
    assert json.loads(survivor.line()) == ["interrupted"] * 10
    assert json.loads(survivor.line()) == ["Resumed."] * 10
    assert json.loads(survivor.line()) == [["Resumed.", True]] * 10
    assert json.loads(survivor.line()) == [["superseded", "completed"]] * 10
    survivor.finish()
    verify(db)
    assert os.path.exists(db)
