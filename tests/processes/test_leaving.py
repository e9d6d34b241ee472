"""How a process leaves: the interpreter's end, `sys.exit`, a cancelled `asyncio.run` (§1): M04."""

from __future__ import annotations

import json
import time

import pytest

from .kit import verify
from .leaving_kit import TOOLS, look_after, working

SLOW = pytest.mark.slow

START = {
    "sync": """
agent = Agent(db, model=model, tools=tools)
session = agent.session(".", options(session_id="s"))
session.send("Before.")
if guard is not None: session.set_budget_guard(guard, 60_000)
def run():
    try: session.send("Go.")
    except ThenceError: pass
threading.Thread(target=run, daemon=True).start()
hear()
print("leaving", time.time(), flush=True)
LEAVE
""",
    "sync, streaming": """
agent = Agent(db, model=model, tools=tools)
session = agent.session(".", options(session_id="s"))
session.send("Before.")
if guard is not None: session.set_budget_guard(guard, 60_000)
stream = session.stream("Go.")
next(stream)
hear()
print("leaving", time.time(), flush=True)
LEAVE
""",
    "async": """
async def main():
    global agent, session
    agent = AsyncAgent(db, model=model, tools=tools)
    session = await agent.session(".", options(session_id="s"))
    await session.send("Before.")
    if guard is not None: session.set_budget_guard(guard, 60_000)
    task = asyncio.create_task(session.send("Go."))
    await asyncio.to_thread(hear)
    print("leaving", time.time(), flush=True)
    LEAVE
asyncio.run(main())
""",
}
EXITS = [
    (what, face, leave)
    for what, face in [
        ("hold", "sync"), ("hang", "sync"), ("guard", "sync"), ("model", "sync"), ("hang", "sync, streaming"),
        ("ahang", "sync"), ("hold", "async"), ("hang", "async"), ("ahang", "async"), ("guard", "async"),
        ("amodel", "async"),
    ]
    for leave in ["pass"]
] + [
    ("hang", "sync", "sys.exit(0)"),
    pytest.param("hang", "async", "sys.exit(0)", marks=SLOW),
    ("hold", "sync", "agent.close()"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "face", "leave"), EXITS)
def test_m04_the_interpreter_exits_at_once_with_a_run_live(spawn, db, what, face, leave, measured):
    """M04: within about a second, exit code 0, what was acknowledged is there, and the run can be gone on with."""
    child = spawn(TOOLS + working(what) + START[face].replace("LEAVE", leave), own=True)
    child.expect("holding")
    child.tell()
    word, at = child.line().split()
    assert word == "leaving"
    assert child.finish(0, timeout_s=15) == []
    took = time.time() - float(at)
    measured("seconds_until_exit", took)
    # the end of `asyncio.run` cancels tasks, and a cancelled task gives what runs 5 s
    assert took < (9 if (what, face) == ("hang", "async") else 5), f"took {took:.2f} s"
    assert "Traceback" not in child.errors, child.errors
    verify(db)
    runs = look_after(db)
    assert runs[0] == ("completed", "First.")
    assert runs[1][0] == "interrupted"


@pytest.mark.parametrize(
    "code",
    [
        """
agent = Agent(db, model=ScriptedModel([reply("First.")]))
agent.session(".", options(session_id="s")).send("Go.")
""",
        """
agent = Agent(db, model=ScriptedModel([reply("First.")]))
list(agent.session(".", options(session_id="s")).stream("Go."))
list(agent.resume_session("s").tail(agent.resume_session("s").runs()[0].id))
""",
        """
async def main():
    agent = AsyncAgent(db, model=ScriptedModel([reply("First.")]))
    session = await agent.session(".", options(session_id="s"))
    await session.send("Go.")
    await session.facts()
asyncio.run(main())
""",
        """
async def main():
    global agent, later
    agent = AsyncAgent(db, model=ScriptedModel([reply("First.")]))
    session = await agent.session(".", options(session_id="s"))
    await session.send("Go.")
    later = [asyncio.ensure_future(session.facts()) for _ in range(20)]
    await asyncio.sleep(0)
asyncio.run(main())
""",
        """
agents = [Agent(db, model=ScriptedModel([reply("First.")])) for _ in range(5)]
agents[0].session(".", options(session_id="s")).send("Go.")
for one in agents: one.resume_session("s").facts()
sys.exit(0)
""",
    ],
    ids=["sync", "stream and tail", "async", "async, reads cut off", "five agents, sys.exit"],
)
def test_m04_an_unclosed_agent_does_not_keep_the_interpreter(spawn, db, code, measured):
    child = spawn(
        code + "\nprint(time.time(), flush=True)\n"
        if "sys.exit" not in code
        else code.replace("sys.exit(0)", "print(time.time(), flush=True)\nsys.exit(0)"),
        own=True,
    )
    at = float(child.line())
    child.finish(0)
    took = time.time() - at
    measured("seconds_until_exit", took)
    assert took < 5
    assert "Traceback" not in child.errors, child.errors
    assert "Exception ignored" not in child.errors, child.errors
    assert look_after(db) == [("completed", "First.")]
    verify(db)


