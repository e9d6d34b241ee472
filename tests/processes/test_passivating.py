"""Sessions that are let go at a deadline, and files that go on elsewhere (§8, §10)."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from .kit import verify

HANGING = """
@tool
def hang() -> str:
    say("hanging")
    time.sleep(60)
    return "never"

with Agent(db, model=ScriptedModel([reply("", [call("hang")])]), tools=[hang]) as agent:
    session = agent.session(".", options(session_id="s"))
    try: session.send("Go.")
    except RunInterrupted as error: say(json.dumps([time.time(), error.reason]))
"""
PASSIVATE = {
    "sync": """
with Agent(db) as agent:
    say(json.dumps([time.time(), agent.resume_session("s").passivate(DEADLINE)]))
""",
    "async": """
async def main():
    async with AsyncAgent(db) as agent:
        session = await agent.resume_session("s")
        say(json.dumps([time.time(), await session.passivate(DEADLINE)]))
asyncio.run(main())
""",
}


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_passed_deadline_forces_the_release_from_another_process(spawn, plain, db, face, measured):
    owner = spawn(HANGING)
    owner.expect("hanging")
    asker = spawn(PASSIVATE[face].replace("DEADLINE", "int(time.time() * 1000) - 1"))
    began, released = json.loads(asker.line())
    asker.finish()
    assert released is True
    at, reason = json.loads(owner.line())
    measured("seconds_until_released", at - began)
    assert reason == "passivated" and at - began < 4  # a tool that hangs is not waited for
    owner.finish()
    assert plain().one("SELECT owner FROM sessions") is None
    verify(db)


def test_an_owner_that_sleeps_is_not_displaced(spawn, db):
    import signal

    owner = spawn(HANGING)
    owner.expect("hanging")
    owner.kill(signal.SIGSTOP)
    asker = spawn(PASSIVATE["sync"].replace("DEADLINE", "0"))
    assert json.loads(asker.line())[1] is False
    asker.finish()
    owner.kill(signal.SIGCONT)
    assert json.loads(owner.line())[1] == "passivated"  # the order waited for it
    owner.finish()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_plain_copy_of_a_passivated_file_goes_on_elsewhere(spawn, db, tmp_path, face):
    wait, agent = ("await ", "AsyncAgent") if face == "async" else ("", "Agent")
    code = f"""
async def main():
    running = threading.Event()

    @tool
    def work(context: ToolContext) -> str:
        running.set()
        while not context.cancelled: time.sleep(0.002)
        return "landed"

    agent = {agent}(db, model=ScriptedModel([reply("", [call("work")])]), tools=[work])
    session = {wait}agent.session(".", options(session_id="s"))
    spawned = {wait}session.spawn_run_with_id("r", "Go.")
    {"await asyncio.to_thread(running.wait)" if face == "async" else "running.wait()"}
    done = {wait}agent.passivate(int(time.time() * 1000) + 20_000)
    say(json.dumps(done.to_dict()))
    hear()
asyncio.run(main())
"""
    first = spawn(code)
    said = json.loads(first.line())
    assert said == {"file_complete": True, "released": ["s"], "left": []}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = elsewhere / "agents.db"
    shutil.copyfile(db, copy)  # while the first process lives
    before = time.monotonic()
    second = spawn(
        """
@tool
def work() -> str: raise AssertionError("it has landed")
with Agent(db, model=ScriptedModel([reply("Elsewhere.")]), tools=[work]) as agent:
    session = agent.resume_session("s")
    say(session.resume_run("r").text)
    say([m.text for m in session.history() if m.role == "tool"])
""",
        path=copy,
    )
    second.expect("Elsewhere.")
    second.expect("['landed']")
    second.finish()
    assert time.monotonic() - before < 60
    first.tell()
    first.finish()
    assert verify(copy)["s"] == 6 and verify(db)["s"] < 6
