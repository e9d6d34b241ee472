"""What both faces of a session have in common, and what needs no file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import SessionConfiguration
from .hooking import Hook, HookContext, Matcher, check_hook
from .host.admitting import Assignment
from .host.core import SessionCore, check_prompt
from .host.operations import check_cursor
from .host.output_type import check_output_type
from .host.tailing import Tail
from .identity import check_id
from .limits import check_limit
from .options import check_on_interrupted
from .session_options import OnInterrupted


class SessionBase:
    """What needs no file: identity, the guard, and whether the session is closed."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    @property
    def session_id(self) -> str:
        """The session's id: unique in the file, for ever."""
        return self._core.session_id

    @property
    def workspace(self) -> str:
        """Absolute path of the folder that tools work in. It need not exist."""
        return str(self._core.workspace)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called, here or on the agent."""
        return self._core.closed or self._core.agent.closed

    @property
    def tenant_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.tenant_id

    @property
    def principal(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.principal

    @property
    def agent_template_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.agent_template_id

    @property
    def correlation_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.correlation_id

    def set_budget_guard(self, guard: object | None, timeout_ms: int = 5000) -> None:
        """Install or, with None, clear the budget guard; from the next check on, also in a live run (§6).

        Args:
            guard: any object with some of ``check_before_llm``, ``record_after_llm``, ``check_before_tool``; its import
                name for a session that was opened with ``budget_guard_isolation="process"``.
            timeout_ms: time limit of each of its calls, in milliseconds.

        Raises:
            SessionClosed: after close.
            SessionConfiguration: ``timeout_ms`` is not greater than zero, the guard has none of these methods, or it is
                no import name where it must be one.
        """
        self._core.check_open()
        if check_limit("budget_guard_timeout_ms", timeout_ms) is None:
            raise SessionConfiguration("budget_guard_timeout_ms", "must be greater than zero")
        self._core.install_guard(guard, timeout_ms)

    def register_hook(
        self,
        event_type: str,
        handler: Callable[[HookContext], object],
        matcher: Matcher = None,
        timeout_ms: int = 30_000,
        priority: int = 100,
    ) -> str:
        """Have ``handler`` called at one kind of moment; from the next one on, also in a live run (§10).

        Types: ``pre_tool_use`` (just before a call's batch), ``post_tool_use`` (a call ran, its batch is over and its
        result is in the file), ``pre_llm`` (once before each model request; attempts after a failed one do not ask
        again), ``post_llm`` (the answer is in the file), ``session_start`` (this object's first transcript operation
        has claimed the session), ``session_end`` (it is closed after such an operation, by its own ``close`` or the
        agent's; 5 s for all of them), ``run_end`` (the end is in the file; also of an interrupted run).

        ``pre_tool_use`` may return None, ``{"decision": "block", "reason": str}`` or ``{"arguments": {...}}``: those
        take the place of the call's own for later hooks, for the permission and for the tool. ``pre_llm`` may return
        None, ``{"model": str}`` (from this request to the end of the turn the model object is asked for that name) and
        ``{"compact": True}`` (what was said is summarised first, unless this turn was compacted before, §5). Both fail
        closed: an exception, a time-out or anything else that is returned blocks the call, or fails the run
        (``HOOK_FAILED``, resumable). What the other types return is not looked at; their failures are logged and
        ignored. Once a run is to stop, observers have 1 s left. A step that is done again after a crash asks again.

        Args:
            event_type: one of the types above.
            handler: a plain callable (on a daemon thread) or an async one (a task; in the async face on the run's own
                loop). It gets one :class:`~thence.HookContext`. Reading methods of the session may be called from it;
                a transcript operation is refused with SessionBusy.
            matcher: None for every moment; for tool hooks a glob over the tool's name (case-sensitive); or a plain
                callable of the context, called beside the handler: one that raises counts as a failing handler.
            timeout_ms: time limit of matcher and handler together, in milliseconds, the wait for a thread included.
            priority: the hook with the LOWER number is asked first; of equal ones the one registered first.

        Returns:
            The hook's id in this session object, for :meth:`unregister_hook`; results name it.

        Raises:
            SessionConfiguration: an unknown type, the three cluster events among them, or a refused value.
            TypeError: a value of the wrong type.
            SessionClosed: after close.
        """
        self._core.check_open()
        return self._core.add_hook(check_hook(Hook(event_type, handler, matcher, timeout_ms, priority)))

    def unregister_hook(self, id: str) -> bool:
        """Forget a hook, from the next moment on; False when there is none with this id.

        Raises:
            SessionClosed: after close.
        """
        self._core.check_open()
        return self._core.hooks.remove(id)

    def _tail(self, run_id: str, after_sequence: int | None) -> Tail:
        core = self._core
        check_cursor(after_sequence)
        return Tail(
            core.session_id,
            check_id(run_id, "run_id"),
            core.tags.given(),
            lambda owner: core.agent.owner_alive(owner, core.session_id),
            after_sequence,
        )

    def _turn(
        self, prompt: str, run_id: str | None, output_type: Any, on_interrupted: OnInterrupted | None
    ) -> Assignment:
        choice = self._core.on_interrupted if on_interrupted is None else check_on_interrupted(on_interrupted)
        name = None if run_id is None else check_id(run_id, "run_id")
        return Assignment(check_prompt(prompt), choice, name, output=check_output_type(output_type))

    def _recovery(self, id: str, run_id: str | None, output_type: Any) -> Assignment:
        name = None if run_id is None else check_id(run_id, "run_id")
        return Assignment(run_id=name, resume=check_id(id, "id"), output=check_output_type(output_type))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}{' closed' if self.is_closed else ''}>"


def nothing() -> None:
    """Nobody streams."""
