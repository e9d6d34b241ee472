"""What a tool is told about the call it serves (§12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ..canonical import check_text
from ..errors import ThenceError


class ToolCancelled(ThenceError):
    """Raised inside a tool by :meth:`ToolContext.raise_if_cancelled`; the call gets a failed result."""

    code = "TOOL_CANCELLED"


def _never() -> bool:
    return False


def _nobody(text: str) -> None:
    del text


def _no_files() -> frozenset[tuple[int, int]]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """One call, as its tool sees it. A parameter annotated with this class is filled in and not shown to the model.

    Attributes:
        session_id: the session of the call.
        run_id: the run of the call. It changes on resume; the next two do not.
        call_key: the call's key in the log, such as ``t1-r1-c0``.
        idempotency_key: SHA-256 in hexadecimal, the same when the call is run again on resume (§7). Send it to
            services that can drop a repeated request.
        workspace: absolute path of the session's folder. It need not exist.
        tags: the four identity tags of §3, read-only; absent ones are None.
        forbidden_files: asked before a file is opened; (device, inode) of files that must never be opened in this
            process, because closing them would drop SQLite's locks (§8). Default: none.
        is_cancelled: the driver's cancel check, cheap, callable from any thread. Default: never cancelled.
        on_progress: where :meth:`progress` goes. Default: nowhere.
    """

    session_id: str
    run_id: str
    call_key: str
    idempotency_key: str
    workspace: Path
    tags: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    forbidden_files: Callable[[], frozenset[tuple[int, int]]] = field(default=_no_files, repr=False)
    is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    on_progress: Callable[[str], None] = field(default=_nobody, repr=False)

    def __post_init__(self) -> None:
        # A copy behind a read-only view: one tool cannot relabel what the next one sees.
        object.__setattr__(self, "tags", MappingProxyType(dict(self.tags)))

    @property
    def cancelled(self) -> bool:
        """True once the run was cancelled or interrupted, or the call passed its time limit."""
        return self.is_cancelled()

    def raise_if_cancelled(self) -> None:
        """Stop the tool here if nobody waits for its answer any more.

        Raises:
            ToolCancelled: when :attr:`cancelled` is True.
        """
        if self.is_cancelled():
            raise ToolCancelled(f"call {self.call_key} was cancelled", run_id=self.run_id)

    def progress(self, text: str) -> None:
        """Show ``text`` to whoever watches the run (event ``tool_output_delta``); it is no part of the result.

        Lone surrogates are shown as ``?``.

        Raises:
            TypeError: ``text`` is not a string.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"progress takes text, not {type(text).__name__}")
        self.on_progress(text.encode("utf-8", "replace").decode("utf-8"))


class Defer(Exception):
    """Raised by a tool whose result comes later, from somebody else: the run parks until ``session.answer`` gives it.

    Args:
        subject: what is awaited, for people; at most 8,192 characters.
        deadline_ms: until when, in milliseconds since the epoch; None: for ever. After it the call has failed.

    Raises:
        TypeError, ValueError: an argument of another type, a blank or too long text, a lone surrogate.
    """

    def __init__(self, subject: str, *, deadline_ms: int | None = None) -> None:
        if not isinstance(subject, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"'subject' must be a string, not {type(subject).__name__}")
        if not subject.strip() or len(subject) > MAX_SUBJECT:
            raise ValueError(f"'subject' must be a text of 1 to {MAX_SUBJECT} characters")
        if deadline_ms is not None and (isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"'deadline_ms' must be an integer or None, not {type(deadline_ms).__name__}")
        if deadline_ms is not None and not 0 <= deadline_ms < 2**53:
            raise ValueError("'deadline_ms' must be milliseconds since the epoch")
        super().__init__(subject)
        self.subject = check_text(subject, "subject")
        self.deadline_ms = deadline_ms


class Question(Defer):
    """Raised by a tool that needs a person's words: the answer is the call's result."""


MAX_SUBJECT = 8192
