"""Cancel and interrupt of a run whose owner is another process, and one that sleeps (§1, §7, §8)."""

from __future__ import annotations

import json
import signal
import time

import pytest

from .kit import pairs_ok, verify

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
    for message in session.history():
        calls = [asked.key for asked in getattr(message, "calls", ())]
        say(json.dumps([message.role, calls, getattr(message, "call_key", "")]))
"""

    class Message:
        def __init__(self, role, calls, key):
            self.role, self.call_key = role, key
            self.calls = [type("Call", (), {"key": one}) for one in calls]

    child = spawn(code)
    child.expect("cancelled")
    child.expect("interrupted")
    child.expect("completed")
    history = [Message(*json.loads(line)) for line in child.finish()]
    assert sum(message.role == "tool" for message in history) == 6
    assert pairs_ok(history)


def test_a_stopped_process_keeps_its_session(spawn, db):
    """§8: ownership never ends by time. A process that sleeps (SIGSTOP) is not dead."""
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
