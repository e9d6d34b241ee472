"""An answer that another program wrote and nobody can read (§10): it is no consent, stops no run and hides no wait."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thence import Defer, Question, tool

from ..kit import results
from ..resume.hand import by_hand
from ..resume.kit import Again, Tools, calls, done, last_run
from .kit import C0, Plain, asks, ended_well
from .test_outcomes import CHARGE, RAN

CUT = b"\xf0\x9f\x98"
"""Bytes that are no UTF-8 and that SQLite does not notice."""
UNREADABLE: dict[str, bytes] = {
    "infinite": b'{"approved":true,"outcome":"run","x":1e999}',
    "a lone surrogate": b'{"approved":true,"outcome":"run","x":"\\ud800"}',
    "5000 digits": b'{"approved":true,"outcome":"run","x":' + b"9" * 5000 + b"}",
    "deep": b'{"approved":true,"outcome":"run","x":' + b"[" * 201 + b"]" * 201 + b"}",
    "no UTF-8": b'{"approved":true,"outcome":"run","x":"' + CUT + b'"}',
}


def put(here: Any, value: bytes, by: bytes = b"ann") -> None:
    with Plain(here.db) as plain:
        plain.db.execute(
            """INSERT INTO wait_answer(wait_pk, value, by, digest, answered_ms)
               SELECT w.wait_pk, CAST(? AS TEXT), CAST(? AS TEXT), w.digest, w.opened_ms FROM wait w
               JOIN session s ON s.session_pk = w.session_pk WHERE s.session_id = 's'""",
            (value, by),
        )


@pytest.mark.parametrize("case", UNREADABLE)
async def test_it_is_a_no_that_says_why(desk, case: str):
    here = desk([calls("put:1"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    put(here, UNREADABLE[case])
    [wait] = await session.waits()
    assert (wait.state, wait.value) == ("answered", {"approved": False, "reason": "the answer cannot be read"})
    session = await here.reopen()
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert here.effects.ran == []
    facts = await ended_well(session, result.run_id)
    assert results(facts) == [(C0, False, "Error: rejected by ann: the answer cannot be read")]


@pytest.mark.parametrize("kind", [Question, Defer])
async def test_a_result_that_cannot_be_read_is_an_error(desk, kind: Any):
    @tool
    def ask(n: int) -> str:
        raise kind("Which one?")

    here = desk([calls("ask:1"), done()], tools=[ask])
    session, result = await here.parked()
    put(here, UNREADABLE["infinite"])
    assert (await session.resume_run(result.run_id)).status == "completed"
    facts = await ended_well(session, result.run_id)
    assert results(facts) == [(C0, False, "Error: the answer cannot be read")]


@pytest.mark.parametrize("value", [UNREADABLE["infinite"], b"{}"], ids=["unreadable", "without an outcome"])
async def test_an_outcome_that_cannot_be_read_is_a_failure(world, value: bytes):
    """A `once` call of which nobody knows what came is not run on a word that nobody can read."""
    before, after = Tools(), Tools()
    by_hand(world.db, CHARGE, wrap=RAN, tools=before)
    agent = await world.agent(model=Again(CHARGE), tools=after.all(), durability="process")
    session = await agent.resume_session("s")
    result = await session.resume_run(last_run(world.db) or "")
    assert result.status == "parked"
    put(world, value)
    assert (await session.resume_run(result.run_id)).status == "completed"
    ran = after.keys()
    assert C0 not in ran
    [(key, ok, text)] = [found for found in results(await session.facts()) if found[0] == C0]
    assert not ok and ("cannot be read" in text or value == b"{}"), (key, text)


async def test_the_waits_of_others_are_listed(desk):
    here = desk([calls("put:1"), done()], permission_policy=asks("put"))
    await here.parked()
    other = await here.session("other")
    await other.send("Go.")
    put(here, UNREADABLE["deep"], by=b"me" + CUT)
    listed = await here.agent.waits()
    assert [(wait.session_id, wait.state, wait.by) for wait in listed] == [
        ("s", "answered", "me\ufffd"), ("other", "open", None),
    ]  # fmt: skip
    assert json.dumps([wait.to_dict() for wait in listed])
    report = await here.agent.recover(options=lambda *_: None)
    assert report is not None


async def test_depth_and_size_at_the_limit(desk):
    """What can be read is what was said, however deep and long."""
    deep: Any = "x"
    for _ in range(199):
        deep = [deep]

    @tool
    def ask(n: int) -> str:
        raise Question("Which one?")

    here = desk([calls("ask:1"), done()], tools=[ask])
    session, result = await here.parked()
    put(here, json.dumps(deep).encode())
    assert (await session.resume_run(result.run_id)).status == "completed"
    [(_, ok, text)] = results(await ended_well(session, result.run_id))
    assert ok and json.loads(text) == deep


async def test_an_answer_of_more_than_the_log_takes(desk):
    """Refused by name where the library is asked; from elsewhere, it cannot be read."""

    @tool
    def ask(n: int) -> str:
        raise Question("Which one?")

    here = desk([calls("ask:1"), done()], tools=[ask])
    session, result = await here.parked()
    with pytest.raises(ValueError, match="'value' has 17825794 bytes; the limit is 16777216"):
        await session.answer(result.waits[0].id, "x" * 17 * 1024 * 1024)
    put(here, b"[" + b",".join([b"1E15"] * 1_000_000) + b"]", by=b"x" * 20_000_000)
    assert (await session.resume_run(result.run_id)).status == "completed"
    [(_, ok, text)] = results(await ended_well(session, result.run_id))
    assert not ok and text == "Error: the answer cannot be read"
