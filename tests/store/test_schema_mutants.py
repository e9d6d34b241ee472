"""Who watches the tests: each trigger removed, each comparison bent, and some check of this folder must notice.

A mutant is one change to the text of triggers.sql. The checks are the ``test_*`` functions of the modules below that
take a file and nothing else; they run on the mutated schema until one fails.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from . import (
    test_schema_door,
    test_schema_fence,
    test_schema_foreign,
    test_schema_inbox,
    test_schema_log,
    test_schema_retention,
    test_schema_waits,
)
from .schema_kit import SchemaFile, schema_sql, trigger_sql

Check = Callable[[SchemaFile], None]

TRIGGER = re.compile(r"^CREATE TRIGGER (\w+) .*?^END;$", re.MULTILINE | re.DOTALL)
BENDS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" \+ 1\b", " + 0"), (r" - 1\b", " - 0"),
    (r" IS NOT (?!NULL|1)", " IS "), (r" IS NOT (?=NULL|1)", " IS "), (r" IS NULL", " IS NOT NULL"),
    (r"NOT EXISTS\(", "EXISTS("), (r"(?<!NOT )EXISTS\(", "NOT EXISTS("), (r"\bAND\b", "OR"), (r"\bOR\b(?! REP)", "AND"),
    (r" NOT IN \(", " IN ("), (r"(?<! NOT) IN \(", " NOT IN ("), (r" <> ", " = "), (r"\bmax\(", "min("),
    (r"ORDER BY finished_ms, ", "ORDER BY "), (r"RAISE\(IGNORE\)", "RAISE(ABORT, 'loud')"), (r"<< 32 \|", "<< 31 |"),
    (r" \+ (NEW|OLD)\.bytes", ""), (r", 'cancelled'", ""), (r"changes\(\)", "0"),
]  # fmt: skip


@cache
def checks() -> list[Check]:
    """Cheap ones first; the random walk, which notices most, last."""
    modules = (
        test_schema_log, test_schema_waits, test_schema_fence, test_schema_door, test_schema_foreign,
        test_schema_inbox,
        test_schema_retention,
    )  # fmt: skip
    found = [f for m in modules for name, f in inspect.getmembers(m, inspect.isfunction) if name.startswith("test_")]
    usable = [f for f in found if list(inspect.signature(f).parameters) == ["file"]]
    return sorted(usable, key=lambda f: "random_walk" in f.__name__)


def first_to_notice(triggers: str) -> str | None:
    """The name of the first check that fails with these triggers; None when all pass."""
    file = SchemaFile(schema_sql(triggers))
    try:
        for check in checks():
            file.sql("BEGIN")
            try:
                check(file)
            except (Exception, pytest.fail.Exception):
                return check.__name__
            finally:
                if file.db.in_transaction:
                    file.sql("ROLLBACK")
    finally:
        file.db.close()
    return None


def trigger_names() -> list[str]:
    return [match[1] for match in TRIGGER.finditer(trigger_sql())]


# What no check can notice, because nothing changes but a number of steps: trigger, a part of the line, what is put.
EQUIVALENT = [
    # exactly at the byte cap the search begins at the oldest row and evicts nothing
    ("event_added", "CASE WHEN NEW.off + NEW.bytes > s.max_event_bytes_per_run", " >= "),
    ("inbox_event", "CASE WHEN t.waiting_bytes > s.max_event_bytes_per_run", " >= "),
    # sequence 0 has offset 0: past the byte cap it is never the first one to stay
    ("event_added", "FROM event e WHERE e.id >= (NEW.id >> 32) << 32", " > "),
    # no stream has the number 0
    ("inbox_remember", "AND stream_pk < 0", " <= "),
]
EVICTING = ("event_added", "event_too_large", "trace_added", "run_added", "run_ended", "run_superseded", "inbox_event")
BOUNDS = (" < ", " <= ", " > ", " >= ", " + 1")


def bends(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Every place of one trigger where a replacement fits: what is found, what is put, its line, the whole text."""
    text = trigger_sql()
    trigger = next(match for match in TRIGGER.finditer(text) if match[1] == name)
    for pattern, new in BENDS:
        for place in re.finditer(pattern, trigger[0]):
            at = trigger.start() + place.start()
            line = text.rfind("\n", 0, at) + 1
            between = re.search(r"BETWEEN [^()]*(\([^()]*\)[^()]*)?$", text[line:at]) if place[0] == "AND" else None
            if text.count("'", line, at) % 2 or between:
                continue  # inside a message; or not an AND but the middle of a BETWEEN
            yield place[0], new, text[line : text.index("\n", at)], text[:at] + new + text[at + len(place[0]) :]


def unnoticed(name: str, only: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    """Bends of one trigger that every check lets pass, as (found, put, line), but for the equivalent ones."""
    passed = [
        (old, new, line)
        for old, new, line, text in bends(name)
        if (not only or old in only) and first_to_notice(text) is None
    ]
    return [
        (old, new, line)
        for old, new, line in passed
        if not any(trigger == name and part in line and put == new for trigger, part, put in EQUIVALENT)
    ]


def test_the_schema_as_it_is_passes_every_check() -> None:
    assert len(checks()) > 40
    assert first_to_notice(trigger_sql()) is None


@pytest.mark.parametrize("name", trigger_names())
def test_the_loss_of_a_trigger_is_noticed(name: str) -> None:
    text, removed = re.subn(rf"^CREATE TRIGGER {name} .*?^END;$", "", trigger_sql(), flags=re.MULTILINE | re.DOTALL)
    assert removed == 1
    assert first_to_notice(text) is not None


ARM = re.compile(r"    WHEN (?:(?!    WHEN ).)*?THEN RAISE\(ABORT, '[^']*'\)\n", re.DOTALL)
REFUSALS = (
    "WAIT_ALREADY_ANSWERED", "WAIT_NOT_FOUND", "WAIT_CLOSED", "WAIT_DIGEST_MISMATCH", "WAIT_EXPIRED", "BAD_INPUT",
)  # fmt: skip


@pytest.mark.parametrize(("number", "code"), enumerate(REFUSALS), ids=REFUSALS)
def test_the_loss_of_an_arm_is_noticed(number: int, code: str) -> None:
    """One trigger decides whether an answer counts: each of its refusals has a check of its own."""
    text = trigger_sql()
    trigger = next(match[0] for match in TRIGGER.finditer(text) if match[1] == "wait_answer_once")
    arms = ARM.findall(trigger)
    assert len(arms) == len(REFUSALS) and f"thence:{code} " in arms[number]
    assert first_to_notice(text.replace(trigger, trigger.replace(arms[number], ""))) is not None


@pytest.mark.parametrize("name", ["wait_answer_once", "wait_answer_no_delete", "wait_deleted"])
def test_a_bent_wait_is_noticed(name: str) -> None:
    assert unnoticed(name) == []


@pytest.mark.parametrize("name", EVICTING)
def test_a_bent_bound_is_noticed(name: str) -> None:
    assert any(old in BOUNDS for old, *_ in bends(name))
    assert unnoticed(name, BOUNDS) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", trigger_names())
def test_any_bend_is_noticed(name: str) -> None:
    assert unnoticed(name) == []
