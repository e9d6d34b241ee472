"""Awkward prompts, answers, calls and events: they come back as they were, or are refused by name (§4, §5, §10)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thence import SessionOptions, ThenceError
from thence.testing import ScriptedModel, call, reply

from .kit import LONE, Face, nested
from .turn_kit import RECEIVED, run, take, tool_messages

PROMPTS: dict[str, str] = {
    "NUL": "a\0b",
    "control": "\x01\x1b[2J\x7f\x85 x",
    "1 MB": "é" * 500_000,
    "blank lines around": "\n\n x \n\n",
    "emoji": "🙂👩‍👩‍👧 \U0010ffff",
    "right to left": "\u202eabc\u200f",
    "SQL": "'; DROP TABLE fact;--",
    "JSON": '{"role": "system"}',
    "CRLF": "a\r\nb\rc",
}


@pytest.mark.parametrize("what", PROMPTS)
def test_prompts_come_back_as_they_were(face: Face, db, what):
    prompt = PROMPTS[what]
    history = run(face, db, [], [], prompt=prompt)
    assert history[0].text == prompt
    agent = face.agent(db)
    session = face.do(lambda: agent.resume_session("s"))
    assert face.do(session.runs)[0].prompt == prompt


@pytest.mark.parametrize("text", ["a\0b", "\x1b[2J", "🙂", "x" * 1_000_000, "'; --", "\ufeff"])
def test_answers_come_back_as_they_were(face: Face, db, text):
    history = run(face, db, [reply(text, [call("take", {"x": 1})])], [take])
    assert history[1].text == text


ODD_CALLS: dict[str, Any] = {
    "unknown tool": call("nothing_of_the_kind"),
    "empty name": call(""),
    "a name with NUL": call("take\0"),
    "another case": call("Take"),
    "a very long name": call("t" * 100_000),
    "a name like SQL": call("take'; DROP TABLE fact;--"),
    "a lone surrogate": call("take\ud800"),
    "an id that is empty": call("take", {"x": 1}, id=""),
    "an id with NUL": call("take", {"x": 1}, id="a\0b"),
    "an id that is long": call("take", {"x": 1}, id="i" * 100_000),
    "an id with a lone surrogate": call("take", {"x": 1}, id="a\ud800"),
}


@pytest.mark.parametrize("what", ODD_CALLS)
def test_a_call_that_no_tool_answers_to_has_its_result_all_the_same(face: Face, db, what):
    RECEIVED.clear()
    if "surrogate" in what:
        refused_or_mended(face, db, [reply("", [ODD_CALLS[what]])])
        return
    history = run(face, db, [reply("", [ODD_CALLS[what]])], [take])
    (message,) = tool_messages(history)
    assert message.ok == (" id " in f" {what} " or what.startswith("an id"))
    assert len(RECEIVED) == message.ok
    if not message.ok:
        assert message.text.startswith("Error: ")
        assert len(message.text.encode()) <= 32_768


@pytest.mark.parametrize("script", [[reply(LONE)], [reply("x", deltas=[LONE])]], ids=["text", "delta"])
def test_an_answer_with_a_lone_surrogate(face: Face, db, script):
    refused_or_mended(face, db, script)


def refused_or_mended(face: Face, db: Path, script: list[Any]) -> None:
    """A model broke the rules of text: a typed error or valid UTF-8, never a bare codec error; the session goes on."""
    agent = face.agent(db, model=ScriptedModel([*script, reply("Done."), reply("Done.")]), tools=[take])
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s")))
    try:
        face.do(lambda: session.send("Go."))
    except ThenceError as error:
        assert error.run_id is not None
        str(error).encode()
    for message in face.do(session.history):
        message.text.encode()
    assert face.do(lambda: session.send("Go on.", on_interrupted="settle")).text == "Done."


def test_events_of_every_shape_come_back_as_they_were(face: Face, db):
    payloads: list[dict[str, Any]] = [
        {}, {"n": 2**70}, {"t": "a\0b"}, {"": ""}, {"d": nested(198)}, {"f": -0.0, "g": 1e308}, {"e": "🙂"},
        {"big": "x" * 1_000_000},
    ]  # fmt: skip
    agent = face.agent(db)
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s")))
    for number, payload in enumerate(payloads):
        face.do(partial(session.emit, {"type": f"type {number} 🙂", "payload": payload}))
    events = face.do(session.events)
    assert [event.payload for event in events] == payloads
    assert repr(events[5].payload["f"]) == "-0.0"
    assert [event.metadata["sequence"] for event in events] == list(range(len(payloads)))
    face.close()
    agent = face.agent(db)
    session = face.do(lambda: agent.resume_session("s"))
    assert face.do(session.events) == events
