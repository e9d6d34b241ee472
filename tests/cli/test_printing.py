"""Events as a person sees them."""

from __future__ import annotations

from typing import Any

from thence.cli.printing import Printer
from thence.events import Event


def event(kind: str, sequence: int | None = None, **payload: object) -> Event:
    return Event(kind, payload, {"sequence": sequence, "run_id": "r"})


def printed(capsys, *events: Event) -> Any:
    printer = Printer()
    for one in events:
        printer.event(one)
    return capsys.readouterr()


def test_a_late_reader_sees_each_text_once(capsys):
    ends = event("turn_end", 3, turn=1, text="Hello world.")
    assert printed(capsys, event("turn_start", turn=1), event("text_delta", text="Hello "), ends)[0] == "Hello world.\n"
    assert printed(capsys, event("turn_start", turn=1), ends)[0] == "Hello world.\n"
    cut = event("turn_end", 3, turn=1, text="Hello… [9 more characters]")
    assert (
        printed(capsys, event("turn_start", turn=1), event("text_delta", text="Hello 123456789"), cut)[0]
        == "Hello 123456789\n"
    )


def test_a_broken_stream_is_told(capsys):
    out, err = printed(
        capsys,
        event("turn_start", turn=1),
        event("text_delta", text="Hel"),
        event("turn_start", turn=1),
        event("text_delta", text="Hello."),
        event("turn_end", turn=1, text="Hello."),
    )
    assert (out, "asked for again" in err) == ("Hel\nHello.\n", True)


def test_refused_calls_and_events_of_others_are_told(capsys):
    _, err = printed(
        capsys,
        event("tool_end", id="k", name="rm\x1b", output="Error: no", exit_code=1, error_kind="duplicate"),
        event("peer_invocation", from_session_id="a\x1b[2J"),
        event("retention_gap", first_missing=3, next_available=9),
        event("tool_input_delta", delta="{"),
    )
    lines = err.splitlines()
    assert lines[0] == "  < rm\\x1b not run (duplicate), failed: no"
    assert lines[1].startswith("  peer_invocation: ") and "\x1b" not in lines[1]
    assert lines[2] == "events 3 to before 9 are no longer kept"
    assert len(lines) == 3
