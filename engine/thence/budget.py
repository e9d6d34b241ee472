"""What a budget guard's answer means (§6). Pure; everything that is not clearly an allow is a deny."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, Literal

from .errors import SessionConfiguration

METHODS = ("check_before_llm", "record_after_llm", "check_before_tool")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """What a budget guard decided. ``hold``: not before somebody says so."""

    decision: Literal["allow", "soft", "deny", "hold"] = "allow"
    resource: str = ""
    reason: str = ""
    consumed: float = 0.0
    limit: float = 0.0
    message: str | None = None


ALLOW = GuardDecision()


def lacks(guard: object, method: str) -> bool:
    """Whether a guard has no such method, or None for it, as far as can be told without running its code."""
    found = inspect.getattr_static(guard, method, _MISSING)
    return found is None or (found is _MISSING and not _makes_names(guard))


def _makes_names(guard: object) -> bool:
    kind = type(guard)
    if kind.__module__ == "builtins":
        return False  # int, list, dict, a function: their lookup is their own, and makes nothing up
    plain = inspect.getattr_static(kind, "__getattribute__") is object.__getattribute__
    return not plain or inspect.getattr_static(kind, "__getattr__", _MISSING) is not _MISSING


def check_guard(guard: object) -> None:
    """Refuse what has none of a guard's methods: it would allow everything, and nobody would notice.

    Raises:
        SessionConfiguration: naming them.
    """
    if _makes_names(guard) or any(inspect.getattr_static(guard, name, _MISSING) is not _MISSING for name in METHODS):
        return
    raise SessionConfiguration("budget_guard", f"a {type(guard).__name__} has none of {', '.join(METHODS)}")


def read_decision(method: str, value: object) -> GuardDecision:
    """The decision in what a guard's ``check_*`` method returned. Only None and a real dict are understood."""
    if value is None:
        return ALLOW
    if type(value) is not dict:
        return malformed(method, "expected None or a decision dict")
    given: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
    decision = given.get("decision")
    if type(decision) is not str:
        return malformed(method, "missing required string 'decision'")
    if decision == "allow":
        return ALLOW
    if decision == "deny":
        return _refusal(method, "deny", given)
    if decision == "hold":
        return _refusal(method, "hold", given)
    if decision == "soft":
        return _soft(method, given)
    return malformed(method, f"unknown budget decision '{decision[:100]}'")


def malformed(method: str, why: str) -> GuardDecision:
    """A deny for an answer that cannot be read."""
    return GuardDecision("deny", "budget_guard_error", f"invalid BudgetGuard.{method} return: {why}")


def raised(method: str, error: BaseException) -> GuardDecision:
    """A deny for a guard that raised."""
    return failed(method, describe(error))


def failed(method: str, what: str) -> GuardDecision:
    """The same, told in words."""
    return GuardDecision("deny", "budget_guard_callback", f"BudgetGuard.{method} failed: {_clean(what)}")


def late(method: str, timeout_ms: int) -> GuardDecision:
    """A deny for a guard that did not answer in time, whatever it says afterwards."""
    return GuardDecision("deny", "budget_guard_timeout", f"BudgetGuard.{method} did not respond within {timeout_ms}ms")


def unavailable(method: str, why: str) -> GuardDecision:
    """A deny because no thread was to be had for the guard."""
    return GuardDecision("deny", "budget_guard_unavailable", f"BudgetGuard.{method} could not be asked: {why}")


def _refusal(method: str, decision: Literal["deny", "hold"], given: dict[Any, Any]) -> GuardDecision:
    resource, reason = given.get("resource"), given.get("reason")
    for name, text in (("resource", resource), ("reason", reason)):
        if type(text) is not str:
            return malformed(method, f"missing required string '{name}'")
    return GuardDecision(decision, _clean(str(resource)), _clean(str(reason)))


def _soft(method: str, given: dict[Any, Any]) -> GuardDecision:
    resource, message = given.get("resource"), given.get("message")
    if type(resource) is not str:
        return malformed(method, "missing required string 'resource'")
    if message is not None and type(message) is not str:
        return malformed(method, "'message' must be a string")
    numbers: list[float] = []
    for name in ("consumed", "limit"):
        number = given.get(name)
        if type(number) not in (int, float):
            return malformed(method, f"missing required number '{name}'")
        try:
            numbers.append(float(number))  # type: ignore[arg-type]
        except OverflowError:
            return malformed(method, f"'{name}' must be finite")
        if not math.isfinite(numbers[-1]):
            return malformed(method, f"'{name}' must be finite")
    text = None if message is None else _clean(str(message))
    return GuardDecision("soft", _clean(resource), "", numbers[0], numbers[1], text)


def describe(error: BaseException) -> str:
    """Class and text of what a host's callable raised, as far as it can say."""
    try:
        return _clean(f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001  a guard's exception may fail to say what it is
        return type(error).__name__


def _clean(text: str) -> str:
    return text[:10_000].encode("utf-8", "replace").decode()
