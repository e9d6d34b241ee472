"""A process that is killed in the middle of a run, and what any other process makes of it (§1, §7, §8): M06."""

from __future__ import annotations

import json

import pytest

from .kit import verify, wait_for

KILLED = """
@tool(effect="read")
def fast() -> str:
    return "landed"

@tool(effect="read")
def stuck() -> str:
    say("stuck")
    time.sleep(100)
    return "never"

@tool
def later() -> str:
    return "later"

script = [reply("", [call("fast"), call("stuck"), call("later")]), reply("Done.")]
agent = Agent(db, model=ScriptedModel([reply("First."), *script]), tools=[fast, stuck, later])
session = agent.session(".", options(session_id="s"))
session.send("Before.")
session.send("Go.")
"""

SURVIVOR = {
    "sync": """
with Agent(db, model=ScriptedModel([reply("Settled."), reply("More.")])) as agent:
    session = agent.resume_session("s")
    last = session.runs()[-1]
    say(json.dumps([last.id, last.status, last.state, session.current_run() is None, agent.list_sessions()[0].busy]))
    before = [(f.seq, f.hash, f.text) for f in session.facts()]
    for _ in range(2):
        try: session.send("Next.")
        except RunInterrupted as e: say(json.dumps([e.run_id, list(e.open_calls), e.code, e.resumable]))
    say(session.send("Next.", on_interrupted="settle").text)
    say([(f.seq, f.hash, f.text) for f in session.facts()][:len(before)] == before)
    say(json.dumps([[m.text, m.ok] for m in session.history() if m.role == "tool"]))
    say(session.send("And then?").text)
    say(json.dumps([run.state for run in session.runs()]))
""",
    "async": """
async def main():
    async with AsyncAgent(db, model=ScriptedModel([reply("Settled."), reply("More.")])) as agent:
        session = await agent.resume_session("s")
        last = (await session.runs())[-1]
        busy = (await agent.list_sessions())[0].busy
        say(json.dumps([last.id, last.status, last.state, await session.current_run() is None, busy]))
        before = [(f.seq, f.hash, f.text) for f in await session.facts()]
        for _ in range(2):
            try: await session.send("Next.")
            except RunInterrupted as e: say(json.dumps([e.run_id, list(e.open_calls), e.code, e.resumable]))
        say((await session.send("Next.", on_interrupted="settle")).text)
        say([(f.seq, f.hash, f.text) for f in await session.facts()][:len(before)] == before)
        say(json.dumps([[m.text, m.ok] for m in await session.history() if m.role == "tool"]))
        say((await session.send("And then?")).text)
        say(json.dumps([run.state for run in await session.runs()]))
asyncio.run(main())
""",
}


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_killed_owner_leaves_an_interrupted_run_that_can_be_settled(spawn, plain, db, face):
    owner = spawn(KILLED)
    owner.expect("stuck")
    eyes = plain()
    # the fast call has landed beside the stuck one, durably
    wait_for(lambda: eyes.one("SELECT count(*) FROM calls_in_flight WHERE state = 'landed'") == 1)
    eyes.close()
    owner.kill()
    owner.finish(-9)
    verify(db)
    survivor = spawn(SURVIVOR[face])
    run_id, status, state, idle, busy = json.loads(survivor.line())
    assert (state, idle, busy) == ("interrupted", True, False)
    assert status in ("created", "planning", "executing", "verifying")
    for _ in range(2):
        named, open_calls, code, resumable = json.loads(survivor.line())
        assert (named, code, resumable) == (run_id, "RUN_INTERRUPTED", True)
        assert len(open_calls) == 3
    survivor.expect("Settled.")
    survivor.expect("True")
    results = json.loads(survivor.line())
    assert results[0] == ["landed", True]
    assert "interrupted, outcome unknown" in results[1][0]
    assert "interrupted, not run" in results[2][0]
    assert [ok for _, ok in results[1:]] == [False, False]
    survivor.expect("More.")
    states = json.loads(survivor.line())
    # the turn of the killed run is closed: it is over, and nothing shows it as waiting for somebody
    assert states[0] == "completed"
    assert states[2:] == ["completed", "completed"]
    assert states[1] != "interrupted"
    survivor.finish()
    verify(db)
    eyes = plain()
    assert eyes.one("SELECT count(*) FROM calls_in_flight") == 0
    assert eyes.one("SELECT count(*) FROM checkpoint") == 0
    assert not [entry.name for entry in db.parent.iterdir() if "-owner-" in entry.name]


def test_ten_killed_runs_are_all_interrupted_and_none_is_running(spawn, db):
    """M06, as far as this version goes: ten sessions of one dead process."""
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
with Agent(db, model=ScriptedModel([reply("Settled.")] * 10)) as agent:
    sessions = [agent.resume_session(info.session_id) for info in agent.list_sessions()]
    say([run.state for session in sessions for run in session.runs()].count("interrupted"))
    say(sum(info.busy for info in agent.list_sessions()))
    say([session.send("Go.", on_interrupted="settle").text for session in sessions].count("Settled."))
""")
    survivor.expect("10")
    survivor.expect("0")
    survivor.expect("10")
    survivor.finish()
    verify(db)
