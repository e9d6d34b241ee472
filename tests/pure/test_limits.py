"""Options, limits and caps: defaults and exact refusals (§2, §9)."""

from __future__ import annotations

from typing import Any

import pytest

from thence import DurableMemoryBinding, SessionConfiguration, SessionOptions
from thence.limits import Limits, Retention, check_limit, parse_retention
from thence.options import choose

DEFAULTS: dict[str, Any] = {
    "max_tool_rounds": 50,
    "max_parse_retries": 2,
    "tool_timeout_ms": None,
    "llm_api_timeout_ms": None,
    "circuit_breaker_threshold": 3,
    "duplicate_tool_call_threshold": 3,
    "auto_compact": False,
    "auto_compact_threshold": 0.80,
    "max_context_tokens": 200_000,
    "continuation_enabled": True,
    "max_continuation_turns": 3,
    "max_execution_time_ms": None,
    "max_parallel_tools": 8,
    "max_tool_output_bytes": 32_768,
    "budget_guard_timeout_ms": 5000,
}

INTEGERS = [name for name, value in DEFAULTS.items() if name.endswith("_ms") or type(value) is int]
ZERO_IS_LEGAL = ["max_parse_retries", "max_continuation_turns"]
ZERO_IS_REFUSED = [name for name in INTEGERS if name not in ZERO_IS_LEGAL]
GREATER = "Invalid session configuration for '{}': must be greater than zero"
BETWEEN = "Invalid session configuration for 'auto_compact_threshold': must be finite and between 0.0 and 1.0 inclusive"


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default(name: str):
    assert getattr(Limits(), name) == DEFAULTS[name] and type(getattr(Limits(), name)) is type(DEFAULTS[name])
    assert getattr(SessionOptions(), name) == DEFAULTS[name]  # an unset option reads as its default


def refusal(**options: Any) -> str:
    with pytest.raises(SessionConfiguration) as refused:
        choose(SessionOptions(**options))
    error = refused.value
    assert issubclass(SessionConfiguration, ValueError)
    assert error.code == "SESSION_CONFIGURATION_ERROR" and error.field in options
    return str(error)


@pytest.mark.parametrize("name", ZERO_IS_REFUSED)
def test_zero_is_refused(name: str):
    assert refusal(**{name: 0}) == GREATER.format(name)


@pytest.mark.parametrize("name", ZERO_IS_LEGAL)
def test_zero_is_legal(name: str):
    assert choose(SessionOptions(**dict[str, Any]({name: 0}))).shaping == {name: 0}


@pytest.mark.parametrize("name", INTEGERS)
def test_negative_is_refused(name: str):
    assert name in refusal(**{name: -1})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1, 2**31, 2**53])
def test_ordinary_values_are_taken(name: str, value: int):
    assert choose(SessionOptions(**dict[str, Any]({name: value}))).shaping == {name: value}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, 1.0, "1", [1], float("nan")])
def test_other_types_are_refused(name: str, value: Any):
    with pytest.raises((TypeError, ValueError), match=name):
        choose(SessionOptions(**dict[str, Any]({name: value})))


@pytest.mark.parametrize("name", INTEGERS)
def test_V5_beyond_64_bits_is_refused_or_defined(name: str):
    with pytest.raises((TypeError, ValueError), match=name):
        choose(SessionOptions(**dict[str, Any]({name: 2**63})))


@pytest.mark.parametrize("name", ["tool_timeout_ms", "llm_api_timeout_ms", "max_execution_time_ms"])
def test_none_is_no_limit(name: str):
    assert choose(SessionOptions(**dict[str, Any]({name: None}))).shaping == {name: None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.01, 1.01, 2, -1])
def test_the_threshold_must_be_finite_and_in_range(value: float):
    assert refusal(auto_compact_threshold=value) == BETWEEN


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1, 1.0])
def test_the_threshold_takes_its_range(value: float):
    assert choose(SessionOptions(auto_compact_threshold=value)).shaping == {"auto_compact_threshold": value}


