"""A run that other processes speak to: read once, in order, also when its process is killed meanwhile (§1, §8)."""

from __future__ import annotations

import json
import signal

import pytest

from .kit import verify, wait_for

OWNER = """
gate = threading.Event()

@tool
def hold() -> str:
    say("holding")
    gate.wait()
    return "let go"

def listen():
    hear()
    time.sleep(0.3)  # the owner looks at least every 250 ms (§8): what was said is in its next request
    gate.set()

threading.Thread(target=listen, daemon=True).start()
model = ScriptedModel([reply("", [call("hold")]), reply("Done.")])
with Agent(db, model=model, tools=[hold]) as agent:
    session = agent.session(".", options(session_id="s"))
    try: say(session.send("Go.").text)
    except RunInterrupted as error: say(json.dumps([error.reason, str(error)]))
    say(json.dumps([message.text for message in model.requests[-1].messages if message.role == "user"]))
"""

SPEAKER = {
    "sync": """
with Agent(db) as agent:
    session = agent.resume_session("s")
    say("ready")
    hear()
    say([session.steer(*words) for words in WORDS])
""",
    "async": """
async def main():
    async with AsyncAgent(db) as agent:
        session = await agent.resume_session("s")
        say("ready")
        hear()
        say([await session.steer(*words) for words in WORDS])
asyncio.run(main())
""",
}


def speak(spawn, face: str, *words: tuple[str, ...]):
    child = spawn(SPEAKER[face].replace("WORDS", repr(words)))
    child.expect("ready")
    return child


@pytest.mark.parametrize("face", ["sync", "async"])
def test_from_another_process(spawn, plain, db, face):
    owner = spawn(OWNER)
    owner.expect("holding")
    speaker = speak(spawn, face, ("One.", "q1"), ("Two.",), ("One again.", "q1"))
    speaker.tell()
    speaker.expect("[True, True, True]")
    speaker.finish()
    owner.tell()
    owner.expect("Done.")
    assert json.loads(owner.line()) == ["Go.", "One.", "Two."]
    owner.finish()
    verify(db)
    eyes = plain()
    assert eyes.one("SELECT count(*) FROM inbox") == 0
    told = eyes.rows("SELECT payload FROM events WHERE type = 'run_control_applied' ORDER BY sequence")
    assert [json.loads(payload)["input"] for (payload,) in told] == ["One.", "Two."]


def test_two_processes_with_the_same_request_are_one(spawn, plain, db):
    owner = spawn(OWNER)
    owner.expect("holding")
    count = 40
    words = [tuple((f"m{n}", f"q{n}") for n in range(count))] * 2
    speakers = [speak(spawn, face, *each) for face, each in zip(SPEAKER, words, strict=True)]
    for speaker in speakers:
        speaker.tell()
    for speaker in speakers:
        speaker.expect(str([True] * count))
        speaker.finish()
    owner.tell()
    owner.expect("Done.")
    read = json.loads(owner.line())
    assert len(read) == count + 1 and set(read) == {"Go.", *(f"m{n}" for n in range(count))}
    owner.finish()
    verify(db)


def test_what_was_acknowledged_outlives_the_process_that_was_to_read_it(spawn, plain, db):
    owner = spawn(OWNER)
    owner.expect("holding")
    speaker = speak(spawn, "sync", ("Mind the gap.", "q1"))
    speaker.tell()
    speaker.expect("[True]")
    speaker.finish()
    owner.kill()
    owner.finish(-signal.SIGKILL)
    late = speak(spawn, "sync", ("Too late.", "q2"))
    late.tell()
    late.expect("[False]")  # nobody works on it
    late.finish()
    heir = spawn("""
@tool
def hold() -> str: return "held"
model = ScriptedModel([reply("Resumed.")])
with Agent(db, model=model, tools=[hold]) as agent:
    session = agent.resume_session("s")
    say(session.resume_run(session.runs()[-1].id).text)
    say(json.dumps([message.text for message in model.requests[-1].messages if message.role == "user"]))
""")
    heir.expect("Resumed.")
    assert json.loads(heir.line()) == ["Go.", "Mind the gap."]
    heir.finish()
    verify(db)
    assert plain().one("SELECT count(*) FROM inbox") == 0


def test_told_or_not_told_there_is_nothing_between(spawn, plain, db):
    """Somebody speaks without a pause to runs that begin and end: what it was told is read is read."""
    owner = spawn("""
model = ScriptedModel([lambda request: reply(str(len(request.messages)))] * 100_000)
with Agent(db, model=model, durability="process") as agent:
    session = agent.session(".", options(session_id="s"))
    session.send("Go.")
    say("up")
    end = time.monotonic() + 3
    while time.monotonic() < end: session.send("Go.")
    say("over")
    hear()
""")
    owner.expect("up")
    speaker = spawn("""
with Agent(db, durability="process") as agent:
    session = agent.resume_session("s")
    told, n, end = [], 0, time.monotonic() + 3.5
    while time.monotonic() < end:
        n += 1
        if session.steer(f"m{n}", f"q{n}"): told.append(f"q{n}")
    say(json.dumps([n, told]))
""")
    tries, told = json.loads(speaker.line())
    speaker.finish()
    owner.expect("over")
    owner.tell()
    owner.finish()
    assert verify(db)["s"] > 100
    eyes = plain()
    rows = eyes.rows("SELECT payload FROM facts WHERE kind = 'user.message' ORDER BY seq")
    read = [value["request_id"] for (payload,) in rows if (value := json.loads(payload)).get("request_id")]
    assert read == told and 0 < len(told) < tries
    assert eyes.one("SELECT count(*) FROM inbox") == 0


@pytest.mark.parametrize("face", ["sync", "async"])
def test_an_interrupt_keeps_its_reason(spawn, plain, db, face):
    owner = spawn(OWNER)
    owner.expect("holding")
    how = "session.interrupt('enough for today')"
    stopper = spawn(
        SPEAKER[face]
        .replace("[session.steer(*words) for words in WORDS]", how)
        .replace("[await session.steer(*words) for words in WORDS]", f"await {how}")
    )
    stopper.expect("ready")
    stopper.tell()
    stopper.expect("True")
    stopper.finish()
    wait_for(lambda: plain().one("SELECT owner FROM sessions") is None)
    owner.tell()
    reason, text = json.loads(owner.line())
    assert reason == "enough for today" and "was interrupted: enough for today (open calls: t1-r1-c0)" in text
    owner.finish()
    [(payload,)] = plain().rows("SELECT payload FROM events WHERE type = 'run_control_applied'")
    assert json.loads(payload) == {
        "request_id": None, "operation": "interrupt", "turn_id": "t1", "turn_revision": 0, "reason": "enough for today",
    }  # fmt: skip
