"""Every error that thence raises on purpose (§1).

One base, :class:`ThenceError`; each class has a stable ``code`` that programs may test. A caller never sees a
bare ``sqlite3``, SDK or pydantic error. Bad *arguments* are ``ValueError`` or ``TypeError`` and are raised before
anything is written.
"""

from __future__ import annotations

from typing import Any


class ThenceError(RuntimeError):
    """Base of all run-time errors. They can be copied and pickled, and are then told apart by nothing.

    Attributes:
        code: stable upper-case name, for programs.
        run_id: the run that failed, when one did.
        retryable: the same call may succeed later without any change.
        resumable: ``resume_run(run_id)`` goes on at the failed step.
    """

    code = "INTERNAL_ERROR"

    def __init__(
        self, message: str, *, run_id: str | None = None, retryable: bool = False, resumable: bool = False
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.retryable = retryable
        self.resumable = resumable

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception's own way calls its class with the finished text, which most constructors here do not take.
        return _restored, (type(self), self.args, dict(vars(self)))


def _restored(kind: type[ThenceError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ThenceError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class SessionError(ThenceError):
    """The session cannot do what was asked (``Session not found: <id>`` among others)."""

    code = "SESSION_ERROR"


class SessionNotFound(SessionError):
    """No such session, or none that this (scoped) agent may see."""

    code = "SESSION_NOT_FOUND"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session not found: {session_id}")


class SessionBusy(ThenceError):
    """Another transcript operation is active on the session, in this or another process. Never queued.

    ``holder`` names the owner that has it, as in ``session.owner`` and the file ``<db>-owner-<holder>``. ``waits`` are
    the ids of the waits that keep a parked run from going on; nobody owns its session.
    """

    code = "SESSION_BUSY"

    def __init__(
        self, session_id: str, *, holder: str | None = None, run_id: str | None = None, waits: tuple[str, ...] = ()
    ) -> None:
        text = f"Session '{session_id}' already has an active operation"
        if run_id is not None:
            text += f": run '{run_id}' is parked and waits for {', '.join(waits) or 'being resumed'}"
        super().__init__(text, run_id=run_id, retryable=True)
        self.holder = holder
        self.waits = waits


class SessionClosed(ThenceError):
    """The session (or its agent) was closed."""

    code = "SESSION_CLOSED"

    def __init__(self, session_id: str | None) -> None:
        super().__init__("The agent is closed" if session_id is None else f"Session '{session_id}' is closed")


class SessionConfiguration(ThenceError, ValueError):
    """An option was refused before anything was written. ``field`` names it."""

    code = "SESSION_CONFIGURATION_ERROR"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"Invalid session configuration for '{field}': {message}")
        self.field = field


class RunInterrupted(ThenceError):
    """The session's last run was interrupted; ``resume_run`` or ``send(on_interrupted=...)`` decides what happens.

    ``open_calls`` are the call keys without a settled result; ``reason`` is what whoever interrupted it said, where
    that is known here: the run's ``run_control_applied`` event keeps it.
    """

    code = "RUN_INTERRUPTED"

    def __init__(self, run_id: str, open_calls: tuple[str, ...], reason: str = "") -> None:
        calls = ", ".join(open_calls) or "none"
        super().__init__(
            f"Run '{run_id}' was interrupted{f': {reason}' if reason else ''} (open calls: {calls}); "
            f"resume it, or send with on_interrupted='resume' or 'settle'",
            run_id=run_id,
            resumable=True,
        )
        self.open_calls = open_calls
        self.reason = reason


class BudgetExhausted(ThenceError):
    """The budget guard denied a model request (§6). Never retried; the session stays open."""

    code = "BUDGET_EXHAUSTED"

    def __init__(self, resource: str, reason: str, *, run_id: str | None = None) -> None:
        super().__init__(f"Budget exhausted on '{resource}': {reason}", run_id=run_id, resumable=True)
        self.resource = resource
        self.reason = reason


class RunIdentityConflict(ThenceError):
    """A run id is already bound to different input or to another session."""

    code = "RUN_IDENTITY_CONFLICT"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Run '{run_id}' is already bound to different immutable input", run_id=run_id)


class ModelError(ThenceError):
    """A provider call failed. Adapters raise it; the turn decides whether to try again.

    Attributes:
        kind: stable short name, such as ``http_429``, ``timeout``, ``truncated_stream``, ``stream_broken``.
        retry_after_s: seconds the provider asked us to wait, if it did.
    """

    code = "LLM_ERROR"

    def __init__(self, kind: str, message: str, *, retryable: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message, retryable=retryable)
        self.kind = kind
        self.retry_after_s = retry_after_s


class RunFailed(ThenceError):
    """A run ended ``failed``; ``code`` says why (``LLM_ERROR``, ``SESSION_ERROR``, ``EXECUTION_TIMEOUT``, ...)."""

    code = "RUN_FAILED"

    def __init__(
        self, code: str, message: str, *, run_id: str | None = None, retryable: bool = False, resumable: bool = False
    ) -> None:
        super().__init__(message, run_id=run_id, retryable=retryable, resumable=resumable)
        self.code = code


class ContextOverflow(RunFailed):
    """The request does not fit into the model's window, and compaction could not help (§5). Always resumable.

    ``why`` says why not: there was nothing to summarise, the summary failed, or the turn had its compaction already.
    """

    code = "CONTEXT_OVERFLOW"

    def __init__(self, message: str, why: str = "", *, run_id: str | None = None, resumable: bool = True) -> None:
        super().__init__(self.code, message, run_id=run_id, resumable=resumable)
        self.why = why


class WaitError(ThenceError):
    """An answer was refused and nothing was written. ``code`` says why: ``WAIT_NOT_FOUND``, ``WAIT_ALREADY_ANSWERED``,
    ``WAIT_CLOSED`` (nobody waits for it any more), ``WAIT_DIGEST_MISMATCH`` (it is for something else),
    ``WAIT_EXPIRED``."""

    code = "WAIT_ERROR"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class OutputInvalid(ThenceError):
    """The run completed, and its answer is no value of the ``output_type`` that the caller gave (§1).

    Nothing is lost: ``text`` is the answer, which the log holds as it is. ``problems`` say what is wrong, in words that
    a model understands too: sending them as the next prompt is how to ask again.
    """

    code = "OUTPUT_INVALID"

    def __init__(self, run_id: str, text: str, problems: tuple[str, ...]) -> None:
        super().__init__(
            f"the answer of run '{run_id}' does not fit its output type: {'; '.join(problems)}", run_id=run_id
        )
        self.text = text
        self.problems = problems


class GateClosed(RunFailed):
    """The turn changed the workspace, and its changes were neither verified nor waived (§5). Always resumable.

    ``digest`` names the changes: give it to ``session.waive``. ``why`` says what is missing or what failed.
    """

    code = "COMPLETION_GATE"

    def __init__(self, digest: str, why: str, *, run_id: str | None = None, resumable: bool = True) -> None:
        super().__init__(
            self.code,
            f"completion gate: workspace changes {digest} have no passed verification and no waiver; {why}",
            run_id=run_id,
            resumable=resumable,
        )
        self.digest = digest
        self.why = why


class ToolError(ThenceError):
    """A tool could not be registered or described."""

    code = "TOOL_ERROR"


class StoreError(ThenceError):
    """The file could not be read or written. Nothing of the refused write is in it."""

    code = "STORE_ERROR"


class DiskFull(StoreError):
    """No space left. Reads work; writing goes on once there is space, on the same object."""

    code = "DISK_FULL"


class FileReplaced(StoreError):
    """The database was moved, deleted or replaced while open; nothing was acknowledged after that."""

    code = "FILE_REPLACED"


class OwnershipLost(StoreError):
    """Another process took the session over; this write was refused inside SQLite."""

    code = "OWNERSHIP_LOST"


class SchemaChanged(StoreError):
    """Our tables, triggers or views in the file were changed under us."""

    code = "SCHEMA_CHANGED"


class FileRefused(StoreError):
    """The given path was refused and left untouched. ``reason`` is a stable short name.

    Reasons: ``missing_file``, ``not_a_file``, ``not_a_database``, ``foreign_database``, ``newer_schema``, ``corrupt``,
    ``schema_mismatch``, ``network_file_system``, ``missing_folder``, ``read_only``, ``locking``.
    """

    code = "FILE_REFUSED"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MigrationBlocked(StoreError):
    """An older file cannot be migrated while other processes run sessions on it."""

    code = "MIGRATION_BLOCKED"


class FactConflict(StoreError):
    """A fact with this key exists with other content, or the batch expected another head (§4)."""

    code = "FACT_CONFLICT"


class UnknownCriticalFact(SessionError):
    """The log holds a critical fact kind this version does not know: the session is read-only."""

    code = "UNKNOWN_FACT_KIND"


class IllegalFact(SessionError):
    """A fact cannot follow the facts before it: the log was not written by a turn of ours."""

    code = "ILLEGAL_FACT"
