"""Time, order and ids over a resume (§11): K01, K03, K05, K06."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, AsyncAgent, FixedClock, HostEnv, SequentialIdGenerator, SessionOptions

from ..kit import check_log
from .hand import by_hand, dies_at
from .kit import FACES, Again, Eyes, Tools, calls, done, head, last_run

SCRIPT = [calls("add:1", "look:2"), calls("add:3"), done("All is done.")]


def fixed(prefix: str = "r") -> HostEnv:
    return HostEnv(SequentialIdGenerator(prefix), FixedClock(1_700_000_000_000))


def resumed(face: str, db: Path, env: HostEnv, emits: int = 0) -> list[tuple[str, str]]:
    """A dead run resumed under this environment: (run id, key) of each fact."""
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    tools, model = Tools(), Again(SCRIPT)
    named: dict[str, Any] = {"model": model, "tools": tools.all(), "durability": "process", "host_env": env}
    old = last_run(db) or ""
    facts: list[Any] = []

    async def asynchronously() -> None:
        async with AsyncAgent(db, **named) as agent:
            session = await agent.resume_session("s")
            for number in range(emits):
                await session.emit({"type": "host.note", "payload": {"n": number}})
            await session.resume_run(old)
            facts.extend(await session.facts())

    if face == "async":
        asyncio.run(asynchronously())
    else:
        with Agent(db, **named) as agent:
            session = agent.resume_session("s")
            for number in range(emits):
                session.emit({"type": "host.note", "payload": {"n": number}})
            session.resume_run(old)
            facts.extend(session.facts())
    check_log(facts)
    return [(fact.run_id if fact.run_id != old else "old", fact.key) for fact in facts]


@pytest.mark.parametrize("face", FACES)
def test_k01_what_else_happens_shifts_no_id(face: str, db: Path, quick: Path) -> None:
    """K01: the same resume with and without 20 more events: equal run ids, fact keys and hashes; facts have keys of
    their own, events and traces numbers of their own, and nothing but sessions and runs draws an id."""
    first = resumed(face, db, fixed())
    second = resumed(face, quick / "b.db", fixed(), emits=20)
    assert first == second and ("run-r-0", "t1-end") in first
    assert head(db) == head(quick / "b.db")


@pytest.mark.parametrize("face", FACES)
def test_k01_a_replayed_generator_skips_ids_that_the_file_holds(face: str, db: Path) -> None:
    """§11: the resuming process counts from 0 again."""
    env = HostEnv(SequentialIdGenerator("r"), FixedClock(1_700_000_000_000))
    with Agent(db, model=Again([done()] * 3), tools=Tools().all(), host_env=env, durability="process") as agent:
        session = agent.session("/w", SessionOptions(session_id="earlier"))
        assert [session.send("Hi.").run_id for _ in range(2)] == ["run-r-0", "run-r-1"]
    assert ("run-r-2", "t1-end") in resumed(face, db, fixed())


class Backwards:
    """A clock that goes back an hour at each look, and counts them."""

    def __init__(self) -> None:
        self.now, self.looks = 1_700_000_000_000, 0

    def now_ms(self) -> int:
        self.looks += 1
        self.now -= 3_600_000
        return self.now


@pytest.mark.parametrize("face", FACES)
def test_k03_order_is_by_seq_whatever_the_clock_does(face: str, db: Path, quick: Path) -> None:
    """K03: a clock that runs backwards (and one that stands): the same facts in the same order, and no event of a run
    is older than the one before it. A commit looks at the clock once for all the facts in it (the case's "once per
    fact", in our units): the facts of one commit bear one time."""
    clock = Backwards()
    first = resumed(face, db, HostEnv(SequentialIdGenerator("r"), clock))
    assert first == resumed(face, quick / "b.db", fixed())
    assert head(db) == head(quick / "b.db")
    with Eyes(db) as eyes:
        order = [row[0] for row in eyes.rows("SELECT seq FROM facts")]
        assert order == sorted(order) == list(range(1, len(order) + 1))
        times = eyes.rows("SELECT stream_pk, ts_ms FROM event ORDER BY id")
        assert times == sorted(times)
        commits = eyes.rows("SELECT ts_ms, count(*) FROM fact GROUP BY ts_ms")
    assert len(commits) < len(order) and clock.looks <= 60


def _never(*args: object, **named: object) -> Any:
    raise AssertionError("a stored id or time was taken from the world")


@pytest.mark.parametrize("face", FACES)
def test_k05_a_resume_takes_no_id_and_no_time_from_the_world(face: str, db: Path, monkeypatch) -> None:
    """K05: with a fixed clock and sequential ids the wall clock and the random sources are not asked: 0 calls. (The
    name of the owner's lock file is exempt (§11): it is drawn when the agent opens, before the sources are cut off.)"""
    by_hand(db, SCRIPT, wrap=dies_at("inflight_start"))
    old, named = last_run(db) or "", {"model": Again(SCRIPT), "tools": Tools().all(), "durability": "process"}

    def cut_off(patch: pytest.MonkeyPatch) -> None:
        for module, name in ((time, "time"), (time, "time_ns"), (uuid, "uuid4"), (uuid, "uuid1"), (random, "random"),
                             (random, "uniform"), (secrets, "token_hex"), (secrets, "token_bytes")):  # fmt: skip
            patch.setattr(module, name, _never)

    async def asynchronously() -> str:
        async with AsyncAgent(db, host_env=fixed(), **named) as agent:  # type: ignore[arg-type]
            with monkeypatch.context() as patch:
                cut_off(patch)
                session = await agent.resume_session("s")
                return (await session.resume_run(old)).text

    if face == "async":
        assert asyncio.run(asynchronously()) == "All is done."
        return
    with Agent(db, host_env=fixed(), **named) as agent, monkeypatch.context() as patch:  # type: ignore[arg-type]
        cut_off(patch)
        assert agent.resume_session("s").resume_run(old).text == "All is done."


@pytest.mark.parametrize("face", FACES)
def test_k06_a_thousand_events_of_one_time_in_the_order_they_came(face: str, db: Path) -> None:
    """K06: on the stream of a resumed run, half of them from before its process died; the plan sorts by no time."""
    tools = Tools()
    script = [calls("look:1"), done()]
    by_hand(db, script, wrap=dies_at("inflight_start"))
    old = last_run(db) or ""
    with Eyes(db) as eyes:
        for number in range(500):
            eyes.db.execute(
                "INSERT INTO event_in(run_id, type, payload, ts_ms) VALUES(?, 'n', json_object('n', ?), 7)",
                (old, number),
            )
    named: dict[str, Any] = {"model": Again(script), "tools": tools.all(), "durability": "process", "host_env": fixed()}

    def more(emit: Any) -> None:
        for number in range(500):
            emit({"type": "n", "payload": {"n": number}})

    async def asynchronously() -> tuple[Any, Any]:
        async with AsyncAgent(db, **named) as agent:
            session = await agent.resume_session("s")
            new = (await session.resume_run(old)).run_id
            for number in range(500):
                await session.emit({"type": "n", "payload": {"n": number}})
            return await session.run_events(new), await session.events()

    if face == "async":
        _, channel = asyncio.run(asynchronously())
    else:
        with Agent(db, **named) as agent:
            session = agent.resume_session("s")
            session.resume_run(old)
            more(session.emit)
            channel = session.events()
    assert [event.payload["n"] for event in channel] == list(range(500))
    assert len({event.metadata["timestamp_ms"] for event in channel}) == 1
    with Eyes(db) as eyes:
        waiting = eyes.rows("SELECT json_extract(payload, '$.n') FROM inbox WHERE kind = 'event' ORDER BY inbox_pk")
        recorded = eyes.rows("SELECT json_extract(e.payload, '$.n') FROM event e JOIN run_identity i ON i.run_pk ="
                             " e.stream_pk WHERE i.run_id = ? AND e.type = 'n' ORDER BY e.id", old)  # fmt: skip
        assert [row[0] for row in recorded + waiting] == list(range(500))
        plan = eyes.rows("EXPLAIN QUERY PLAN SELECT * FROM event WHERE id BETWEEN 1 << 32 AND 2 << 32 ORDER BY id")
        assert not any("TEMP B-TREE" in str(row) for row in plan)
