"""What the two faces of an agent and of a session share: the store, the registry of live operations, the defaults."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..canonical import Json, check_text
from ..chat import Model
from ..effects import Flow, Stopped
from ..errors import SessionBusy, SessionClosed
from ..events import Event
from ..hooking import Hook
from ..identity import Scope, Tags
from ..ledger import Setup
from ..log import Log
from ..options import limits_of
from ..permissions import PermissionPolicy
from ..plan import Op
from ..rows import encode_row
from ..session_options import OnInterrupted
from ..sessions import set_options
from ..steps import Traits
from ..verification import Verification, Verifier, is_gated, verification_of
from .env import HostEnv
from .file_store import FileStore
from .guard import Guarded, check_not_inside
from .guard_process import ProcessGuard, isolated
from .hooks import Hooks
from .reread import NAME as REREAD
from .reread import reread_tool
from .scoping import within
from .station import Surroundings
from .toolkit import Tool
from .workers import Workers

R = TypeVar("R")

STOP_WAIT_S = 6.0
"""How long a caller waits for an interrupted operation to let go: 5 s of grace for its tools, and a little."""


MAX_PROMPT_BYTES = 16 * 1024 * 1024


class Operation(Protocol):
    """A live transcript operation of this process, started through a session of ``core.agent``."""

    core: SessionCore
    stopping: bool

    def request_stop(self, stopped: Stopped) -> None: ...

    def look_again(self) -> None:
        """Something is in the inbox: do not wait for the next poll."""
        ...

    def wait(self, timeout_s: float) -> bool: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class AgentCore:
    """One agent: a store, its defaults, and who is busy.

    One that was scoped from a ``parent`` shares all of it, sees less, and is over when the parent is.
    """

    store: FileStore
    env: HostEnv
    model: Model | None
    tools: Mapping[str, Tool]
    instructions: str
    settings: Mapping[str, Json]
    workers: Workers = field(default_factory=lambda: Workers("thence"))
    live: dict[str, Operation] = field(default_factory=dict[str, Operation])
    lock: threading.Lock = field(default_factory=threading.Lock)
    owns_model: bool = False
    guards: weakref.WeakSet[ProcessGuard] = field(default_factory=weakref.WeakSet[ProcessGuard])
    """Those in processes of their own, which end with the agent."""

    scope: Scope = field(default_factory=Scope)
    parent: AgentCore | None = None
    ended: bool = False
    with_last_words: set[SessionCore] = field(default_factory=set["SessionCore"])
    """Sessions that have a ``session_end`` hook and are not closed: the agent closes them at the latest."""

    @property
    def closed(self) -> bool:
        """Whether the agent was closed, or the one that it was scoped from."""
        return self.ended or (self.parent is not None and self.parent.closed)

    def scoped(self, given: Mapping[str, str | None]) -> AgentCore:
        """An agent on the same store that sees only sessions with these tags, of those that this one sees.

        Raises:
            SessionConfiguration: a tag that this one's scope contradicts.
        """
        scope = self.scope.narrowed(given)
        return replace(self, scope=scope, parent=self, ended=False, owns_model=False, guards=weakref.WeakSet())

    def is_within(self, other: AgentCore) -> bool:
        """Whether this is ``other``, or was scoped from it."""
        return self is other or (self.parent is not None and self.parent.is_within(other))

    def operations(self) -> dict[str, Operation]:
        """Live operations that were started through this agent or one scoped from it, by session."""
        return {name: one for name, one in list(self.live.items()) if one.core.agent.is_within(self)}

    def keep_guard(self, guard: ProcessGuard) -> None:
        """End the guard's process with this agent, or with the one that it was scoped from."""
        self.guards.add(guard)
        if self.parent is not None:
            self.parent.keep_guard(guard)

    def admit(self, session_id: str, operation: Operation) -> Operation | None:
        """Make ``operation`` the session's live one in this process. An earlier one that is already stopping is given
        back instead: wait for it and try again.

        Raises:
            SessionBusy: the session has a live operation that is not stopping.
        """
        with self.lock:
            current = self.live.get(session_id)
            if current is None:
                self.live[session_id] = operation
                return None
        if not current.stopping:
            raise SessionBusy(session_id, holder=self.store.owner)
        return current

    def dismiss(self, session_id: str, operation: Operation) -> None:
        """The operation is over."""
        with self.lock:
            if self.live.get(session_id) is operation:
                del self.live[session_id]

    def owner_alive(self, owner: str, session_id: str) -> bool:
        """Whether the session's claim by ``owner`` counts: that process still holds its kernel lock, and if it is this
        process, the session has a live operation here (§8)."""
        return session_id in self.live if owner == self.store.owner else self.store.owner_alive(owner)