def test_sys_exit_inside_a_tool_is_a_failed_result_and_not_an_exit(spawn, db):
    """§5: any exception of a tool, `BaseException` too, is a failed result."""
    child = spawn("""
@tool
def leaves() -> str: sys.exit(3)
@tool
def interrupts() -> str: raise KeyboardInterrupt
@tool
async def cancels() -> str: raise asyncio.CancelledError
script = [reply("", [call("leaves"), call("interrupts"), call("cancels")]), reply("Done.")]
with Agent(db, model=ScriptedModel(script), tools=[leaves, interrupts, cancels]) as agent:
    session = agent.session(".", options(session_id="s"))
    say(session.send("Go.").text)
    say(json.dumps([[m.ok, m.text] for m in session.history() if m.role == "tool"]))
async def main():
    async with AsyncAgent(db, model=ScriptedModel(script), tools=[leaves, interrupts, cancels]) as agent:
        session = await agent.session(".", options(session_id="a"))
        say((await session.send("Go.")).text)
        say(json.dumps([[m.ok, m.text] for m in await session.history() if m.role == "tool"]))
asyncio.run(main())
""")
    for _ in range(2):
        child.expect("Done.")
        results = json.loads(child.line())
        assert [ok for ok, _ in results] == [False] * 3
        for name, (_, text) in zip(["SystemExit", "KeyboardInterrupt", "CancelledError"], results, strict=True):
            assert name in text
    child.finish()


@pytest.mark.parametrize(
    "what", ["hold", "amodel", pytest.param("hang", marks=SLOW), pytest.param("ahang", marks=SLOW)]
)
def test_asyncio_run_cancelled_in_mid_run(spawn, db, what, measured):
    """A time limit around `asyncio.run`'s main task: the run is interrupted, never half written."""
    child = spawn(
        TOOLS
        + working(what)
        + """
async def main():
    async with AsyncAgent(db, model=model, tools=tools) as agent:
        session = await agent.session(".", options(session_id="s"))
        await session.send("Before.")
        try:
            async with asyncio.timeout(1.0): await session.send("Go.")
        except TimeoutError:
            say(json.dumps([[r.state for r in await session.runs()], time.time() - began]))
began = time.time()
asyncio.run(main())
say("left")
""",
        own=True,
    )
    child.expect("holding")
    states, took = json.loads(child.line())
    child.expect("left")
    child.finish(0)
    measured("seconds_until_raised", took)
    assert states == ["completed", "interrupted"]
    assert took < 10
    runs = look_after(db)
    assert runs[1][0] == "interrupted"
    verify(db)


def test_leaving_a_stream_early_interrupts_and_releases(spawn, db):
    child = spawn(
        TOOLS
        + working("hold")
        + """
agent = Agent(db, model=model, tools=tools)
session = agent.session(".", options(session_id="s"))
session.send("Before.")
for event in session.stream("Go."):
    if event.type == "tool_execution_start": break
while session.current_run() is not None: time.sleep(0.01)
say(json.dumps([r.state for r in session.runs()]))
with session.stream("Go again.", on_interrupted="settle") as stream:
    for event in stream:
        if event.type == "tool_execution_start": break
say(json.dumps([r.state for r in session.runs()][-1]))
agent.close()
"""
    )
    said = [line for line in child.finish() if line != "holding"]
    assert [json.loads(line) for line in said] == [["completed", "interrupted"], "interrupted"]
    verify(db)
