"""Awkward values in arguments, results, prompts and answers: a defined outcome, and the run goes on (§4, §5): J04."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import json
import re
import uuid
from typing import Any

import pytest

from thence import ToolOutput, tool
from thence.testing import call, reply

from .kit import INF, LONE, NAN, Face, nested
from .turn_kit import RECEIVED, run, take, tool_messages

GOOD_ARGUMENTS: dict[str, str] = {
    "2**70": '{"x": 1180591620717411303424}',
    "-2**70": '{"x": -1180591620717411303424}',
    "4,000 digits": '{"x": ' + "9" * 4000 + "}",
    "NUL": '{"x": "a\\u0000b"}',
    "control": '{"x": "\\u0001\\u001b[2J\\u007f\\u0085"}',
    "emoji by surrogates": '{"x": "\\ud83d\\ude42"}',
    "raw emoji": '{"x": "🙂"}',
    "depth 199 of lists": '{"x": ' + "[" * 199 + "]" * 199 + "}",
    "-0.0": '{"x": -0.0}',
    "1e308": '{"x": 1e308}',
    "empty key": '{"x": {"": 1, " ": 2, "a\\u0000": 3}}',
    "null": '{"x": null}',
    "1 MB": '{"x": "' + "z" * 1_000_000 + '"}',
    "noncharacters": '{"x": "\\uffff\\ufeff\\u2028\\u2029"}',
}


@pytest.mark.parametrize("what", GOOD_ARGUMENTS)
def test_arguments_reach_the_tool_exactly(face: Face, db, what):
    text = GOOD_ARGUMENTS[what]
    RECEIVED.clear()
    history = run(face, db, [reply("", [call("take", text)])], [take])
    want = json.loads(text)["x"]
    (received,) = RECEIVED
    assert received == want
    assert repr(received) == repr(want)
    (asked,) = history[1].calls
    assert json.loads(asked.arguments) == {"x": want}
    assert tool_messages(history)[0].ok


BAD_ARGUMENTS: dict[str, str] = {
    "NaN": '{"x": NaN}',
    "infinity": '{"x": -Infinity}',
    "1e999": '{"x": 1e999}',
    "lone surrogate": '{"x": "\\ud800"}',
    "raw lone surrogate": '{"x": "\ud800"}',
    "lone surrogate in a key": '{"x": {"\\udfff": 1}}',
    "depth 201": '{"x": ' + "[" * 200 + "]" * 200 + "}",
    "depth 100,000": "[" * 100_000,
    "4,301 digits": '{"x": ' + "9" * 4301 + "}",
    "truncated": '{"x": "a',
    "not an object": "[1]",
    "a text": '"x"',
    "raw control": '{"x": "a\nb"}',
    "NUL after it": '{"x": 1}\0',
    "two objects": '{"x": 1}{"x": 2}',
    "empty": "",
    "a BOM": '\ufeff{"x": 1}',
    "not JSON": "x=1",
    "missing": "{}",
    "unknown": '{"x": 1, "y": 2}',
}


@pytest.mark.parametrize("what", BAD_ARGUMENTS)
def test_malformed_arguments_are_a_failed_result_and_never_reach_the_tool(face: Face, db, what):
    RECEIVED.clear()
    history = run(face, db, [reply("", [call("take", BAD_ARGUMENTS[what])])], [take])
    if what == "empty" and RECEIVED:
        pytest.fail("a call ran on arguments that were never sent")
    assert RECEIVED == []
    (message,) = tool_messages(history)
    assert not message.ok
    assert message.text.startswith("Error: ")
    assert len(message.text) < 5000
    # what a provider is shown again is valid JSON, always
    for asked in history[1].calls:
        assert isinstance(json.loads(asked.arguments), dict)


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Colour(enum.Enum):
    RED = "red"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

GOOD_RESULTS: dict[str, tuple[Any, str]] = {
    "2**70": (2**70, "1180591620717411303424"),
    "2**70 inside": ({"n": [2**70]}, '{"n":[1180591620717411303424]}'),
    "depth 200": (nested(200), "[" * 200 + "1" + "]" * 200),
    "-0.0": (-0.0, "-0.0"),
    "NUL": ("a\0b", "a\0b"),
    "control": ("\x01\x1b[2J\x7f\x85", "\x01\x1b[2J\x7f\x85"),
    "emoji": ("🙂👩‍👩‍👧", "🙂👩‍👩‍👧"),
    "None": (None, ""),
    "empty": ("", ""),
    "datetime": (datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), '"2024-01-02T03:04:05+00:00"'),
    "uuid": (uuid.UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
    "set": ({3, 1, 2}, "[1,2,3]"),
    "bytes": (b"\xff\x00", '{"base64":"/wA="}'),
    "text bytes": (b"abc", "abc"),
    "decimal": (decimal.Decimal("0.10"), '"0.10"'),
    "dataclass": (Point(1, 2.5), '{"x":1,"y":2.5}'),
    "enum": (Colour.RED, "red"),
    "tuple": ((1, "a", None, True), '[1,"a",null,true]'),
    "blank key": ({"": 1}, '{"":1}'),
}


@pytest.mark.parametrize("what", GOOD_RESULTS)
def test_results_are_kept_without_loss(face: Face, db, what):
    value, text = GOOD_RESULTS[what]

    @tool
    def give() -> Any:
        """Give."""
        return value

    history = run(face, db, [reply("", [call("give")])], [give])
    (message,) = tool_messages(history)
    assert message.ok
    assert message.text == text or (text.startswith('"') and message.text == json.loads(text))


BAD_RESULTS: dict[str, tuple[Any, str]] = {
    "NaN": (NAN, "float.*nan"),
    "infinity inside": ([1, {"x": -INF}], "float.*inf"),
    "lone surrogate": (LONE, "str.*surrogate"),
    "lone surrogate in a key": ({LONE: 1}, "surrogate"),
    "depth 201": (nested(201), "deeper than 200"),
    "depth 5,000": (nested(5000), "deeper than 200"),
    "a cycle": (CYCLE, "list"),
    "5,000 digits": (10**5000, "digits"),
    "an object": (object(), "object"),
    "a function": (len, "builtin_function"),
    "one key twice": ({1: "a", "1": "b"}, "two keys"),
    "metadata NaN": (ToolOutput("x", metadata={"n": NAN}), "nan"),
}


@pytest.mark.parametrize("what", BAD_RESULTS)
def test_a_result_without_a_form_is_a_failed_result_that_names_the_type(face: Face, db, what):
    value, words = BAD_RESULTS[what]
    ran: list[int] = []

    @tool
    def give() -> Any:
        """Give."""
        ran.append(1)
        return value

    history = run(face, db, [reply("", [call("give")])], [give])
    (message,) = tool_messages(history)
    assert ran == [1]
    assert not message.ok
    assert message.text.startswith("Error: the tool ran, but its result cannot be recorded")
    assert len(message.text) < 2000
    assert re.search(words, message.text), message.text


def test_a_result_of_one_hundred_megabytes_is_cut(face: Face, db):
    """F04, §5: head and tail with a marker for the model; beyond 16 MiB only size and hash are kept."""
    size = 100_000_000
    value = "x" * (size - 4) + "tail"

    @tool
    def give() -> str:
        """Give."""
        return value

    history = run(face, db, [reply("", [call("give")])], [give])
    (message,) = tool_messages(history)
    assert message.ok
    assert len(message.text.encode()) <= 32_768
    assert message.text.startswith("xxx")
    assert message.text.endswith("tail")
    agent = face.agent(db)
    session = face.do(lambda: agent.resume_session("s"))
    (fact,) = [fact for fact in face.do(session.facts) if fact.kind == "tool.result"]
    metadata = json.loads(fact.text)["metadata"]
    assert hashlib.sha256(value.encode()).hexdigest() in json.dumps(metadata)
    assert str(size) in json.dumps(metadata)
    face.close()
    assert db.stat().st_size < 4_000_000


@pytest.mark.parametrize("size", [1001, 1002, 1003, 1004])
def test_a_cut_never_splits_a_character(face: Face, db, size):
    """J01."""

    @tool
    def give() -> str:
        """Give."""
        return "🙂" * 10_000

    history = run(face, db, [reply("", [call("give")])], [give], max_tool_output_bytes=size)
    (message,) = tool_messages(history)
    assert len(message.text.encode()) <= size
    assert not any(0xD800 <= ord(character) < 0xE000 for character in message.text)
    assert "�" not in message.text