@pytest.mark.parametrize("name", ["session_id", "tenant_id", "principal", "agent_template_id", "correlation_id"])
@pytest.mark.parametrize("value", ["", " ", "\t\n"])
def test_blank_is_refused(name: str, value: str):
    assert refusal(**{name: value}) == f"Invalid session configuration for '{name}': must not be empty or whitespace"


@pytest.mark.parametrize("name", ["max_rounds", "tenantId", "maxToolRounds", "Tenant_id", "", "given_"])
def test_unknown_names_raise(name: str):
    opts = SessionOptions()
    with pytest.raises((AttributeError, TypeError, ValueError)):
        setattr(opts, name, 1)
    with pytest.raises((AttributeError, TypeError, ValueError)):
        SessionOptions(**dict[str, Any]({name: 1}))


def test_unset_is_a_value_of_its_own():
    assert choose(SessionOptions()).shaping == {}
    assert choose(SessionOptions(max_tool_rounds=50)).shaping == {"max_tool_rounds": 50}


@pytest.mark.parametrize("value", ["resume?", "", None, 1, "RAISE"])
def test_on_interrupted_is_one_of_its_words(value: Any):
    with pytest.raises((SessionConfiguration, TypeError), match="on_interrupted"):
        choose(SessionOptions(on_interrupted=value))


def test_model_settings_must_be_json():
    with pytest.raises(SessionConfiguration, match="model_settings"):
        choose(SessionOptions(model_settings={"x": float("nan")}))
    with pytest.raises((TypeError, SessionConfiguration), match="model_settings"):
        choose(SessionOptions(model_settings=[1]))  # type: ignore[arg-type]


def test_check_limit_knows_its_names_only():
    with pytest.raises((KeyError, SessionConfiguration, TypeError)):
        check_limit("nope", 1)


# ------------------------------------------------------------------ durable memory

MEMORY = DurableMemoryBinding("acme", "ann", "notes")


def test_durable_memory_gives_its_tags():
    tags = choose(SessionOptions(durable_memory=MEMORY)).tags
    assert (tags.tenant_id, tags.principal) == ("acme", "ann")


@pytest.mark.parametrize(("name", "value"), [("tenant_id", "other"), ("principal", "Ann")])
def test_durable_memory_names_the_field_that_contradicts_it(name: str, value: str):
    assert f"'{name}'" in refusal(**{"durable_memory": MEMORY, name: value})


# ------------------------------------------------------------------ retention

RETENTION = {
    "max_runs_retained": 64, "max_events_per_run": 2048, "max_event_bytes_per_run": 8_388_608,
    "max_trace_events": 8192, "max_terminal_subagent_tasks": 512,
}  # fmt: skip


def test_the_defaults_of_retention():
    assert Retention().to_dict() == RETENTION == parse_retention({}).to_dict()


@pytest.mark.parametrize("name", RETENTION)
@pytest.mark.parametrize("value", [0, 1, 10**9])
def test_a_missing_key_keeps_its_default(name: str, value: int):
    assert parse_retention({name: value}).to_dict() == {**RETENTION, name: value}


def test_unbounded_lifts_all_and_other_keys_beside_it_set_just_those():
    assert parse_retention({"unbounded": True}).to_dict() == dict.fromkeys(RETENTION)
    expected = {**dict.fromkeys(RETENTION), "max_trace_events": 5}
    assert parse_retention({"max_trace_events": 5, "unbounded": True}).to_dict() == expected
    assert parse_retention({"unbounded": True, "max_trace_events": 5}).to_dict() == expected
    assert parse_retention({"unbounded": False}).to_dict() == RETENTION


BAD: list[Any] = [
    {"max_runs_retained": -1}, {"max_runs_retained": 1.0}, {"max_runs_retained": "64"}, {"max_runs_retained": None},
    {"max_runs_retained": True}, {"max_runs": 1}, {"maxRunsRetained": 1}, {"": 1}, {"unbounded": 1},
    {"unbounded": "yes"},
    {"max_events_per_run": float("inf")}, {"max_events_per_run": 2**64}, 5, "x", [("max_runs_retained", 1)], {1: 1},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD, ids=str)
def test_bad_retention_is_a_configuration_error(given: Any):
    with pytest.raises(SessionConfiguration, match="retention_limits"):
        choose(SessionOptions(retention_limits=given))