@dataclass(slots=True, eq=False)
class SessionCore:
    """One open session: what it runs with, and its log as far as this process has read it."""

    agent: AgentCore
    session_pk: int
    session_id: str
    workspace: Path
    tags: Tags
    shaping: Mapping[str, Any]
    env: HostEnv
    model: Model | None
    guard: Guarded | None
    permissions: PermissionPolicy | None = None
    requires: tuple[str, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    guard_isolation: str = "thread"
    log: Log | None = None
    closed: bool = False
    verifier: Verifier | None = None
    _tools: Mapping[str, Tool] | None = None

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's tools, and ``read_output`` for what was shown only in part, unless the host has its own."""
        if self._tools is None:
            own = self.agent.tools
            self._tools = own
            if own and REREAD not in own:
                self._tools = {**own, REREAD: reread_tool(self.agent.store, self.session_pk, self.session_id)}
        return self._tools

    def add_hook(self, hook: Hook) -> str:
        """Register a checked hook; returns its id."""
        if hook.event_type == "session_end":
            self.agent.with_last_words.add(self)
        return self.hooks.add(hook)

    def install_guard(self, guard: object | None, timeout_ms: int) -> None:
        """Another guard, from the next check on; the one before it is let go."""
        held, before = isolated(guard, self.guard_isolation), self.guard
        if isinstance(held, ProcessGuard):
            self.agent.keep_guard(held)
            held.start()
        self.guard = None if held is None else Guarded(held, timeout_ms)
        if before is not None and isinstance(before.guard, ProcessGuard):
            before.guard.close()

    def let_guard_go(self) -> None:
        """Nothing more is asked of the guard."""
        if self.guard is not None and isinstance(self.guard.guard, ProcessGuard):
            self.guard.guard.close()

    def unrecorded(self) -> tuple[Op, ...]:
        """What the next run must write about the session: callables it was given after the opening (§2)."""
        given = {"budget_guard": self.guard, "verifier": self.verifier, "hooks": self.hooks or None}
        requires = {*self.requires, *(name for name, value in given.items() if value is not None)}
        if requires == set(self.requires):
            return ()
        self.requires = tuple(sorted(requires))
        return (set_options(self.session_pk, encode_row(dict(self.shaping)), encode_row(list(self.requires))),)

    def check_open(self) -> None:
        """Raises SessionClosed after close, of the session or of its agent; SessionError inside its own guard."""
        check_not_inside(self.session_id)
        self.agent.store.check_usable()
        if self.closed or self.agent.closed:
            raise SessionClosed(self.session_id)

    def within_scope(self, flow: Flow[R]) -> Flow[R]:
        """``flow``, which raises SessionNotFound if the agent does not see the session any more."""
        return within(self.agent.scope, self.session_id, flow)

    def keep_log(self, log: Log | None) -> None:
        """Keep what an operation has folded for the next one; None reads the file again."""
        self.log = log

    def setup(self, *, streaming: bool) -> Setup:
        """What a run of this session starts with now."""
        agent, shaping = self.agent, self.shaping
        limits = limits_of(shaping)
        verification = self.verification
        return Setup(
            model=self.model.name if self.model is not None else "",
            instructions=shaping.get("instructions", agent.instructions),
            settings=shaping.get("model_settings", agent.settings),
            specs=tuple(tool.spec for tool in agent.tools.values()),
            traits={t.name: Traits(t.effect, t.repeatable, t.timeout_ms, t.workspace) for t in self.tools.values()},
            reread=self.tools[REREAD].spec if self.tools is not agent.tools else None,
            limits=limits,
            permissions=self.permissions,
            # A reader has already seen what the broken attempt streamed: one more attempt, whatever the threshold (§5).
            max_attempts=min(2, limits.circuit_breaker_threshold) if streaming else limits.circuit_breaker_threshold,
            gated=is_gated(shaping, verification),
            verifies=verification.exists,
        )

    @property
    def verification(self) -> Verification:
        """What a run of this session verifies its changes with."""
        return verification_of(self.shaping, self.verifier)

    def surroundings(
        self, setup: Setup, on_event: Callable[[Event], None] | None, *, prefer_async: bool
    ) -> Surroundings:
        """What a run's world needs of this session."""
        return Surroundings(
            env=self.env,
            tags=self.tags,
            workspace=self.workspace,
            limits=setup.limits,
            tools=self.tools,
            model=self.model,
            guard=lambda: self.guard,
            hooks=self.hooks,
            forbidden_files=self.agent.store.forbidden_files,
            prefer_async=prefer_async,
            file=str(self.agent.store.path or self.agent.store.owner),
            on_event=on_event,
            verification=self.verification,
        )

    @property
    def on_interrupted(self) -> OnInterrupted:
        """What ``send`` does about an interrupted run when the caller does not say."""
        value: OnInterrupted = self.shaping.get("on_interrupted", "raise")
        return value


def new_owner() -> str:
    """A name for this process that no other ever had."""
    return secrets.token_hex(8)


def check_prompt(prompt: object, name: str = "prompt") -> str:
    """Return the prompt if it can be sent; ``name`` is what the argument is called.

    Raises:
        TypeError: not a string.
        ValueError: blank, a lone surrogate, or over 16 MiB.
    """
    if not isinstance(prompt, str):
        raise TypeError(f"'{name}' must be a string, not {type(prompt).__name__}")
    if not prompt.strip():
        raise ValueError(f"'{name}' must not be empty or whitespace")
    check_text(prompt, name)
    if len(prompt) > 4_000_000 and len(prompt.encode()) > MAX_PROMPT_BYTES:
        raise ValueError(f"'{name}' has {len(prompt.encode())} bytes; the limit is {MAX_PROMPT_BYTES}")
    return prompt
