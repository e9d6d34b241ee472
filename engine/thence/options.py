"""Options of a session, checked: what the caller set, what the file remembers, what a run then starts with (§1, §2)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from .canonical import Json, check_text, dumps
from .errors import SessionConfiguration
from .hooking import Hook, check_hooks
from .identity import TAG_NAMES, DurableMemoryBinding, Tags, bind_memory, check_id
from .limits import LIMIT_NAMES, Limits, Retention, check_limit, parse_retention
from .permissions import PermissionPolicy
from .session_options import CALLABLES, NAMES, SHAPING, WITHOUT, GuardIsolation, OnInterrupted, SessionOptions
from .verification import DEFAULTS as GATE_DEFAULTS
from .verification import Verifier, check_option, check_verifier


@dataclass(frozen=True, slots=True)
class Chosen:
    """Checked options of one opening of a session. ``shaping`` holds what was set of :data:`SHAPING`, ``callables``
    what was given of :data:`CALLABLES`."""

    session_id: str | None
    tags: Tags
    memory: DurableMemoryBinding | None
    shaping: Mapping[str, Any]
    retention: Retention | None
    callables: Mapping[str, Any]
    unset: frozenset[str]
    guard_isolation: GuardIsolation = "thread"
    model: Any = None
    host_env: Any = None

    @property
    def guard(self) -> object | None:
        """The budget guard that was given."""
        guard: object | None = self._called("budget_guard")
        return guard

    @property
    def permissions(self) -> PermissionPolicy | None:
        """The permission policy that was given."""
        return check_permissions(self._called("permission_policy"))

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that were given."""
        return check_hooks(self._called("hooks"))

    @property
    def verifier(self) -> Verifier | None:
        """The verifier that was given."""
        return check_verifier(self._called("verifier"))

    def required(self) -> tuple[str, ...]:
        """Which of :data:`CALLABLES` were given: the session will demand them again."""
        return tuple(name for name in CALLABLES if self._called(name) is not None)

    def _called(self, name: str) -> Any:
        value = self.callables.get(name)
        return None if value is WITHOUT else value


def choose(options: SessionOptions | None) -> Chosen:
    """Check what a caller set.

    Raises:
        SessionConfiguration: a refused value, naming the field.
        TypeError: a value of the wrong type, naming the field.
    """
    given = {} if options is None else check_options(options).given()
    memory = given.get("durable_memory")
    if memory is not None and not isinstance(memory, DurableMemoryBinding):
        raise TypeError(f"'durable_memory' must be a DurableMemoryBinding, not {type(memory).__name__}")
    tags = {name: check_id(given[name], name) for name in TAG_NAMES if given.get(name) is not None}
    session_id = given.get("session_id")
    retention = given.get("retention_limits")
    checks = (("permission_policy", check_permissions), ("verifier", check_verifier), ("hooks", check_hooks))
    for name, check in checks:
        if given.get(name) is not WITHOUT:
            check(given.get(name))
    return Chosen(
        session_id=None if session_id is None else check_id(session_id, "session_id"),
        tags=bind_memory(Tags(**tags), memory),
        memory=memory,
        shaping={name: _check(name, given[name]) for name in SHAPING if name in given},
        retention=None if retention is None else parse_retention(retention),
        callables={name: given[name] for name in CALLABLES if _is_given(name, given.get(name))},
        unset=frozenset(NAMES - given.keys()),
        guard_isolation=check_isolation(given.get("budget_guard_isolation", "thread")),
        model=given.get("model"),
        host_env=given.get("host_env"),
    )


def choose_for(session_id: str, options: SessionOptions | None) -> Chosen:
    """The same for the session of this id, whatever the options say of it."""
    named = SessionOptions() if options is None else copy(check_options(options))
    named.session_id = check_id(session_id, "session_id")
    return choose(named)


def _is_given(name: str, value: object) -> bool:
    """Whether one of :data:`CALLABLES` was given. No hooks are none; anything else that is empty is still something."""
    return value is not None and not (name == "hooks" and isinstance(value, list | tuple) and not value)


