"""A run of one process, followed from others: `tail`, and plain `sqlite3` on the views (§8, §10)."""

from __future__ import annotations

import json

import pytest

from .kit import GENEROUS_S, Plain, verify, wait_for

ROUNDS = 8

OWNER = """
class Slow:
    name = "slow"
    asked = 0
    def stream(self, request):
        self.asked += 1
        for piece in range(3):
            yield TextDelta(f"answer {self.asked} piece {piece};")
            time.sleep(0.08)
        calls = (call("look", {"n": self.asked}),) if self.asked <= int(args[0]) else ()
        yield reply(f"answer {self.asked}", calls).reply

@tool(effect="read")
def look(n: int, context: ToolContext) -> int:
    context.progress(f"looking {n}")
    return n

with Agent(db, model=Slow(), tools=[look]) as agent:
    session = agent.session(".", options(session_id="s"))
    say("open")
    hear()
    result = session.send("Go.")
    say(result.status)
    say(json.dumps([[e.metadata["sequence"], e.type] for e in session.run_events(result.run_id)]))
"""

FOLLOWER = {
    "sync": """
agent = Agent(db)
session = agent.resume_session("s")
say("ready")
while (run := session.current_run()) is None: time.sleep(0.005)
for event in session.tail(run.id):
    say(json.dumps([event.metadata["sequence"], event.type, event.text, run.id]))
say("over")
agent.close()
""",
    "async": """
async def main():
    async with AsyncAgent(db) as agent:
        session = await agent.resume_session("s")
        say("ready")
        while (run := await session.current_run()) is None: await asyncio.sleep(0.005)
        async for event in session.tail(run.id):
            say(json.dumps([event.metadata["sequence"], event.type, event.text, run.id]))
        say("over")
asyncio.run(main())
""",
}


def collect(child):
    found = []
    while (said := child.line()) != "over":
        found.append(json.loads(said))
    return found


@pytest.mark.parametrize("face", ["sync", "async"])
def test_tail_follows_a_run_of_another_process_without_a_gap(spawn, plain, db, face):
    owner = spawn(OWNER, ROUNDS)
    owner.expect("open")
    follower = spawn(FOLLOWER[face])
    follower.expect("ready")
    owner.tell()
    eyes: Plain = plain()
    heads: list[int] = []
    statuses: set[str] = set()
    while owner.process.poll() is None:
        eyes.db.execute("BEGIN")
        seqs = [seq for (seq,) in eyes.rows("SELECT seq FROM facts WHERE session_id = 's' ORDER BY seq")]
        events = [n for (n,) in eyes.rows("SELECT sequence FROM events WHERE session_id = 's' ORDER BY sequence")]
        runs = eyes.rows("SELECT status, event_count FROM runs WHERE session_id = 's'")
        eyes.db.execute("COMMIT")
        assert seqs == list(range(1, len(seqs) + 1))
        assert events == list(range(len(events)))
        heads.append(len(events))
        for status, count in runs:
            statuses.add(status)
            assert count == len(events)
    # the third reader really looked while things changed, and never saw them go back
    assert len(set(heads)) > ROUNDS
    assert heads == sorted(heads)
    assert statuses & {"created", "planning", "executing", "verifying"}

    owner.expect("completed")
    recorded = json.loads(owner.line())
    owner.finish()
    seen = collect(follower)
    follower.finish()
    numbered = [[sequence, kind] for sequence, kind, _, _ in seen if sequence is not None]
    assert numbered == recorded
    assert [sequence for sequence, _ in numbered] == list(range(len(recorded)))
    verify(db)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_tailer_sees_deltas_provisionally(spawn, face):
    owner = spawn(OWNER, 3)
    owner.expect("open")
    follower = spawn(FOLLOWER[face])
    follower.expect("ready")
    owner.tell()
    seen = collect(follower)
    pieces = [(kind, text) for sequence, kind, text, _ in seen if sequence is None]
    assert {kind for kind, _ in pieces} <= {"text_delta", "tool_output_delta"}
    texts = "".join(text for kind, text in pieces if kind == "text_delta")
    for answer in range(1, 5):
        # the last piece may go with its answer before anybody looks; the first one is there for over 150 ms
        assert f"answer {answer} piece 0;" in texts
    first = next(place for place, event in enumerate(seen) if event[1] == "text_delta")
    end = next(place for place, event in enumerate(seen) if event[1] == "turn_end")
    assert first < end
    owner.expect("completed")
    owner.finish()


def test_a_late_tailer_is_told_of_the_gap_and_a_cursor_is_kept(spawn, db):
    code = """
with Agent(db, model=ScriptedModel([reply("Hi.")])) as agent:
    session = agent.session(".", options(session_id="s", retention_limits={"max_events_per_run": 2}))
    run = session.send("Go.").run_id
    told = [[e.metadata["sequence"], e.type] for e in session.tail(run)]
    count = session.run_snapshot(run).event_count
    say(json.dumps([told, count, [e.metadata["sequence"] for e in session.tail(run, after_sequence=count - 2)]]))
"""
    child = spawn(code)
    told, count, after = json.loads(child.line())
    child.finish()
    assert told[0] == [None, "retention_gap"]
    assert [sequence for sequence, _ in told[1:]] == [count - 2, count - 1]
    assert after == [count - 1]


def test_the_tail_of_a_killed_run_ends_when_somebody_settles_it(spawn):
    """§1: until then the run may still be gone on with; the follower waits without losing its place."""
    owner = spawn(OWNER, 1000)
    owner.expect("open")
    follower = spawn(FOLLOWER["sync"])
    follower.expect("ready")
    owner.tell()
    seen = wait_for(lambda: json.loads(follower.line()), GENEROUS_S)
    while seen[1] != "tool_end":
        seen = json.loads(follower.line())
    owner.kill()
    settler = spawn("""
with Agent(db, model=ScriptedModel([reply("Settled.")])) as agent:
    say(agent.resume_session("s").send("Go on.", on_interrupted="settle").text)
""")
    settler.expect("Settled.")
    settler.finish()
    last = collect(follower)
    follower.finish()
    numbers = [sequence for sequence, *_ in [seen, *last] if sequence is not None]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert {run for *_, run in last} <= {seen[3]}
