"""What a gate's answer means, and which hooks can be registered (§10). Pure."""

from __future__ import annotations

from typing import Any

import pytest

from thence import Hook, HookContext, SessionConfiguration
from thence.hooking import HookAnswer, MalformedAnswer, check_hook, check_hooks, names_tool, read_answer

from .hook_kit import TYPES

TOOL = "pre_tool_use"
LLM = "pre_llm"


class Lying(dict):
    """A dict by name."""


class Word(str):
    """A string by name."""


READ: list[tuple[str, Any, HookAnswer]] = [
    (TOOL, None, HookAnswer()),
    (LLM, None, HookAnswer()),
    (TOOL, {"decision": "allow"}, HookAnswer()),
    (TOOL, {"decision": "block", "reason": "no"}, HookAnswer(block="no")),
    (TOOL, {"decision": "block", "reason": ""}, HookAnswer(block="")),
    (TOOL, {"decision": "block", "reason": "no", "arguments": {"n": 1}}, HookAnswer(block="no")),
    (TOOL, {"decision": "block", "reason": "a\ud800b"}, HookAnswer(block="a\ufffdb")),
    (TOOL, {"decision": "block", "reason": "x" * 20_000}, HookAnswer(block="x" * 10_000)),
    (TOOL, {"arguments": {}}, HookAnswer(arguments={})),
    (TOOL, {"decision": "allow", "arguments": {"n": (1, 2)}}, HookAnswer(arguments={"n": [1, 2]})),
    (TOOL, {"arguments": {"n": 2**70}}, HookAnswer(arguments={"n": 2**70})),
    (LLM, {"model": "small"}, HookAnswer(model="small")),
    (LLM, {"compact": True}, HookAnswer(compact=True)),
    (LLM, {"compact": False}, HookAnswer()),
    (LLM, {"compact": True, "model": "m"}, HookAnswer(model="m", compact=True)),
]


@pytest.mark.parametrize(("kind", "value", "answer"), READ)
def test_what_is_understood(kind: str, value: Any, answer: HookAnswer):
    assert read_answer(kind, value) == answer


deep: Any = {}
for _ in range(300):
    deep = {"a": deep}

