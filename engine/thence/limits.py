"""Limits of a run and caps of what is kept, with their defaults (§2, §9). Values and their validation only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from .canonical import Json
from .errors import SessionConfiguration


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one turn. Times are milliseconds; None is no limit."""

    max_tool_rounds: int = 50
    max_parse_retries: int = 2
    tool_timeout_ms: int | None = None
    llm_api_timeout_ms: int | None = None
    circuit_breaker_threshold: int = 3
    duplicate_tool_call_threshold: int = 3
    auto_compact: bool = False
    auto_compact_threshold: float = 0.80
    max_context_tokens: int = 200_000
    continuation_enabled: bool = True
    max_continuation_turns: int = 3
    max_execution_time_ms: int | None = None
    max_parallel_tools: int = 8
    max_tool_output_bytes: int = 32_768
    retry_base_ms: int = 1000
    budget_guard_timeout_ms: int = 5000

    def to_dict(self) -> dict[str, Json]:
        """All limits by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


ZERO_IS_LEGAL = {"max_parse_retries", "max_continuation_turns", "retry_base_ms"}
LIMIT_NAMES = tuple(f.name for f in fields(Limits))
MAX_LIMIT = 2**53


def check_limit(name: str, value: object) -> int | float | bool | None:
    """Return ``value`` if it is legal for the limit ``name``.

    Raises:
        SessionConfiguration: zero, negative, not finite, too large, or None where a number is needed.
        TypeError: another type.
    """
    kind = Limits.__annotations__[name]
    if value is None:
        if "None" in kind:
            return None
        raise SessionConfiguration(name, "must not be None; leave it unset for the default")
    if kind == "bool":
        if not isinstance(value, bool):
            raise TypeError(f"'{name}' must be a bool, not {type(value).__name__}")
        return value
    if kind == "float":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"'{name}' must be a number, not {type(value).__name__}")
        if not math.isfinite(value) or not 0.0 <= value <= 1.0:
            raise SessionConfiguration(name, "must be finite and between 0.0 and 1.0 inclusive")
        return float(value)
    return check_count(name, value, zero_is_legal=name in ZERO_IS_LEGAL)


def check_count(name: str, value: object, *, zero_is_legal: bool = False) -> int:
    """Return ``value`` if it is an integer that can be a limit.

    Raises:
        SessionConfiguration: zero where that is not legal, negative, too large.
        TypeError: another type.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"'{name}' must be an integer, not {type(value).__name__}")
    if value < 0 or (value == 0 and not zero_is_legal):
        raise SessionConfiguration(name, "must not be negative" if zero_is_legal else "must be greater than zero")
    if value > MAX_LIMIT:
        raise SessionConfiguration(name, f"must be at most {MAX_LIMIT}")
    return value


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the bounded tables is kept; None keeps everything. FIFO, soft: a cap never makes a write fail."""

    max_runs_retained: int | None = 64
    max_events_per_run: int | None = 2048
    max_event_bytes_per_run: int | None = 8 * 1024 * 1024
    max_trace_events: int | None = 8192
    max_terminal_subagent_tasks: int | None = 512

    def to_dict(self) -> dict[str, int | None]:
        """All caps by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


RETENTION_NAMES = tuple(f.name for f in fields(Retention))


def parse_retention(given: Mapping[str, object], base: Retention | None = None) -> Retention:
    """Read ``opts.retention_limits``: a missing key keeps its default; ``unbounded: True`` lifts all first.

    Raises:
        SessionConfiguration: an unknown key, a negative or non-integer value.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SessionConfiguration("retention_limits", "must be a mapping of cap names to integers")
    unbounded = given.get("unbounded", False)
    if not isinstance(unbounded, bool):
        raise SessionConfiguration("retention_limits", "'unbounded' must be True or False")
    caps = Retention(*[None] * len(RETENTION_NAMES)) if unbounded else (base or Retention())
    values = caps.to_dict()
    for name, value in given.items():
        if name == "unbounded":
            continue
        if name not in RETENTION_NAMES:
            raise SessionConfiguration("retention_limits", f"unknown key '{name}'; known: {', '.join(RETENTION_NAMES)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise SessionConfiguration("retention_limits", f"'{name}' must be an integer")
        if not 0 <= value <= MAX_LIMIT:
            raise SessionConfiguration("retention_limits", f"'{name}' must be between 0 and {MAX_LIMIT}")
        values[name] = value
    return Retention(**values)
