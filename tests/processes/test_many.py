"""Many at once on one agent (D08), and retention while others read (§9)."""

from __future__ import annotations

import json
import threading
import time

import pytest

from thence import Agent, AsyncAgent, SessionOptions, tool
from thence.testing import call, reply

from .kit import Plain, verify


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Adds:
    """Answers by what it was asked: safe for any number of sessions at once."""

    name = "adds"

    def stream(self, request):
        last = request.messages[-1]
        if last.role == "tool":
            yield reply(f"It is {last.text}.").reply
        else:
            number = int(last.text)
            yield reply("", [call("add", {"a": number, "b": number})]).reply


def test_d08_two_hundred_threads_on_one_agent(db, measured):
    """D08: 200 threads, each with a session of its own: 200 turns, no error."""
    errors: list[BaseException] = []
    texts: dict[int, str] = {}
    barrier = threading.Barrier(200)
    began = time.monotonic()
    with Agent(db, model=Adds(), tools=[add]) as agent:

        def work(number: int) -> None:
            try:
                session = agent.session(".", SessionOptions(session_id=f"s{number}"))
                barrier.wait(60)
                texts[number] = session.send(str(number)).text
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[:3]
        assert texts == {number: f"It is {2 * number}." for number in range(200)}
        assert len(agent.list_sessions()) == 200
    measured("seconds", time.monotonic() - began)
    assert verify(db) == {f"s{number}": 6 for number in range(200)}


def test_d08_many_threads_on_one_session_get_busy_and_never_anything_else(db):
    with Agent(db, model=Adds(), tools=[add]) as agent:
        outcomes: list[str] = []
        sessions = [agent.session(".", SessionOptions(session_id="s")) for _ in range(30)]
        barrier = threading.Barrier(30)

        def work(number: int) -> None:
            barrier.wait(60)
            try:
                outcomes.append(sessions[number].send(str(number)).status)
            except Exception as error:
                outcomes.append(getattr(error, "code", repr(error)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(outcomes) <= {"completed", "SESSION_BUSY"}
        done = outcomes.count("completed")
        assert done >= 1
        assert sessions[0].send("5").text == "It is 10."
    assert verify(db) == {"s": 1 + 5 * (done + 1)}


async def test_sixty_four_async_sessions_on_one_file(db, measured):
    import asyncio

    began = time.monotonic()
    async with AsyncAgent(db, model=Adds(), tools=[add]) as agent:

        async def work(number: int) -> list[str]:
            session = await agent.session(".", SessionOptions(session_id=f"s{number}"))
            return [(await session.send(str(number + turn))).text for turn in range(3)]

        texts = await asyncio.gather(*(work(number) for number in range(64)))
        assert texts == [[f"It is {2 * (number + turn)}." for turn in range(3)] for number in range(64)]
    measured("seconds", time.monotonic() - began)
    assert verify(db) == {f"s{number}": 16 for number in range(64)}


async def test_both_faces_on_one_file_in_one_process(db):
    import asyncio

    async with AsyncAgent(db, model=Adds(), tools=[add]) as slow:
        with Agent(db, model=Adds(), tools=[add]) as fast:

            def blocking() -> list[str]:
                session = fast.session(".", SessionOptions(session_id="sync"))
                return [session.send(str(number)).text for number in range(10)]

            async def awaiting() -> list[str]:
                session = await slow.session(".", SessionOptions(session_id="async"))
                return [(await session.send(str(number))).text for number in range(10)]

            found = await asyncio.gather(asyncio.to_thread(blocking), awaiting())
            assert found[0] == found[1] == [f"It is {2 * number}." for number in range(10)]
    assert verify(db) == {"sync": 51, "async": 51}


BUSY_WRITER = """
class Rounds:
    name = "rounds"
    def stream(self, request):
        asked = max(place for place, message in enumerate(request.messages) if message.role == "user")
        tools = sum(message.role == "tool" for message in request.messages[asked:])
        calls = [call("look", {"n": tools + k, "t": time.time()}) for k in range(4)] if tools < 12 else ()
        yield reply("x" * 300, calls).reply

@tool(effect="read", repeatable=True)
def look(n: int, t: float) -> str: return "y" * 200

CAPS = {"max_runs_retained": 3, "max_events_per_run": 16, "max_event_bytes_per_run": 4000, "max_trace_events": 10}
with Agent(db, model=Rounds(), tools=[look]) as agent:
    session = agent.session(".", options(session_id="s", retention_limits=CAPS))
    say("open")
    hear()
    for number in range(int(args[0])):
        session.send(f"Message {number}.")
        session.emit({"type": "note", "payload": {"text": "z" * 900}})
    last = session.runs()[-1]
    say(json.dumps([[run.id for run in session.runs()], last.event_count, len(session.facts())]))
"""


def look_at_caps(eyes: Plain) -> tuple[int, int]:
    eyes.db.execute("BEGIN")
    per_stream = eyes.rows("SELECT stream_pk, count(*), sum(bytes) FROM event GROUP BY stream_pk")
    terminal = eyes.one("SELECT count(*) FROM run WHERE status IN ('completed', 'failed', 'cancelled')")
    others = eyes.one("SELECT count(*) FROM run WHERE status NOT IN ('completed', 'failed', 'cancelled')")
    traces = eyes.one("SELECT count(*) FROM trace")
    orphans = eyes.one("SELECT count(*) FROM event WHERE stream_pk NOT IN (SELECT stream_pk FROM stream)")
    facts = eyes.one("SELECT count(*) FROM fact")
    eyes.db.execute("COMMIT")
    for stream, count, size in per_stream:
        assert count <= 16, (stream, count)
        assert size <= 4000, (stream, size)
    assert terminal <= 3
    assert others <= 1
    assert traces <= 10
    assert orphans == 0
    return facts, traces


@pytest.mark.parametrize("turns", [25, pytest.param(250, marks=pytest.mark.slow)])
def test_caps_hold_at_every_commit_as_another_process_sees_it(spawn, plain, db, turns):
    writer = spawn(BUSY_WRITER, turns)
    writer.expect("open")
    eyes = plain()
    writer.tell()
    seen: list[tuple[int, int]] = []
    while writer.process.poll() is None:
        seen.append(look_at_caps(eyes))
    runs, events_ever, facts = json.loads(writer.line())
    writer.finish()
    assert len({facts for facts, _ in seen}) > turns
    assert len(runs) == 3
    # the numbering is cumulative, and no fact was ever evicted
    assert events_ever > 16
    assert facts == 1 + turns * (1 + 3 * 5 + 1 + 1)
    assert verify(db) == {"s": facts}


def test_retention_lowered_and_set_to_nothing(db):
    with Agent(db, model=Adds(), tools=[add]) as agent:
        session = agent.session(".", SessionOptions(session_id="s"))
        for number in range(5):
            session.send(str(number))
        assert len(session.runs()) == 5
        session.set_retention({"max_runs_retained": 2, "max_events_per_run": 0, "max_trace_events": 0})
        run = session.send("7")
        assert run.text == "It is 14."
        assert len(session.runs()) == 2
        assert session.run_events(run.run_id) == []
        assert session.trace_events() == []
        snapshot = session.run_snapshot(run.run_id)
        assert snapshot is not None
        assert snapshot.event_count > 0
    assert verify(db) == {"s": 31}