MALFORMED_TOOL: list[Any] = [
    True, False, 0, "", "block", b"block", [], (), {}, 3.5, object(), Lying(decision="block", reason="x"),
    {"decision": None}, {"decision": "deny", "reason": "x"}, {"decision": "BLOCK", "reason": ""}, {"decision": "block"},
    {"decision": "block", "reason": None}, {"decision": "block", "reason": 5}, {"decision": Word("allow")},
    {"decision": Word("block"), "reason": "x"}, {"decision": "block", "reason": Word("x")}, {"decision": True},
    {"reason": "x"}, {"argument": {}}, {"arguments": None}, {"arguments": []}, {"arguments": "{}"},
    {"arguments": Lying()}, {"arguments": {"n": float("nan")}}, {"arguments": {1: 2}}, {"arguments": {"n": object()}},
    {"arguments": {"n": "\ud800"}}, {"arguments": {"n": b"x"}}, {"arguments": deep}, {"arguments": {}, "more": 1},
    {"decision": None, "arguments": {}}, {"model": "m"}, {"compact": True}, {Word("decision"): "allow"}, {5: 5},
]  # fmt: skip
MALFORMED_LLM: list[Any] = [
    True, "small", [], {}, {"model": None}, {"model": ""}, {"model": "  "}, {"model": 5}, {"model": "a\ud800"},
    {"model": "x" * 2000}, {"model": Word("m")}, {"compact": 1}, {"compact": None}, {"compact": "yes"},
    {"model": "m", "compact": 0}, {"decision": "block", "reason": "x"}, {"arguments": {}}, {"Model": "m"},
    Lying(model="m"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [*((TOOL, value) for value in MALFORMED_TOOL), *((LLM, value) for value in MALFORMED_LLM)],
    ids=lambda value: value if isinstance(value, str) and value in TYPES else f"{type(value).__name__}",
)
def test_what_is_not_understood(kind: str, value: Any):
    with pytest.raises(MalformedAnswer):
        read_answer(kind, value)


def test_a_copy_shares_nothing_that_can_be_changed():
    arguments: dict[str, Any] = {"a": [1], "b": {"c": 2}}
    tags: dict[str, str | None] = {"tenant_id": "t"}
    context = HookContext(TOOL, "s", tags=tags, arguments=arguments, soft_decisions=({"decision": "soft"},))
    copy: Any = context.copy()
    assert copy == context
    copy.arguments["a"].append(2)
    copy.arguments["b"].clear()
    copy.tags.clear()
    copy.soft_decisions[0].clear()
    assert (arguments, tags) == ({"a": [1], "b": {"c": 2}}, {"tenant_id": "t"})
    assert context.soft_decisions == ({"decision": "soft"},)


@pytest.mark.parametrize(
    ("pattern", "tool", "yes"),
    [
        ("act", "act", True), ("act", "act2", False), ("*", "act", True), ("a*", "act", True), ("a?t", "act", True),
        ("[ab]ct", "act", True), ("ACT", "act", False), ("act", "ACT", False), ("write*", "act", False),
    ],
)  # fmt: skip
def test_a_pattern_is_a_glob_over_the_name(pattern: str, tool: str, yes: bool):
    hook = check_hook(Hook(TOOL, print, pattern))
    assert names_tool(hook, HookContext(TOOL, "s", tool_name=tool)) is yes


@pytest.mark.parametrize("kind", TYPES)
def test_the_seven_types_are_taken(kind: str):
    hook = Hook(kind, print, None, 1, -5)
    assert check_hook(hook) is hook
    assert (Hook(kind, print).timeout_ms, Hook(kind, print).priority) == (30_000, 100)


CLUSTER = ["budget_threshold_hit", "passivation_requested", "peer_invocation"]
REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    *((kind, (kind, print), SessionConfiguration, f"'event_type': '{kind}' is no hook type; hook types: pre_tool_use")
      for kind in [*CLUSTER, "on_error", "", "PRE_LLM", "pre_llm "]),
    ("type", (5, print), TypeError, "'event_type'"),
    ("none", (None, print), TypeError, "'event_type'"),
    ("handler", ("pre_llm", None), TypeError, "'handler'"),
    ("text", ("pre_llm", "print"), TypeError, "'handler'"),
    ("blank", (TOOL, print, " "), SessionConfiguration, "'matcher'"),
    ("no tool", ("pre_llm", print, "act"), SessionConfiguration, "'matcher'.*pre_llm has no tool"),
    ("number", (TOOL, print, 5), TypeError, "'matcher'"),
    ("zero", (TOOL, print, None, 0), SessionConfiguration, "'timeout_ms': must be greater than zero"),
    ("negative", (TOOL, print, None, -1), SessionConfiguration, "'timeout_ms'"),
    ("huge", (TOOL, print, None, 2**70), SessionConfiguration, "'timeout_ms'"),
    ("bool", (TOOL, print, None, True), TypeError, "'timeout_ms'"),
    ("no limit", (TOOL, print, None, None), TypeError, "'timeout_ms'"),
    ("float", (TOOL, print, None, 1.5), TypeError, "'timeout_ms'"),
    ("order", (TOOL, print, None, 1, "1"), TypeError, "'priority'"),
    ("order bool", (TOOL, print, None, 1, True), TypeError, "'priority'"),
    ("order none", (TOOL, print, None, 1, None), TypeError, "'priority'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "kind", "words"), REFUSED, ids=[one[0] for one in REFUSED])
def test_what_cannot_be_registered(name: str, values: tuple[Any, ...], kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        check_hook(Hook(*values))
    with pytest.raises(kind, match=words):
        check_hooks([Hook(*values)])


@pytest.mark.parametrize("given", [5, "pre_llm", {"pre_llm": print}, print, [print], [None], [("pre_llm", print)]])
def test_the_option_takes_a_list_of_hooks(given: Any):
    with pytest.raises(TypeError, match="'hooks'"):
        check_hooks(given)


def test_the_option_may_be_empty():
    assert check_hooks(None) == check_hooks([]) == check_hooks(()) == ()
