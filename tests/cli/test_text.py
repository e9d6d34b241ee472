"""Text for a terminal: made harmless, cut to fit, aligned."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.cli.summary import short_arguments, short_result, tell_event, tell_fact
from thence.cli.text import age, clip, fields, json_text, moment, one_line, table, visible, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("over\rwrite\x08", "over\\x0dwrite\\x08"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud800", "\\ud800"),
        ("é 中 🙂", "é 中 🙂"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    for made in (visible(text), json_text({"x": text}), one_line(text), clip(visible(text), 10)):
        assert not [char for char in made if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160]
        made.encode()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_is_read_back_as_it_was(value: object) -> None:
    assert json.loads(json_text(value)) == value
    assert "\n" not in json_text(value, indent=None)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(1, 30))
def test_clipped_text_fits(text: str, columns: int) -> None:
    for keep_end in (False, True):
        made = clip(text, columns, keep_end=keep_end)
        assert width(made) <= columns
        assert made == text or "…" in made


def test_a_wide_character_takes_two_columns() -> None:
    assert (width("中文"), clip("中文字", 5), clip("abcdef", 4, keep_end=True)) == (4, "中文…", "…def")


def test_table_fits_and_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"id": "中文", "n": 5, "text": "word " * 20}, {"id": "abcdef", "n": 12345, "text": "\x1b[2J\nx"}]
    lines = table(rows, flexible="text", right=("n",)).splitlines()
    assert lines[0].split() == ["id", "n", "text"]
    assert max(map(width, lines)) <= 40
    assert [width(line[: line.index(word)]) for line, word in zip(lines[2:], ("word", "\\x1b"), strict=True)] == [
        15,
        15,
    ]
    assert lines[3].endswith("\\x1b[2J x")
    assert lines[2].rstrip().endswith("…")


def test_fields_leave_out_what_is_not_there() -> None:
    assert (
        fields({"a": 1, "none": None, "empty": "", "long name": "x\ny"}) == "a          1\nlong name  x\n           y"
    )


def test_times_that_no_calendar_has() -> None:
    assert moment(2**62) == f"{2**62} ms"
    assert age(2**62) == "0s"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"path": "a b", "n": 3, "deep": [1, {"x": None}]}, 'path="a b" n=3 deep=[1,{"x":null}]'),
        ({"\x1b": "\x1b[0m"}, "\\x1b=\\x1b[0m"),
        ('{"broken', '{"broken'),
        (None, ""),
    ],
)
def test_arguments_in_a_line(arguments: object, shown: str) -> None:
    assert short_arguments(arguments, 100) == shown


def test_results_in_a_line() -> None:
    assert short_result("one\n\ntwo\n", True, 80) == "3 lines: one | two"
    assert short_result("Error: no such file", False, 80) == "failed: no such file"
    assert short_result("", True, 80) == "(nothing)"
    assert width(short_result("x" * 1_000_000, True, 40)) == 40


@pytest.mark.parametrize(
    "kind", ["user.message", "model.turn", "tool.result", "run.configured", "turn.ended", "wait.opened"]
)
def test_facts_that_say_little_are_shown(kind: str) -> None:
    assert isinstance(tell_fact(kind, {}), str)
    assert tell_fact(kind, None) == "[cannot be read]"
    assert "\x1b" not in tell_fact(kind, {"text": "\x1b", "status": "\x1b", "model": "\x1b", "parts": []})


def test_events_of_others_are_shown() -> None:
    assert tell_event("mine", {"b": 1, "a": "\x1b"}) == "b=1 a=\\x1b"
    assert tell_event("mine", {}) == ""
    assert tell_event("tool_end", {"name": "ls", "output": "a\nb", "exit_code": 0}) == "ls 2 lines: a | b"
