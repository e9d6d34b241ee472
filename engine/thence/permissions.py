"""Which tool calls may run, which must not, and which a person is asked about first (§10). Pure.

A pattern is a glob over tool names, optionally with globs over arguments: ``bash(command=git push*)``. All of them must
match; an argument that is not given does not. Texts are matched as they are, other values by their canonical JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Literal, TypeAlias, get_args

from .canonical import Json, dumps_checked

Permission: TypeAlias = Literal["allow", "ask", "deny"]

MAX_PATTERN = 1000
"""Longest pattern, in characters."""

_SHAPE = re.compile(r"(?P<tool>[^()\s][^()]*?)\s*(?:\((?P<arguments>.*)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Pattern:
    tool: re.Pattern[str]
    arguments: tuple[tuple[str, re.Pattern[str]], ...]

    def matches(self, tool: str, arguments: Mapping[str, Json]) -> bool:
        return self.tool.fullmatch(tool) is not None and all(
            name in arguments and glob.fullmatch(_shown(arguments[name])) for name, glob in self.arguments
        )


class PermissionPolicy:
    """Who may call what. The first of ``deny``, ``ask``, ``allow`` with a matching pattern decides, else ``default``.

    Args:
        allow, ask, deny: patterns, such as ``"read"``, ``"mcp_*"``, ``"bash(command=rm *)"``. In a glob, ``*`` is any
            text, ``?`` one character, ``[abc]`` one of them; upper and lower case differ. ``,`` separates arguments
            where a name and ``=`` follow it.
        default: ``"allow"``, ``"ask"`` or ``"deny"``.
        timeout_ms: how long a person may take to answer, in milliseconds of the session's clock; then the call is
            rejected. None: for ever.

    Raises:
        TypeError: patterns are one string instead of several, or a pattern is no string.
        ValueError: a pattern that cannot be read, or another default.
    """

    __slots__ = ("_rules", "default", "timeout_ms")
    _rules: tuple[tuple[Permission, tuple[_Pattern, ...]], ...]

    def __init__(
        self,
        allow: Iterable[str] = (),
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
        default: Permission = "allow",
        timeout_ms: int | None = None,
    ) -> None:
        if default not in get_args(Permission):
            raise ValueError(f"'default' must be one of {', '.join(get_args(Permission))}, not {default!r}")
        if timeout_ms is not None and (isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"'timeout_ms' must be an integer or None, not {type(timeout_ms).__name__}")
        if timeout_ms is not None and timeout_ms <= 0:
            raise ValueError("'timeout_ms' must be greater than zero")
        self.default: Permission = default
        self.timeout_ms = timeout_ms
        given: tuple[tuple[Permission, Iterable[str]], ...] = (("deny", deny), ("ask", ask), ("allow", allow))
        self._rules = tuple((permission, _read(permission, patterns)) for permission, patterns in given)

    def decide(self, tool: str, arguments: Mapping[str, Json]) -> Permission:
        """What is to happen with a call of ``tool`` with these arguments."""
        for permission, patterns in self._rules:
            if any(pattern.matches(tool, arguments) for pattern in patterns):
                return permission
        return self.default


def _read(name: str, patterns: Iterable[str]) -> tuple[_Pattern, ...]:
    if isinstance(patterns, str):
        raise TypeError(f"'{name}' takes several patterns: wrap the one in a tuple")
    return tuple(_parse(pattern) for pattern in patterns)


def _parse(pattern: str) -> _Pattern:
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a permission pattern must be a string, not {type(pattern).__name__}")
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"the permission pattern '{pattern[:40]}...' is longer than {MAX_PATTERN} characters")
    shape = _SHAPE.fullmatch(pattern.strip())
    if shape is None:
        raise ValueError(f"the permission pattern '{pattern}' is not of the form tool or tool(argument=glob, ...)")
    arguments: list[tuple[str, re.Pattern[str]]] = []
    if shape["arguments"] is not None:
        for one in re.split(r",\s*(?=[A-Za-z_][A-Za-z0-9_-]*=)", shape["arguments"]):
            name, equals, glob = one.partition("=")
            if not equals or not re.fullmatch(r"\s*[A-Za-z_][A-Za-z0-9_-]*\s*", name):
                raise ValueError(f"the permission pattern '{pattern}' needs argument=glob in its parentheses")
            arguments.append((name.strip(), _glob(glob)))
    return _Pattern(_glob(shape["tool"]), tuple(arguments))


def _glob(text: str) -> re.Pattern[str]:
    return re.compile(translate(text))


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else dumps_checked(value)
