"""Hooks as values: what may be registered, what a handler is shown, and what its answer means (§10). Pure.

Two types are gates: ``pre_tool_use`` and ``pre_llm`` decide what happens next, so whatever is not clearly an answer
counts as a refusal. The other five observe: what they return is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast

from .budget import GuardDecision
from .canonical import Json, clean, dumps, dumps_checked, loads, loads_stored
from .chat import Usage
from .errors import SessionConfiguration
from .limits import check_count

HOOK_TYPES = ("pre_tool_use", "post_tool_use", "pre_llm", "post_llm", "session_start", "session_end", "run_end")
GATES = frozenset({"pre_tool_use", "pre_llm"})
TOOL_TYPES = frozenset({"pre_tool_use", "post_tool_use"})

MAX_REASON = 10_000
MAX_MODEL_NAME = 1000


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a handler is told (§10). What does not belong to its type is None, or empty.

    Attributes:
        event_type: the hook's type.
        session_id, run_id: ``run_id`` is None for ``session_start`` and ``session_end``.
        tags: the four identity tags of §3 by name, None where the session has none.
        tool_name, call_key, arguments: tool hooks. ``arguments`` is the handler's own copy.
        result, ok: ``post_tool_use``: what the model is shown of the result, and whether the call succeeded.
        request: ``pre_llm`` and ``post_llm``: number of the model request in its turn, from 1.
        model: ``pre_llm``: the name that will be asked for; ``post_llm``: the name that answered.
        estimated_tokens: ``pre_llm``: what ``check_before_llm`` is told too.
        soft_decisions: ``pre_llm``: what the budget guard answered ``soft`` since the last request of this run, in the
            guard's own form (§6), oldest first; none from before a parking or a resume.
        text: ``post_llm``: the answer's text; ``run_end``: that of a completed run.
        usage: ``post_llm``: of this answer, None when the provider did not say; ``run_end``: of the whole turn.
        status, error_code: ``run_end``: ``completed``, ``failed``, ``cancelled`` or ``interrupted``.
    """

    event_type: str
    session_id: str
    run_id: str | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    tool_name: str | None = None
    call_key: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result: str | None = None
    ok: bool | None = None
    request: int | None = None
    model: str | None = None
    estimated_tokens: int | None = None
    soft_decisions: tuple[Mapping[str, Json], ...] = ()
    text: str | None = None
    usage: Usage | None = None
    status: str | None = None
    error_code: str | None = None

    def copy(self) -> HookContext:
        """The same with containers of its own: what a handler does to them reaches nobody else."""
        arguments = loads_stored(dumps_checked(self.arguments)) if self.arguments else dict[str, Any]()
        soft = tuple(dict(one) for one in self.soft_decisions)
        return replace(self, tags=dict(self.tags), arguments=arguments, soft_decisions=soft)


Matcher: TypeAlias = "str | Callable[[HookContext], object] | None"


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook, as the session option ``hooks=[...]`` takes it; arguments as of :meth:`Session.register_hook`."""

    event_type: str
    handler: Callable[[HookContext], object]
    matcher: Matcher = None
    timeout_ms: int = 30_000
    priority: int = 100


def check_hook(hook: Hook) -> Hook:
    """Return ``hook`` if it can be registered.

    Raises:
        SessionConfiguration: an unknown type, a time limit that is not greater than zero, a tool-name pattern where
            there is no tool.
        TypeError: a value of the wrong type, naming it.
    """
    kind = hook.event_type
    if not isinstance(kind, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'event_type' must be a string, not {type(kind).__name__}")
    if kind not in HOOK_TYPES:
        raise SessionConfiguration("event_type", f"'{kind[:100]}' is no hook type; hook types: {', '.join(HOOK_TYPES)}")
    if not callable(hook.handler):
        raise TypeError(f"'handler' must be callable, not {type(hook.handler).__name__}")
    matcher: object = hook.matcher
    if isinstance(matcher, str):
        if kind not in TOOL_TYPES:
            raise SessionConfiguration("matcher", f"is a tool-name pattern, and {kind} has no tool; give a callable")
        if not matcher.strip():
            raise SessionConfiguration("matcher", "must not be empty or whitespace")
    elif matcher is not None and not callable(matcher):
        raise TypeError(f"'matcher' must be None, a pattern or a callable, not {type(matcher).__name__}")
    check_count("timeout_ms", hook.timeout_ms)
    if isinstance(hook.priority, bool) or not isinstance(hook.priority, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'priority' must be an integer, not {type(hook.priority).__name__}")
    return hook


def check_hooks(given: object) -> tuple[Hook, ...]:
    """The hooks of the option ``hooks``. Raises as :func:`check_hook`."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise TypeError(f"'hooks' must be a list of Hook, not {type(given).__name__}")
    for one in cast("list[object]", given):
        if not isinstance(one, Hook):
            raise TypeError(f"'hooks' must be a list of Hook; it holds a {type(one).__name__}")
    return tuple(check_hook(one) for one in cast("list[Hook]", given))


