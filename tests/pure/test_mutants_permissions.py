"""What a policy decides and how it says what is wrong with it, without a session around it (§10)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from thence.permissions import MAX_PATTERN, PermissionPolicy

from ..waits.test_policy import DECISIONS


@pytest.mark.parametrize(("given", "call", "expected"), DECISIONS)
def test_it_decides_what_a_session_then_does(given: dict[str, Any], call: tuple[str, Any], expected: str):
    assert PermissionPolicy(**given).decide(*call) == expected


@pytest.mark.parametrize(
    ("pattern", "tool", "arguments", "matches"),
    [
        (" bash ", "bash", {}, True),
        ("bash (a=1)", "bash", {"a": 1}, True),
        ("bash ( a =1)", "bash", {"a": 1}, True),
        ("bash(a= 1)", "bash", {"a": " 1"}, True),
        ("bash(a= 1)", "bash", {"a": "1"}, False),
        ("bash(a=)", "bash", {"a": ""}, True),
        ("bash(a=1,b-2=2, _c=3)", "bash", {"a": 1, "b-2": 2, "_c": 3}, True),
        ("bash(a=1,b-2=2, _c=3)", "bash", {"a": 1, "b-2": 2, "_c": 4}, False),
        ("bash(a=1,b-2=2, _c=3)", "bash", {"a": 1, "b-2": 3, "_c": 3}, False),
        ("bash(a=1, 2, 3)", "bash", {"a": "1, 2, 3"}, True),
        ("bash(a=b=c)", "bash", {"a": "b=c"}, True),
        ("bash(a=f(x))", "bash", {"a": "f(x)"}, True),
        ("bash(a=one\ntwo)", "bash", {"a": "one\ntwo"}, True),
        ("b", "bash", {}, False),
        ("b c", "b c", {}, True),
    ],
)
def test_how_a_pattern_is_read(pattern: str, tool: str, arguments: dict[str, Any], matches: bool):
    assert (PermissionPolicy(deny=[pattern]).decide(tool, arguments) == "deny") is matches


FORM = "is not of the form tool or tool(argument=glob, ...)"
NEEDS = "needs argument=glob in its parentheses"
LONG = "x" * (MAX_PATTERN + 1)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"default": "maybe"}, ValueError, "'default' must be one of allow, ask, deny, not 'maybe'"),
    ({"timeout_ms": True}, TypeError, "'timeout_ms' must be an integer or None, not bool"),
    ({"timeout_ms": 1.5}, TypeError, "'timeout_ms' must be an integer or None, not float"),
    ({"timeout_ms": 0}, ValueError, "'timeout_ms' must be greater than zero"),
    ({"allow": "read"}, TypeError, "'allow' takes several patterns: wrap the one in a tuple"),
    ({"ask": "read"}, TypeError, "'ask' takes several patterns: wrap the one in a tuple"),
    ({"deny": "read"}, TypeError, "'deny' takes several patterns: wrap the one in a tuple"),
    ({"deny": [5]}, TypeError, "a permission pattern must be a string, not int"),
    ({"deny": [LONG]}, ValueError, f"the permission pattern '{'x' * 40}...' is longer than 1000 characters"),
    ({"deny": ["  "]}, ValueError, f"the permission pattern '  ' {FORM}"),
    ({"deny": ["a("]}, ValueError, f"the permission pattern 'a(' {FORM}"),
    ({"deny": ["a()"]}, ValueError, f"the permission pattern 'a()' {NEEDS}"),
    ({"deny": ["a(b)"]}, ValueError, f"the permission pattern 'a(b)' {NEEDS}"),
    ({"deny": ["a(1b=c)"]}, ValueError, f"the permission pattern 'a(1b=c)' {NEEDS}"),
    ({"deny": ["a(b c=d)"]}, ValueError, f"the permission pattern 'a(b c=d)' {NEEDS}"),
]


@pytest.mark.parametrize(("given", "kind", "text"), REFUSED)
def test_what_is_wrong_is_told_in_these_words(given: dict[str, Any], kind: type[Exception], text: str):
    with pytest.raises(kind, match=f"^{re.escape(text)}$") as refused:
        PermissionPolicy(**given)
    assert type(refused.value) is kind


def test_the_least_that_is_taken_and_the_most():
    assert PermissionPolicy().timeout_ms is None and PermissionPolicy().decide("any", {}) == "allow"
    assert PermissionPolicy(timeout_ms=1).timeout_ms == 1
    assert PermissionPolicy(deny=["x" * MAX_PATTERN], default="ask").decide("x" * MAX_PATTERN, {}) == "deny"