def check_options(options: object) -> SessionOptions:
    """Return the options. Raises TypeError for anything else."""
    if not isinstance(options, SessionOptions):
        raise TypeError(f"options must be SessionOptions, not {type(options).__name__}")
    return options


def check_chooser(options: object) -> None:
    """Raises TypeError for what gives no session its options."""
    if options is not None and not callable(options):
        raise TypeError(f"'options' must be a callable of a session id, or None, not {type(options).__name__}")


def check_bool(name: str, value: object) -> None:
    """Raises TypeError for anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"'{name}' must be True or False, not {type(value).__name__}")


def check_db(db: object) -> None:
    """Refuse what is no path, and what SQLite itself would not take for one.

    Raises:
        TypeError: another type.
        SessionConfiguration: ``db``: blank, with NUL, ``:memory:`` or an address.
        ValueError: a lone surrogate.
    """
    if db is None:
        return
    if not isinstance(db, str | Path):
        raise TypeError(f"'db' must be a path or None, not {type(db).__name__}")
    text = str(db)
    if not text.strip() or "\0" in text:
        raise SessionConfiguration("db", "must be a path; None keeps all in memory")
    if text.strip().lower() == ":memory:":
        raise SessionConfiguration("db", "':memory:' would be a file of that name: give None to keep all in memory")
    if text.lower().startswith("file:"):
        raise SessionConfiguration("db", "SQLite addresses ('file:...') are not supported: give a path")
    check_text(text, "db")


def check_permissions(value: object) -> PermissionPolicy | None:
    """Return a permission policy. Raises TypeError for anything else but None."""
    if value is not None and not isinstance(value, PermissionPolicy):
        raise TypeError(f"'permission_policy' must be a PermissionPolicy or None, not {type(value).__name__}")
    return value


def _check(name: str, value: object) -> object:
    if name == "instructions":
        if not isinstance(value, str):
            raise TypeError(f"'instructions' must be a string, not {type(value).__name__}")
        return check_text(value, "instructions")
    if name == "model_settings":
        return check_settings(value)
    if name == "on_interrupted":
        return check_on_interrupted(value)
    if name in GATE_DEFAULTS:
        return check_option(name, value)
    return check_limit(name, value)


def check_on_interrupted(value: object) -> OnInterrupted:
    """Return what ``send`` shall do about an interrupted run. Raises SessionConfiguration."""
    for choice in get_args(OnInterrupted):
        if value == choice:
            known: OnInterrupted = choice
            return known
    raise SessionConfiguration("on_interrupted", f"must be one of {', '.join(get_args(OnInterrupted))}")


def check_isolation(value: object) -> GuardIsolation:
    """Return where a budget guard shall run. Raises SessionConfiguration."""
    for choice in get_args(GuardIsolation):
        if value == choice:
            known: GuardIsolation = choice
            return known
    raise SessionConfiguration("budget_guard_isolation", f"must be one of {', '.join(get_args(GuardIsolation))}")


def check_settings(value: object) -> dict[str, Json]:
    """Return model settings as a plain dict.

    Raises:
        TypeError: not a mapping.
        SessionConfiguration: something in it has no JSON form.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"'model_settings' must be a mapping, not {type(value).__name__}")
    settings: dict[str, Json] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        dumps(settings)
    except ValueError as error:
        raise SessionConfiguration("model_settings", str(error)) from None
    return settings


def limits_of(shaping: Mapping[str, Any]) -> Limits:
    """The limits of a run: what was set, else the defaults."""
    return Limits(**{name: shaping[name] for name in LIMIT_NAMES if name in shaping})


def check_required(requires: tuple[str, ...], chosen: Chosen) -> None:
    """Refuse to go on without a callable that the session had.

    Raises:
        SessionConfiguration: naming the option that must be given again.
    """
    for name in requires:
        if name not in chosen.callables:
            had = "had some: give them" if name.endswith("s") else "had one: give it"
            raise SessionConfiguration(name, f"the session {had} again to resume the session")
