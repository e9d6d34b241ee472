"""What a caller may set of a session, with types and defaults (§1, §2). Checked by `options` when it is used."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, dataclass_transform

from .canonical import Json
from .chat import Model
from .hooking import Hook
from .identity import DurableMemoryBinding
from .limits import LIMIT_NAMES, Limits
from .permissions import PermissionPolicy
from .verification import DEFAULTS as GATE_DEFAULTS
from .verification import VERIFY_TIMEOUT_MS, GateChoice, Verifier

OnInterrupted: TypeAlias = Literal["raise", "resume", "settle"]
GuardIsolation: TypeAlias = Literal["thread", "process"]

SHAPING = (*LIMIT_NAMES, *GATE_DEFAULTS, "instructions", "model_settings", "on_interrupted")
"""Options that are stored with the session and restored on resume."""

CALLABLES = ("budget_guard", "hooks", "permission_policy", "verifier")
"""Options that cannot be stored. The session stores which of them it had: resuming it without is refused."""


class _Without:
    def __repr__(self) -> str:
        return "WITHOUT"


WITHOUT: Any = _Without()
"""Stands for one of :data:`CALLABLES` that a session had and that is left out on purpose, as the command line does."""

_SHARED = frozenset({*CALLABLES, "model", "host_env"})
"""Options that are objects of the host: they may hold locks, and what they count is counted once."""


class Environment(Protocol):
    """A :class:`~thence.HostEnv`: where ids and times come from (§11)."""

    @property
    def id_generator(self) -> object: ...

    @property
    def clock(self) -> object: ...


class EnvironmentConfig(Protocol):
    """A :class:`~thence.HostEnvConfig`: an environment by value (§11)."""

    def build(self) -> Environment: ...


T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def _by_name(cls: type[T]) -> type[T]:
    """Tells type checkers that the attributes are the constructor's arguments too, by name only."""
    return cls


_LIMITS = Limits()


@_by_name
class SessionOptions:
    """What a caller sets of a session; all optional. Set attributes, or pass them by name.

    Unset is a value of its own: a default that is set explicitly wins over what the file remembers, an unset option
    does not. Reading an unset option gives its default. Nothing is checked before the options are used. A copy is
    independent, and knows which were set; ``copy.deepcopy`` shares the host's objects (model, guard, verifier, policy,
    hooks, environment) and copies everything else.

    Identity (§3): ``session_id, tenant_id, principal, agent_template_id, correlation_id, durable_memory``. Limits
    (§2): see :class:`~thence.limits.Limits`. Policy: ``budget_guard, budget_guard_timeout_ms`` (§6);
    ``budget_guard_isolation`` is ``thread`` (default), or ``process``: then ``budget_guard`` is the import name of an
    object, a class or a factory, ``package.module:attribute``, which lives in a process of its own, killed when a call
    passes its time limit; ``permission_policy`` (a :class:`~thence.PermissionPolicy`, §10), ``hooks`` (a list of
    :class:`~thence.Hook`, §10), ``retention_limits`` (§9), ``on_interrupted`` (``raise``, ``resume`` or
    ``settle``, §1). Environment: ``host_env`` (§11). Model: ``model, instructions, model_settings``, each over the
    agent's own.

    Completion gate (§5): ``completion_gate`` (``"auto"``, True or False), ``verify_commands`` (each a command line for
    the shell or a list of arguments, run in the workspace), ``verifier`` (takes a
    :class:`~thence.VerificationContext`, gives a bool or a :class:`~thence.VerificationReport`; sync or async),
    ``verify_timeout_ms`` (of each command and of the verifier; default 600,000).

    Raises:
        AttributeError: an unknown name, on setting and on reading.
    """

    session_id: str | None = None
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None
    durable_memory: DurableMemoryBinding | None = None

    max_tool_rounds: int = _LIMITS.max_tool_rounds
    max_parse_retries: int = _LIMITS.max_parse_retries
    tool_timeout_ms: int | None = _LIMITS.tool_timeout_ms
    llm_api_timeout_ms: int | None = _LIMITS.llm_api_timeout_ms
    circuit_breaker_threshold: int = _LIMITS.circuit_breaker_threshold
    duplicate_tool_call_threshold: int = _LIMITS.duplicate_tool_call_threshold
    auto_compact: bool = _LIMITS.auto_compact
    auto_compact_threshold: float = _LIMITS.auto_compact_threshold
    max_context_tokens: int = _LIMITS.max_context_tokens
    continuation_enabled: bool = _LIMITS.continuation_enabled
    max_continuation_turns: int = _LIMITS.max_continuation_turns
    max_execution_time_ms: int | None = _LIMITS.max_execution_time_ms
    max_parallel_tools: int = _LIMITS.max_parallel_tools
    max_tool_output_bytes: int = _LIMITS.max_tool_output_bytes
    retry_base_ms: int = _LIMITS.retry_base_ms
    budget_guard_timeout_ms: int = _LIMITS.budget_guard_timeout_ms

    budget_guard: object | None = None
    budget_guard_isolation: GuardIsolation = "thread"
    permission_policy: PermissionPolicy | None = None
    hooks: Sequence[Hook] | None = None
    retention_limits: Mapping[str, int] | None = None
    on_interrupted: OnInterrupted = "raise"

    completion_gate: GateChoice = "auto"
    verify_commands: Sequence[str | Sequence[str]] = ()
    verifier: Verifier | None = None
    verify_timeout_ms: int = VERIFY_TIMEOUT_MS

    host_env: Environment | EnvironmentConfig | None = None
    model: Model | str | None = None
    instructions: str | None = None
    model_settings: Mapping[str, Json] | None = None

    if not TYPE_CHECKING:
        # What is set is in the instance's own dict, and nothing else is: that is how unset is known. A type checker
        # sees the attributes alone, so that it knows a misspelt name and a value of a wrong type.

        def __init__(self, **given: Any) -> None:
            for name, value in given.items():
                setattr(self, name, value)

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in NAMES:
                raise _unknown(name)
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> Any:
            raise _unknown(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionOptions:
        given = {
            name: copy.copy(value) if name == "hooks" else value if name in _SHARED else copy.deepcopy(value, memo)
            for name, value in self.given().items()
        }
        return type(self)(**given)

    def __repr__(self) -> str:
        return f"SessionOptions({', '.join(sorted(self.given()))})"

    def given(self) -> dict[str, Any]:
        """The options that were set, by name; a copy."""
        return dict(vars(self))


NAMES = frozenset(SessionOptions.__annotations__)
"""Every option."""


def _unknown(name: str) -> AttributeError:
    return AttributeError(f"SessionOptions has no option '{name}'; options: {', '.join(sorted(NAMES))}")
