"""What a run waits for, for a person who is to say yes or no to it: all of it, exactly (§10, §13)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..answers import YES_OR_NO
from ..waits import Wait
from .options import Settings
from .summary import about
from .text import age, clip, columns, count, fields, json_text, moment, table, visible, width

_PLAIN_NAME = re.compile(r"[\w.-]+")


def waits_text(settings: Settings, found: Sequence[Wait]) -> str:
    """A table of waits. Ids are whole, so that they can be pasted; what does not fit has a line of its own."""
    rows: list[dict[str, object]] = [
        {
            "wait": wait.id,
            "session": wait.session_id,
            "kind": wait.kind.replace("_", " "),
            "state": _state(wait),
            "age": age(wait.opened_ms),
        }
        for wait in found
    ]
    subjects = [about(wait) for wait in found]
    whole = table([{**row, "about": subject} for row, subject in zip(rows, subjects, strict=True)], right=("age",))
    if max(map(width, whole.splitlines())) <= columns():
        return whole
    head, rule, *lines = table(rows, right=("age",)).splitlines()
    shown = [clip(subject, columns() - 3) for subject in subjects]
    made = [head, rule, *(f"{line}\n  {subject}" for line, subject in zip(lines, shown, strict=True))]
    if shown != subjects:
        made.append(f"\ncut where it says …; all of one: {settings.command('waits', 'WAIT')}")
    return "\n".join(made)


def wait_text(settings: Settings, wait: Wait) -> str:
    """A wait with nothing left out, and what to type about it."""
    head = fields(
        {
            "wait": wait.id,
            "session": wait.session_id,
            "run": wait.run_id,
            "kind": wait.kind.replace("_", " "),
            "state": _state(wait),
            "opened": f"{moment(wait.opened_ms)} ({age(wait.opened_ms)} ago)",
            "answer": None if wait.state == "open" else json_text(wait.value, indent=None),
            "by": wait.by,
        }
    )
    return "\n".join([head, "", asked_text(wait), *(["", *say_lines(settings, wait)] if wait.state == "open" else [])])


def asked_text(wait: Wait) -> str:
    """What a wait is about, whole: the call with every argument as it is, and the question.

    A value is JSON, so that a text is not taken for a number; a text of several lines has a bar before each.
    """
    lines = [f"call      {visible(wait.tool)}"] if wait.tool else [f"about     {visible(wait.subject)}"]
    if wait.tool:
        lines += _arguments(wait.arguments or {})
    if wait.question:
        lines += ["question", *_barred(wait.question)]
    return "\n".join(lines)


def _arguments(given: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    names = {name: name if _PLAIN_NAME.fullmatch(name) else json_text(name, indent=None) for name in given}
    longest = max(map(len, names.values()), default=0)
    for name, value in given.items():
        if isinstance(value, str) and "\n" in value:
            lines += [f"  {names[name]:<{longest}}  {count(value.count(chr(10)) + 1, 'line')} of text", *_barred(value)]
            continue
        text = json_text(value, indent=None)
        if len(text) > columns() and not isinstance(value, str):
            text = json_text(value).replace("\n", "\n" + " " * (longest + 4))
        lines.append(f"  {names[name]:<{longest}}  {text}")
    return lines or ["  without arguments"]


def _barred(text: str) -> list[str]:
    return [f"    | {line}" for line in visible(text).split("\n")]


def say_lines(settings: Settings, wait: Wait) -> list[str]:
    """What to type about an open wait."""
    words = (wait.id, "-s", wait.session_id)
    if wait.kind in YES_OR_NO:
        return [f"yes:  {settings.command('approve', *words)}", f"no:   {settings.command('reject', *words)}"]
    return [f"say:  {settings.command('answer', *words)} VALUE"]


def _state(wait: Wait) -> str:
    return wait.state if wait.deadline_ms is None else f"{wait.state}, until {moment(wait.deadline_ms)}"
