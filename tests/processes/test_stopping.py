"""Cancel, interrupt and death of a run whose owner is another process (§1, §7, §8)."""

from __future__ import annotations

import json
import time

import pytest

from .kit import pairs_ok, verify, wait_for

OWNER = """
@tool
def hold(context: ToolContext) -> str:
    say("holding")
    while not context.cancelled: time.sleep(0.01)
    return "let go"

@tool
def after() -> str:
    say("after ran")
    return "x"

script = [reply("", [call("hold"), call("after")]), reply("Done.")]
with Agent(db, model=ScriptedModel(script), tools=[hold, after]) as agent:
    session = agent.session(".", options(session_id="s"))
    try:
        said = ["returned", session.send("Go.").status]
    except ThenceError as error:
        said = [error.code, error.run_id, error.resumable]
    say(json.dumps([time.time(), *said]))
    last = session.runs()[-1]
    say(json.dumps([last.status, last.state, session.current_run() is None]))
    hear()
"""

STOPPER = {
    "sync": """
agent = Agent(db)
session = agent.resume_session("s")
say("ready")
hear()
say(time.time())
say(STOP)
hear()
agent.close()
""",
    "async": """
async def main():
    async with AsyncAgent(db) as agent:
        session = await agent.resume_session("s")
        say("ready")
        hear()
        say(time.time())
        say(await STOP)
        hear()
asyncio.run(main())
""",
}


def stop(spawn, face: str, how: str) -> tuple[list, list, float]:
    owner = spawn(OWNER)
    owner.expect("holding")
    stopper = spawn(STOPPER[face].replace("STOP", how))
    stopper.expect("ready")
    stopper.tell()
    began = float(stopper.line())
    stopper.expect("True")
    at, *said = json.loads(owner.line())
    last = json.loads(owner.line())
    stopper.tell()
    stopper.finish()
    owner.tell()
    assert owner.finish() == []
    return said, last, at - began


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("how", ["session.cancel()", "session.cancel_run((session.current_run()).id)"])
def test_cancel_from_another_process(spawn, plain, db, face, how, measured):
    if face == "async":
        how = how.replace("(session.current_run())", "(await session.current_run())")
    said, last, took = stop(spawn, face, how)
    measured("seconds_until_cancelled", took)
    assert said == ["returned", "cancelled"]
    assert last == ["cancelled", "cancelled", True]
    assert took < 10
    verify(db)
    eyes = plain()
    assert eyes.one("SELECT count(*) FROM inbox") == 0
    assert eyes.one("SELECT owner FROM sessions") is None
    results = eyes.rows("SELECT payload FROM facts WHERE kind = 'tool.result' ORDER BY seq")
    assert len(results) == 2
    assert json.loads(eyes.one("SELECT payload FROM facts ORDER BY seq DESC LIMIT 1"))["status"] == "cancelled"


@pytest.mark.parametrize("face", ["sync", "async"])
def test_interrupt_from_another_process(spawn, plain, db, face, measured):
    said, last, took = stop(spawn, face, "session.interrupt('enough for today')")
    measured("seconds_until_interrupted", took)
    assert took < 10
    assert said[0] == "RUN_INTERRUPTED"
    assert said[2] is True
    assert last[1:] == ["interrupted", True]
    verify(db)
    eyes = plain()
    assert eyes.one("SELECT owner FROM sessions") is None
    eyes.close()
    again = spawn("""
with Agent(db, model=ScriptedModel([reply("Settled.")])) as agent:
    session = agent.resume_session("s")
    try: session.send("Next.")
    except RunInterrupted as error: say(json.dumps([error.run_id, list(error.open_calls)]))
    say(session.send("Next.", on_interrupted="settle").text)
""")
    run_id, open_calls = json.loads(again.line())
    assert run_id == said[1]
    assert len(open_calls) <= 2
    again.expect("Settled.")
    again.finish()
    verify(db)


def test_nothing_to_stop(spawn, db):
    child = spawn("""
with Agent(db, model=ScriptedModel([reply("Done.")])) as agent:
    session = agent.session(".", options(session_id="s"))
    say(session.cancel(), session.interrupt("x"), session.cancel_run("nobody"))
    run = session.send("Go.").run_id
    say(session.cancel(), session.cancel_run(run), session.run_snapshot(run).status)
""")
    child.expect("False False False")
    child.expect("False False completed")
    child.finish()


def test_a_stop_for_an_earlier_run_does_not_hit_the_next_one(spawn, plain, db):
    """An order that waited in the inbox for a run that ended meanwhile is void."""
    owner = spawn("""
with Agent(db, model=ScriptedModel([reply("One."), reply("Two.")])) as agent:
    session = agent.session(".", options(session_id="s"))
    session.send("Go.")
    say("one")
    hear()
    say(session.send("Go on.").status)
""")
    owner.expect("one")
    other = spawn("""
with Agent(db) as agent:
    session = agent.resume_session("s")
    say(session.cancel(), session.cancel_run(session.runs()[-1].id))
""")
    other.expect("False False")
    other.finish()
    owner.tell()
    owner.expect("completed")
    owner.finish()


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
        except RunInterrupted as error: say(json.dumps([error.run_id, list(error.open_calls), error.code, error.resumable]))
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
            except RunInterrupted as error: say(json.dumps([error.run_id, list(error.open_calls), error.code, error.resumable]))
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


def test_history_is_valid_for_a_provider_after_every_kind_of_stop(spawn, db):
    code = """
@tool
def hold(context: ToolContext) -> str:
    while not context.cancelled: time.sleep(0.005)
    return "x"
script = [reply("", [call("hold"), call("hold"), call("hold")])]
with Agent(db, model=ScriptedModel([*script, *script, reply("Done.")]), tools=[hold]) as agent:
    session = agent.session(".", options(session_id="s", on_interrupted="settle"))
    threading.Timer(0.3, session.cancel).start()
    say(session.send("One.").status)
    threading.Timer(0.3, session.interrupt).start()
    try: session.send("Two.")
    except RunInterrupted: say("interrupted")
    say(session.send("Three.").status)
    import pickle
    for message in session.history():
        say(json.dumps([message.role, [c.key for c in getattr(message, "calls", ())], getattr(message, "call_key", "")]))
"""

    class Message:
        def __init__(self, role, calls, key):
            self.role, self.call_key = role, key
            self.calls = [type("Call", (), {"key": one}) for one in calls]

    child = spawn(code.replace("    import pickle\n", ""))
    child.expect("cancelled")
    child.expect("interrupted")
    child.expect("completed")
    history = [Message(*json.loads(line)) for line in child.finish()]
    assert sum(message.role == "tool" for message in history) == 6
    assert pairs_ok(history)


def test_a_stopped_process_keeps_its_session(spawn, db):
    """§8: ownership never ends by time. A process that sleeps (SIGSTOP) is not dead."""
    import signal

    owner = spawn(OWNER)
    owner.expect("holding")
    owner.kill(signal.SIGSTOP)
    time.sleep(1.2)
    other = spawn("""
with Agent(db, model=ScriptedModel([reply("Mine.")])) as agent:
    session = agent.resume_session("s")
    try: session.send("Go.", on_interrupted="settle")
    except SessionBusy: say("busy")
    say(session.current_run().state)
    hear()
    say(session.cancel())
""")
    other.expect("busy")
    other.expect("executing")
    owner.kill(signal.SIGCONT)
    other.tell()
    other.expect("True")
    other.finish()
    assert json.loads(owner.line())[1:] == ["returned", "cancelled"]
    owner.line()
    owner.tell()
    owner.finish()
    verify(db)
