"""SQLite itself decides who answered a wait (§10): no plain program breaks that, and of two at once one wins."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, SessionOptions, ThenceError, WaitError

from ..kit import results
from ..resume.kit import Again, calls, done
from .kit import C0, C1, Desk, Effects, Plain, asks, said_yes, wait_error

W = f"{C0}-w1"


def put_desk(desk: Any, **more: Any) -> Desk:
    made: Desk = desk([calls("put:1"), done()], permission_policy=asks("put", **more))
    return made


# ------------------------------------------------------------------ SQLite decides


async def test_a_plain_program_may_answer(desk):
    """§10: inserting the row is what decides, whoever inserts it; the planted fault of the refusals below."""
    here = put_desk(desk)
    session, result = await here.parked()
    with Plain(here.db) as plain:
        plain.answer()
    [wait] = await session.waits()
    assert (wait.state, wait.value, wait.by) == ("answered", True, "plain")
    with wait_error("WAIT_ALREADY_ANSWERED"):
        await session.answer(W, False)
    await session.resume_run(result.run_id)
    assert here.effects.keys() == [C0]


@pytest.mark.parametrize("verb", ["INSERT", "INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE"])
@pytest.mark.parametrize("fault", ["digest", "deadline", "nobody", "twice", "closed"])
async def test_a_plain_program_breaks_no_rule(desk, verb: str, fault: str):
    """§10: digest, deadline, one answer per wait, and closed waits: refused by SQLite itself, under any conflict
    clause, and nothing is changed."""
    here = put_desk(desk, timeout_ms=1_000)
    session, _ = await here.parked()
    code = {
        "digest": "WAIT_DIGEST_MISMATCH", "deadline": "WAIT_EXPIRED", "nobody": "WAIT_NOT_FOUND",
        "twice": "WAIT_ALREADY_ANSWERED", "closed": "WAIT_CLOSED",
    }[fault]  # fmt: skip
    if fault == "closed":
        await session.cancel()
    with Plain(here.db) as plain:
        if fault == "twice":
            plain.answer(value="false")
        opened = plain.one("SELECT opened_ms FROM wait")
        other: dict[str, Any] = {
            "digest": {"digest": "00" * 32}, "deadline": {"answered_ms": opened + 1_001}, "nobody": {"wait_pk": 999},
        }.get(fault, {})  # fmt: skip
        before = plain.state()
        with pytest.raises(sqlite3.IntegrityError, match=f"thence:{code}"):
            plain.answer(verb, **other)
        assert plain.state() == before


async def test_an_answer_is_never_changed(desk):
    """§10: neither rewritten, nor taken back to make room for another."""
    here = put_desk(desk)
    await here.parked()
    with Plain(here.db) as plain:
        plain.answer(value="false")
        before = plain.state()
        for sql in (
            "UPDATE wait_answer SET value = 'true'",
            "UPDATE OR REPLACE wait_answer SET value = 'true'",
            "UPDATE wait_answer SET by = 'ann'",
            "DELETE FROM wait_answer",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="thence:"):
                plain.db.execute(sql)
        assert plain.state() == before


@pytest.mark.parametrize("value", ["{oops", "", "1 2"])
async def test_an_answer_is_json(desk, value: str):
    """§10, schema: a value that is no JSON is refused by the table."""
    here = put_desk(desk)
    await here.parked()
    with Plain(here.db) as plain, pytest.raises(sqlite3.IntegrityError):
        plain.answer(value=value)


@pytest.mark.parametrize("value", ['"yes"', "1", "null", "{}", "[]", '{"approved":"true"}'])
async def test_a_plain_answer_of_the_wrong_shape_never_approves(desk, value: str):
    """§10, fail closed: whatever another program wrote there, only a true approval lets the call run. (Refused by
    SQLite, refused on resume or taken as a rejection: the contract leaves it open.)"""
    here = put_desk(desk)
    session, result = await here.parked()
    try:
        with Plain(here.db) as plain:
            plain.answer(value=value)
        await session.resume_run(result.run_id)
    except (sqlite3.IntegrityError, ThenceError):
        pass
    assert here.effects.ran == []


# ------------------------------------------------------------------ two answerers at once


def _two_hundred(db: Path) -> list[str]:
    """A parked run with 200 open waits; returns their ids. (Reads that are asked about are all open at once.)"""
    script = [calls(*[f"peek:{n}" for n in range(200)]), done()]
    effects = Effects()
    with Agent(db, model=Again(script), tools=effects.tools(), durability="process") as agent:
        session = agent.session("/w", SessionOptions(session_id="s", permission_policy=asks("peek")))
        result = session.send("Go.")
        assert result.status == "parked" and len(result.waits) == 200
        return [wait.id for wait in result.waits]


def _judge(db: Path, said: dict[str, list[tuple[str, str]]], wait_ids: list[str]) -> dict[str, int]:
    """One winner each, the loser is told so, and the row is the winner's."""
    wins: dict[str, int] = dict.fromkeys(said, 0)
    with Plain(db) as plain:
        kept = dict(plain.rows("SELECT wait_id, answered_by FROM waits"))
    (a, first), (b, second) = said.items()
    assert len(first) == len(second) == len(wait_ids) == len(kept)
    for number, wait_id in enumerate(wait_ids):
        one, two = first[number], second[number]
        assert one[0] == two[0] == wait_id
        assert sorted([one[1], two[1]]) == ["WAIT_ALREADY_ANSWERED", "won"], (one, two)
        winner = a if one[1] == "won" else b
        assert kept[wait_id] == winner
        wins[winner] += 1
    return wins


