"""Tools as values: how a Python callable becomes something a model can call (§12).

>>> from thence import tool
>>> @tool(effect="read")
... def weather(city: str, days: int = 1) -> dict[str, float]:
...     '''Forecast of the mean temperature.'''
...     return {city: 21.5}

:func:`describe` makes the :class:`Tool`; the JSON Schema that the model sees also checks its arguments
(:meth:`Tool.bind`). Results are encoded by :func:`encode_result`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, overload

from ..chat import ToolSpec
from ..errors import ToolError
from .context import ToolCancelled, ToolContext
from .result import EncodedResult, ToolOutput, encode_result
from .signature import Signature, read_signature, target_of

__all__ = [
    "BadArguments",
    "Effect",
    "EncodedResult",
    "Tool",
    "ToolCancelled",
    "ToolContext",
    "ToolOutput",
    "collect",
    "describe",
    "encode_result",
    "tool",
]

Effect: TypeAlias = Literal["read", "idempotent", "once"]
"""What running a call twice would mean. A started call without a result is run again on resume, except ``once`` (§7);
``read`` calls may also run in parallel (§5)."""

Function = TypeVar("Function", bound=Callable[..., object])

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MARKS = "__thence_tool__"
_MAX_PROBLEMS = 8


class BadArguments(ValueError):
    """The model's arguments do not fit the schema. The text is one message for the model; nothing was run."""


@dataclass(frozen=True, slots=True)
class _Marks:
    effect: Effect | None
    repeatable: bool
    timeout_ms: int | None
    name: str | None
    workspace: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A described tool. Compared by identity: two tools may share a schema and do different things.

    Attributes:
        name: matches ``^[a-zA-Z0-9_-]{1,64}$``.
        description: the docstring up to its first section; may be empty.
        spec: what a model is shown. Parameters of type :class:`ToolContext` are not in it.
        effect: None when the tool does not say, which counts as not ``read`` and not ``once``.
        repeatable: exempt from the duplicate guard.
        timeout_ms: milliseconds, or None for the session's ``tool_timeout_ms``.
        workspace: it works on the session's folder; unless ``effect`` is ``read``, its successes change it.
        is_async: :meth:`call` returns an awaitable.
        wants_context: :meth:`call` needs a context.
        function: the callable itself.
    """

    name: str
    description: str
    spec: ToolSpec
    effect: Effect | None
    repeatable: bool
    timeout_ms: int | None
    is_async: bool
    wants_context: bool
    function: Callable[..., object]
    _signature: Signature = field(repr=False)
    workspace: bool = False

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check a JSON object and return keyword arguments of the hinted types, defaults included.

        Raises:
            BadArguments: naming every bad field (at most 8). Nothing was run.
        """
        if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArguments(f"arguments of '{self.name}' must be a JSON object, not {type(arguments).__name__}")
        signature = self._signature
        try:
            values = signature.model().model_validate(dict(arguments))
        except Exception as error:
            from pydantic import ValidationError

            if isinstance(error, ValidationError):
                raise BadArguments(_explain(self.name, signature.names, error)) from None
            # A validator of the host's own type may raise anything; the model still gets a message, not the run.
            raise BadArguments(f"arguments of '{self.name}' were refused: {type(error).__name__}: {error}") from error
        return {name: getattr(values, f"f{index}") for index, name in enumerate(signature.names)}

    def call(self, keywords: Mapping[str, Any], context: ToolContext | None = None) -> object:
        """Run the callable with what :meth:`bind` returned; an awaitable when :attr:`is_async`.

        A plain function may hand back an awaitable too (a wrapper around an async one): test the result, not the flag.

        Raises:
            TypeError: the tool wants a context and none was given.
            BaseException: whatever the tool raises.
        """
        names = self._signature.context_names
        if names and context is None:
            raise TypeError(f"tool '{self.name}' needs a ToolContext")
        return self.function(**keywords, **dict.fromkeys(names, context))


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    effect: Effect | None = None,
    repeatable: bool = False,
    timeout_ms: int | None = None,
    name: str | None = None,
    workspace: bool = False,
) -> Callable[[Function], Function]: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    effect: Effect | None = None,
    repeatable: bool = False,
    timeout_ms: int | None = None,
    name: str | None = None,
    workspace: bool = False,
) -> Any:
    """Mark a callable as a tool and return it unchanged; with or without parentheses.

    Args:
        effect: ``read``, ``idempotent``, ``once`` or None (undeclared), see :data:`Effect`.
        repeatable: exempt from the duplicate guard (§5).
        timeout_ms: this tool's own time limit in milliseconds. Default: the session's.
        name: what the model calls it. Default: the callable's own name.
        workspace: it works on the session's folder. Unless it is ``read``, each of its successes counts as a change
            that the completion gate wants verified (§5). (Any tool may report ``changed_paths`` instead.)

    Raises:
        ValueError: an unknown effect, or a time limit that is not a positive integer.
        ToolError: the callable cannot carry the mark (under ``@staticmethod``, a built-in).
    """
    if effect is not None and effect not in get_args(Effect):
        raise ValueError(f"effect must be one of {', '.join(get_args(Effect))}, not {effect!r}")
    if timeout_ms is not None and (type(timeout_ms) is not int or timeout_ms < 1):
        raise ValueError(f"timeout_ms must be an integer greater than zero, not {timeout_ms!r}")
    marks = _Marks(effect, repeatable, timeout_ms, name, workspace)

    def mark(marked: Function) -> Function:
        if isinstance(marked, staticmethod | classmethod):
            # The class would hand out the bare function, and the declared effect would be lost without a word.
            raise ToolError(f"put @tool below @{type(cast('object', marked)).__name__}")
        try:
            setattr(marked, _MARKS, marks)
        except (AttributeError, TypeError):
            raise ToolError(f"{marked!r} cannot be marked as a tool: wrap it in a function") from None
        return marked

    return mark if function is None else mark(function)


