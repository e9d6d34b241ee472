"""Signals to a process in `send`: Ctrl-C interrupts, any death gives the session back (§1)."""

from __future__ import annotations

import json
import signal
import time

import pytest

from .kit import verify
from .leaving_kit import TOOLS, look_after, working

WORK = {
    "a patient tool": ("hold", "sync", 8),
    "a hung tool": ("hang", "sync", 8),
    "a hung async tool": ("ahang", "async", 8),
    "a hung guard": ("guard", "sync", 8),
    "a hung model": ("model", "sync", 8),
    "a hung tool, async face": ("hang", "async", 8),
    "a patient tool, async face": ("hold", "async", 8),
    "a hung model, async face": ("amodel", "async", 8),
}

# what is hung gets its whole 5 s, so one of these is enough for every day
PATIENT = {"a hung async tool", "a hung tool, async face"}
SLOW = pytest.mark.slow


SEND = {
    "sync": """
agent = Agent(db, model=model, tools=tools)
session = agent.session(".", options(session_id="s"))
session.send("Before.")
if guard is not None: session.set_budget_guard(guard, 60_000)
try: session.send("Go.")
except KeyboardInterrupt:
    say(json.dumps(["KeyboardInterrupt", time.time(), [r.state for r in session.runs()]]))
""",
    "async": """
async def main():
    global agent, session
    agent = AsyncAgent(db, model=model, tools=tools)
    session = await agent.session(".", options(session_id="s"))
    await session.send("Before.")
    try: await session.send("Go.")
    except asyncio.CancelledError:
        say(json.dumps(["CancelledError", time.time(), [r.state for r in await session.runs()]]))
        raise
try: asyncio.run(main())
except KeyboardInterrupt: pass
""",
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=SLOW) if case in PATIENT else case for case in WORK])
def test_ctrl_c_interrupts_the_run_releases_the_session_and_leaves(spawn, db, case, measured):
    """SIGINT to a process in `send`: the run can be gone on with. In-flight results may land for up to 5 s."""
    what, face, bound_s = WORK[case]
    child = spawn(TOOLS + working(what) + SEND[face], own=True)
    child.expect("holding")
    time.sleep(0.1)
    began = time.time()
    child.kill(signal.SIGINT)
    name, raised, states = json.loads(child.line())
    child.finish(0)
    left = time.time() - began
    measured("seconds_until_raised", raised - began)
    measured("seconds_until_exit", left)
    assert name == ("KeyboardInterrupt" if face == "sync" else "CancelledError")
    assert left < bound_s
    assert "Traceback" not in child.errors
    assert states == ["completed", "interrupted"]
    verify(db)
    runs = look_after(db)
    assert runs[0] == ("completed", "First.")
    assert runs[1][0] == "interrupted"


def test_a_second_ctrl_c_leaves_at_once(spawn, db):
    child = spawn(
        TOOLS + working("hang") + SEND["sync"].replace("except KeyboardInterrupt:", "except ThenceError:"), own=True
    )
    child.expect("holding")
    time.sleep(0.1)
    child.kill(signal.SIGINT)
    time.sleep(0.4)
    began = time.time()
    if child.process.poll() is None:
        child.kill(signal.SIGINT)
    child.finish(None)
    assert child.process.returncode != 0
    assert time.time() - began < 5
    assert look_after(db)[1][0] == "interrupted"
    verify(db)


@pytest.mark.parametrize("leave", ["sigterm", "abort"])
def test_a_death_without_goodbye_still_gives_the_session_back(spawn, db, leave):
    child = spawn(TOOLS + working("hang") + SEND["sync"])
    child.expect("holding")
    child.kill(signal.SIGTERM if leave == "sigterm" else signal.SIGABRT)
    child.finish(None)
    assert child.process.returncode != 0
    verify(db)
    runs = look_after(db)
    assert [state for state, _ in runs] == ["completed", "interrupted"]