def names_tool(hook: Hook, context: HookContext) -> bool:
    """Whether a tool-name pattern lets the hook speak; a callable matcher is asked beside the handler."""
    pattern = hook.matcher
    return not isinstance(pattern, str) or fnmatchcase(context.tool_name or "", pattern)


class MalformedAnswer(ValueError):
    """A gate's handler returned something that its type does not know."""


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What one handler of a gate said; all at their defaults: go on."""

    block: str | None = None
    arguments: Mapping[str, Json] | None = None
    model: str | None = None
    compact: bool = False


GO_ON = HookAnswer()


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """What all hooks of one type came to.

    ``refused``: why this step must not be taken, and ``refused_by`` the hook that said so. Otherwise ``arguments`` (and
    the ids of who changed them), ``model`` and ``compact_by`` are what the hooks want; None: nothing.
    """

    refused: str | None = None
    refused_by: str | None = None
    arguments: Mapping[str, Json] | None = None
    changed_by: tuple[str, ...] = ()
    model: str | None = None
    compact_by: str | None = None

    def after(self, hook_id: str, answer: HookAnswer) -> HookOutcome:
        """The outcome with one more answer."""
        if answer.block is not None:
            return replace(self, refused=answer.block, refused_by=hook_id)
        outcome = self
        if answer.arguments is not None:
            outcome = replace(outcome, arguments=answer.arguments, changed_by=(*self.changed_by, hook_id))
        if answer.model is not None:
            outcome = replace(outcome, model=answer.model)
        return replace(outcome, compact_by=hook_id) if answer.compact else outcome

    def failed(self, hook_id: str, why: str) -> HookOutcome:
        """The outcome when a gate's hook gave no answer that counts."""
        return replace(self, refused=f"hook '{hook_id}' {why}", refused_by=hook_id)

    def shown(self, context: HookContext) -> HookContext:
        """What the next hook is told."""
        arguments = context.arguments if self.arguments is None else self.arguments
        return replace(context, arguments=arguments, model=self.model or context.model)


NOTHING = HookOutcome()


def read_answer(event_type: str, value: object) -> HookAnswer:
    """What a gate's handler returned. Only None and a real dict with known keys are understood.

    Raises:
        MalformedAnswer: anything else: a typing error in a key must not let a call through.
    """
    if value is None:
        return GO_ON
    if type(value) is not dict:
        raise MalformedAnswer(f"expected None or a dict, not {type(value).__name__}")
    given: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
    known = ("decision", "reason", "arguments") if event_type == "pre_tool_use" else ("model", "compact")
    if not given or not all(type(key) is str and key in known for key in given):
        raise MalformedAnswer(f"expected a dict with some of the keys {', '.join(known)}")
    return _read_tool_answer(given) if event_type == "pre_tool_use" else _read_request_answer(given)


def _read_tool_answer(given: Mapping[str, Any]) -> HookAnswer:
    decision, reason = given.get("decision"), given.get("reason")
    if decision == "block" and type(decision) is str:
        if type(reason) is not str:
            raise MalformedAnswer("missing required string 'reason'")
        return HookAnswer(block=clean(reason[:MAX_REASON]))
    if "decision" in given and not (type(decision) is str and decision == "allow"):
        raise MalformedAnswer("'decision' must be 'block' or 'allow'")
    if "arguments" not in given:
        if "decision" not in given:
            raise MalformedAnswer("a 'reason' alone decides nothing")
        return GO_ON
    if type(given["arguments"]) is not dict:
        raise MalformedAnswer("'arguments' must be a dict")
    try:
        return HookAnswer(arguments=loads(dumps(cast("Json", given["arguments"]))))
    except ValueError as error:
        raise MalformedAnswer(f"'arguments' are not JSON: {clean(str(error))}") from None


def _read_request_answer(given: Mapping[str, Any]) -> HookAnswer:
    model, compact = given.get("model"), given.get("compact", False)
    if type(compact) is not bool:
        raise MalformedAnswer("'compact' must be True or False")
    if "model" in given:
        if type(model) is not str or not model.strip():
            raise MalformedAnswer("'model' must be a string that is not blank")
        if len(model) > MAX_MODEL_NAME or clean(model) != model:
            raise MalformedAnswer("'model' is no model name")
    return HookAnswer(model=model, compact=compact)


def soft_as_given(decision: GuardDecision) -> Mapping[str, Json]:
    """A soft decision in the form in which guards give it (§6)."""
    given: dict[str, Json] = {
        "decision": "soft",
        "resource": decision.resource,
        "consumed": decision.consumed,
        "limit": decision.limit,
    }
    if decision.message is not None:
        given["message"] = decision.message
    return given
