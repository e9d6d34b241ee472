"""What both faces of a session have in common, and what needs no file."""

from __future__ import annotations

from .errors import SessionConfiguration
from .host.admitting import Assignment
from .host.core import SessionCore, check_prompt
from .host.guard import Guarded
from .host.operations import check_cursor
from .host.tailing import Tail
from .identity import check_id
from .limits import check_limit
from .options import OnInterrupted, check_on_interrupted


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
            guard: any object with some of ``check_before_llm``, ``record_after_llm``, ``check_before_tool``.
            timeout_ms: time limit of each of its calls, in milliseconds.

        Raises:
            SessionClosed: after close.
            SessionConfiguration: ``timeout_ms`` is not greater than zero.
        """
        self._core.check_open()
        if check_limit("budget_guard_timeout_ms", timeout_ms) is None:
            raise SessionConfiguration("budget_guard_timeout_ms", "must be greater than zero")
        self._core.guard = None if guard is None else Guarded(guard, timeout_ms)

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

    def _turn(self, prompt: str, run_id: str | None, on_interrupted: OnInterrupted | None) -> Assignment:
        choice = self._core.on_interrupted if on_interrupted is None else check_on_interrupted(on_interrupted)
        name = None if run_id is None else check_id(run_id, "run_id")
        return Assignment(check_prompt(prompt), choice, name)

    def _recovery(self, id: str, run_id: str | None) -> Assignment:
        name = None if run_id is None else check_id(run_id, "run_id")
        return Assignment(run_id=name, resume=check_id(id, "id"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}{' closed' if self.is_closed else ''}>"


def nothing() -> None:
    """Nobody streams."""