def describe(function: Callable[..., object] | Tool) -> Tool:
    """Return the :class:`Tool` of a function, bound method, partial or callable object, marked or not.

    Parameters that a partial fixes by keyword stay the host's: they are neither shown nor settable.

    Raises:
        ToolError: a lambda without a name, a name that does not match ``^[a-zA-Z0-9_-]{1,64}$``, a class, a generator,
            a parameter without a type hint, ``*args``, ``**kwargs``, a positional-only parameter, hints that cannot be
            resolved or have no JSON Schema, or a default that is not JSON.
    """
    if isinstance(function, Tool):
        return function
    target = target_of(function)
    marks = _marks_of(function, target)
    name = marks.name or _own_name(target)
    if name == "<lambda>":
        raise ToolError("a lambda has no name: give one with tool(name=...)")
    if not _NAME.fullmatch(name):
        raise ToolError(f"tool name {name!r} must match ^[a-zA-Z0-9_-]{{1,64}}$")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ToolError(f"tool '{name}' is a generator: return one value, and use ToolContext.progress on the way")
    signature = read_signature(function, f"tool '{name}'")
    return Tool(
        name=name,
        description=signature.description,
        spec=ToolSpec(name, signature.description, signature.schema),
        effect=marks.effect,
        repeatable=marks.repeatable,
        timeout_ms=marks.timeout_ms,
        is_async=inspect.iscoroutinefunction(target),
        wants_context=bool(signature.context_names),
        function=function,
        _signature=signature,
        workspace=marks.workspace,
    )


def collect(tools: Iterable[Callable[..., object] | Tool]) -> dict[str, Tool]:
    """Describe ``tools`` and key them by name, in the given order.

    Raises:
        ToolError: as :func:`describe`, or two tools have one name.
    """
    found: dict[str, Tool] = {}
    for each in tools:
        described = describe(each)
        if described.name in found:
            raise ToolError(f"two tools are called '{described.name}'")
        found[described.name] = described
    return found


def _marks_of(function: object, target: Any) -> _Marks:
    inner: Any = function
    while True:
        marks: object = getattr(inner, _MARKS, None)
        if isinstance(marks, _Marks):
            return marks
        # A partial of a marked function keeps its marks, unless it has its own.
        following: Any = getattr(inner, "func", None)
        if following is None:
            break
        inner = following
    marks = getattr(target, _MARKS, None)
    return marks if isinstance(marks, _Marks) else _Marks(None, False, None, None)


def _own_name(target: Any) -> str:
    name = getattr(target, "__name__", "")
    return type(target.__self__).__name__ if name == "__call__" else str(name)


def _explain(name: str, names: tuple[str, ...], error: Any) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    texts: list[str] = []
    for problem in problems[:_MAX_PROBLEMS]:
        where = ".".join(str(part) for part in problem["loc"])[:200]
        if problem["type"] == "missing":
            texts.append(f"'{where}' is missing")
        elif problem["type"] == "extra_forbidden":
            texts.append(f"'{where}' is not a parameter (there are: {', '.join(names) or 'none'})")
        else:
            texts.append(f"'{where}': {problem['msg'][:500]}")
    if len(problems) > _MAX_PROBLEMS:
        texts.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    return f"bad arguments for '{name}': {'; '.join(texts)}"