def test_two_answerers_at_once_in_two_threads(quick):
    """§10, Shows 4: 200 waits, two connections that answer each at the same moment: one winner in 200 of 200, the
    other gets WAIT_ALREADY_ANSWERED; what the run then does is what the winners said."""
    db = quick / "a.db"
    wait_ids = _two_hundred(db)
    barrier = threading.Barrier(2, timeout=30)
    said: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}

    def answerer(name: str, approved: bool) -> None:
        with Agent(db, model=Again([]), durability="process") as agent:
            session = agent.resume_session("s", SessionOptions(permission_policy=asks("peek")))
            for wait_id in wait_ids:
                barrier.wait()
                try:
                    session.answer(wait_id, approved, by=name)
                except WaitError as error:
                    said[name].append((wait_id, error.code))
                else:
                    said[name].append((wait_id, "won"))

    threads = [
        threading.Thread(target=answerer, args=("a", True)),
        threading.Thread(target=answerer, args=("b", False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    wins = _judge(db, said, wait_ids)
    effects = Effects()
    with Agent(db, model=Again([done(), done()]), tools=effects.tools(), durability="process") as agent:
        session = agent.resume_session("s", SessionOptions(permission_policy=asks("peek")))
        result = session.resume_run(session.runs()[0].id)
        assert result.status == "completed"
        assert len(effects.ran) == len(set(effects.keys())) == wins["a"] == result.tool_calls_count
        found = results(session.facts())
        assert [ok for _, ok, _ in found].count(True) == wins["a"] and len(found) == 200


ANSWERER = """
with Agent(db) as agent:
    session = agent.resume_session("s", options(permission_policy=PermissionPolicy(ask=("peek",))))
    folder, name = args
    said = []
    say("ready")
    while (word := hear()):
        go, wait_id = word.split()
        while not os.path.exists(go): pass
        try:
            session.answer(wait_id, name == "a", by=name)
            say(wait_id, "won")
        except WaitError as error:
            say(wait_id, error.code)
"""


def test_two_answerers_at_once_in_two_processes(spawn, quick):
    """§10, Shows 4: the same by two processes."""
    db = quick / "a.db"
    wait_ids = _two_hundred(db)
    children = {name: spawn(ANSWERER, db, quick, name) for name in "ab"}
    for child in children.values():
        child.expect("ready")
    said: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
    for number, wait_id in enumerate(wait_ids):
        go = quick / f"go{number}"
        for child in children.values():
            child.tell(f"{go} {wait_id}")
        go.touch()
        for name, child in children.items():
            one, two = child.line().split()
            said[name].append((one, two))
    for child in children.values():
        child.tell()
        child.finish()
    _judge(db, said, wait_ids)


async def test_answers_are_durable_when_they_return(desk):
    """§5: an answer is acknowledged after its commit; another connection sees it at once."""
    here: Desk = desk([calls("peek:0", "peek:1"), done()], permission_policy=asks("peek"))
    session, _ = await here.parked()
    with Plain(here.db) as plain:
        for number, key in enumerate((C0, C1), 1):
            await session.confirm(key, True, by="ann")
            assert plain.one("SELECT count(*) FROM waits WHERE state = 'answered'") == number
        value = plain.one("SELECT answer FROM waits ORDER BY wait_id")
        assert said_yes(json.loads(value))
