"""Refused options of a session: one clear typed error each, before anything is written (§2, §3, §9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from thence import Agent, DurableMemoryBinding, SessionConfiguration, SessionOptions
from thence.testing import ScriptedModel, reply

from .kit import INF, LONE, NAN, Face, photograph

Z = "must be greater than zero"
Kind = type[BaseException] | tuple[type[BaseException], ...]
OPTIONS: dict[str, list[tuple[Any, Kind, str]]] = {}


def option(name: str, value: Any, kind: Kind, words: str) -> None:
    OPTIONS.setdefault(name, []).append((value, kind, words))


_bad: Any
for _name in [
    "max_tool_rounds", "tool_timeout_ms", "llm_api_timeout_ms", "circuit_breaker_threshold",
    "duplicate_tool_call_threshold", "max_context_tokens", "max_execution_time_ms", "max_parallel_tools",
    "max_tool_output_bytes", "budget_guard_timeout_ms",
]:  # fmt: skip
    option(_name, 0, SessionConfiguration, f"Invalid session configuration for '{_name}': {Z}")
    option(_name, -1, SessionConfiguration, f"Invalid session configuration for '{_name}'")
    option(_name, 2**70, SessionConfiguration, f"Invalid session configuration for '{_name}'")
    for _bad in (1.5, "5", True, NAN, [1]):
        option(_name, _bad, TypeError, f"'{_name}'")
for _name in ["max_parse_retries", "max_continuation_turns"]:
    option(_name, -1, SessionConfiguration, f"Invalid session configuration for '{_name}'")
    option(_name, "1", TypeError, f"'{_name}'")
for _bad in (NAN, INF, -INF, -0.1, 1.1, 2**70):
    option(
        "auto_compact_threshold", _bad, SessionConfiguration,
        "Invalid session configuration for 'auto_compact_threshold': must be finite and between 0.0 and 1.0 inclusive",
    )  # fmt: skip
option("auto_compact_threshold", "0.5", TypeError, "'auto_compact_threshold'")
for _name in ["auto_compact", "continuation_enabled"]:
    option(_name, "yes", TypeError, f"'{_name}'")
    option(_name, 1, TypeError, f"'{_name}'")
for _name in ["session_id", "tenant_id", "principal", "agent_template_id", "correlation_id"]:
    blank = f"Invalid session configuration for '{_name}': must not be empty or whitespace"
    for _bad in ("", " ", "\t", "\u00a0", "\u2003 "):
        option(_name, _bad, SessionConfiguration, blank)
    for _bad in ("a\0b", "\0", "a\nb", "a\tb", "\x1b[2J", "a\x7f", "a\x85", "\x9b1m"):
        option(_name, _bad, SessionConfiguration, f"'{_name}'.*control")
    option(_name, LONE, SessionConfiguration, f"'{_name}'.*surrogate")
    option(_name, "x" * (1024 * 1024 + 1), SessionConfiguration, f"'{_name}'.*bytes")
    for _bad in (5, b"x", 1.5, ["x"], True):
        option(_name, _bad, TypeError, f"'{_name}'")
option("instructions", 5, TypeError, "'instructions'")
option("instructions", LONE, ValueError, "'instructions'.*surrogate")
option("model_settings", 5, TypeError, "'model_settings'")
option("model_settings", {"t": NAN}, ValueError, "'model_settings'")
option("on_interrupted", "resum", SessionConfiguration, "'on_interrupted'")
option("on_interrupted", 5, (SessionConfiguration, TypeError), "on_interrupted")
option("durable_memory", ("t", "p", "s"), TypeError, "'durable_memory'")
option("host_env", 5, TypeError, "host_env")


class Typo:
    def check_before_lm(self, session_id: str, tokens: int) -> None: ...


for _bad in (Typo(), 5, 0, object(), [], {}, (), {"check_before_llm": lambda s, t: None}, lambda s, t: None):
    option(
        "budget_guard", _bad, SessionConfiguration, f"'budget_guard': a {type(_bad).__name__} has none of check_before"
    )
option("model", 5, TypeError, "model")
option("retention_limits", 5, SessionConfiguration, "'retention_limits'")
option("retention_limits", [1], SessionConfiguration, "'retention_limits'")
option("retention_limits", {"max_runs": 5}, SessionConfiguration, "'retention_limits'.*'max_runs'")
option("retention_limits", {5: 5}, SessionConfiguration, "'retention_limits'.*5")
option("retention_limits", {"unbounded": 1}, SessionConfiguration, "'retention_limits'.*unbounded")
for _bad in (-1, 1.5, NAN, "5", True, 2**70, None):
    option("retention_limits", {"max_events_per_run": _bad}, SessionConfiguration, "'retention_limits'.*max_events")


def complaint(face: Face, call: Callable[[], Any], name: str, kind: Kind, words: str) -> str | None:
    """What is wrong with how ``call`` was refused, or None."""
    try:
        face.do(call)
    except kind as error:
        if re.search(words, str(error)) is None:
            return f"says {error}"
        if isinstance(error, SessionConfiguration):
            assert (error.field, error.code) == (name, "SESSION_CONFIGURATION_ERROR")
            assert isinstance(error, ValueError)
        return None
    except BaseException as error:
        return f"raised {error!r}"
    return "was not refused"


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_refused_before_anything_is_written(face: Face, used, name):
    before = photograph(used)
    agent = face.agent(used, model=ScriptedModel())
    complaints = []
    for value, kind, words in OPTIONS[name]:
        calls = [lambda value=value: agent.session("/w", SessionOptions(**{name: value}))]
        if name != "session_id":
            # the same on the way into a session that is there
            calls.append(lambda value=value: agent.resume_session("s", SessionOptions(**{name: value})))
        for call in calls:
            wrong = complaint(face, call, name, kind, words)
            if wrong is not None:
                complaints.append(f"{ascii(value)[:80]} {wrong}")
    assert not complaints
    assert [info.session_id for info in face.do(agent.list_sessions)] == ["s"]
    face.close()
    assert photograph(used) == before
    assert not [entry.name for entry in used.parent.iterdir() if "-owner-" in entry.name or "-wal" in entry.name]


def test_a_guard_without_any_method_is_not_installed_either(face: Face, db):
    agent = face.agent(db, model=ScriptedModel([reply("x")]))
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s")))
    for bad, _, words in OPTIONS["budget_guard"]:
        with pytest.raises(SessionConfiguration, match=words):
            session.set_budget_guard(bad)
    assert face.do(lambda: session.send("Go.")).text == "x"


class Dynamic:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


GUARDS = [Dynamic(), SimpleNamespace(check_before_llm=None), SimpleNamespace(record_after_llm=lambda s, u: None)]


@pytest.mark.parametrize("guard", GUARDS, ids=["dynamic", "None", "one method"])
def test_a_missing_or_None_method_allows(face: Face, db, guard):
    """§6. What an object would say to a name cannot be told without asking it."""
    agent = face.agent(db, model=ScriptedModel([reply("x")]))
    session = face.do(lambda: agent.session("/w", SessionOptions(budget_guard=guard)))
    assert face.do(lambda: session.send("Go.")).text == "x"


def test_unknown_options_raise(face: Face, used):
    before = photograph(used)
    with pytest.raises((AttributeError, TypeError), match="max_tool_round"):
        SessionOptions(max_tool_round=5)  # type: ignore[call-arg]
    options = SessionOptions()
    with pytest.raises(AttributeError, match="tennant_id"):
        options.tennant_id = "x"  # type: ignore[attr-defined]
    agent = face.agent(used)
    for bad in ({"session_id": "s"}, "s", 5):
        with pytest.raises(TypeError, match="SessionOptions"):
            face.do(partial(agent.session, "/w", bad))
    face.close()
    assert photograph(used) == before


def test_a_memory_binding_that_contradicts_a_tag(face: Face, used):
    before = photograph(used)
    agent = face.agent(used)
    binding = DurableMemoryBinding("tenant", "principal", "scope")
    for field, value in (("tenant_id", "other"), ("principal", "Principal")):
        with pytest.raises(SessionConfiguration, match=f"'{field}'"):
            face.do(
                partial(agent.session, "/w", SessionOptions(durable_memory=binding, **dict[str, Any]({field: value})))
            )
    with pytest.raises(SessionConfiguration, match="'durable_memory'"):
        face.do(lambda: agent.resume_session("s", SessionOptions(durable_memory=binding)))
    face.close()
    assert photograph(used) == before


def test_the_largest_ids_are_taken(db):
    """The border itself: 1 MiB of UTF-8 is an id, and it comes back equal."""
    name = "é" * (512 * 1024)
    with Agent(db, model=ScriptedModel([reply("x")])) as agent:
        agent.session("/w", SessionOptions(session_id=name, tenant_id=name)).send("Hi.")
        (info,) = agent.list_sessions(tenant_id=name)
        assert info.session_id == name
