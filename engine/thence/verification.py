"""How a session verifies what a turn changed: its options, and what a host's verifier is given and gives (§2, §5).

Values and their validation only; `host.verifying` runs commands and verifiers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from .canonical import check_text
from .errors import SessionConfiguration
from .limits import check_count

GateChoice: TypeAlias = "Literal['auto'] | bool"
Command: TypeAlias = "str | list[str]"
"""A command line for the shell, or a program and its arguments."""

VERIFY_TIMEOUT_MS = 600_000
MAX_COMMANDS = 100

DEFAULTS: Mapping[str, Any] = {
    "completion_gate": "auto",
    "verify_commands": (),
    "verify_timeout_ms": VERIFY_TIMEOUT_MS,
}
"""Options of the completion gate that are stored with the session, and what they are when unset."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class VerificationContext:
    """What a verifier is told of the turn that it judges.

    Attributes:
        session_id: the session.
        run_id: the run; another one when the verification is made again on resume.
        digest: names the turn's workspace changes; it moves with each further change.
        workspace: absolute path of the session's folder.
        text: the model's last answer. It proves nothing.
        tags: the four identity tags of §3, read-only; absent ones are None.
        is_cancelled: cheap, callable from any thread. Default: never cancelled.
    """

    session_id: str
    run_id: str
    digest: str
    workspace: Path
    text: str = ""
    tags: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    is_cancelled: Callable[[], bool] = field(default=_never, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", MappingProxyType(dict(self.tags)))

    @property
    def cancelled(self) -> bool:
        """True once the run is to stop, or the verifier has passed its time limit: nobody waits for it any more."""
        return self.is_cancelled()


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What a verifier may return when it has more to say than True or False.

    Attributes:
        passed: whether the changes are good.
        report: whatever explains it, kept in the log: text, or anything that has a JSON form.
    """

    passed: bool
    report: object = None


Verdict: TypeAlias = bool | VerificationReport
Verifier: TypeAlias = Callable[[VerificationContext], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a run verifies with: commands in the workspace, then the host's verifier; each under the time limit."""

    commands: tuple[Command, ...] = ()
    timeout_ms: int = VERIFY_TIMEOUT_MS
    verifier: Verifier | None = None

    @property
    def exists(self) -> bool:
        """Whether there is anything to verify with."""
        return bool(self.commands) or self.verifier is not None


NOTHING = Verification()


def verification_of(shaping: Mapping[str, Any], verifier: Verifier | None) -> Verification:
    """What a run verifies with, from the options of its session."""
    commands = tuple(shaping.get("verify_commands", ()))
    return Verification(commands, shaping.get("verify_timeout_ms", VERIFY_TIMEOUT_MS), verifier)


def is_gated(shaping: Mapping[str, Any], verification: Verification) -> bool:
    """Whether the completion gate is on: as the host chose, else when there is something to verify with."""
    choice: GateChoice = shaping.get("completion_gate", "auto")
    return verification.exists if choice == "auto" else bool(choice)


def check_option(name: str, value: object) -> GateChoice | list[Command] | int:
    """Return the value of one of :data:`DEFAULTS` as it is stored, if it is legal.

    Raises:
        SessionConfiguration: a value that is refused.
        TypeError: another type.
    """
    if name == "verify_timeout_ms":
        return check_count(name, value)
    if name == "verify_commands":
        return _check_commands(value)
    if isinstance(value, bool):
        return value
    if value == "auto":
        return "auto"
    raise SessionConfiguration(name, "must be 'auto', True or False")


def check_verifier(value: object) -> Verifier | None:
    """Return the verifier. Raises TypeError for what cannot be called."""
    if value is not None and not callable(value):
        raise TypeError(f"'verifier' must be callable, not {type(value).__name__}")
    return cast("Verifier | None", value)


def _check_commands(value: object) -> list[Command]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TypeError(f"'verify_commands' must be a list of commands, not {type(value).__name__}")
    given: Sequence[object] = value  # pyright: ignore[reportUnknownVariableType]
    if len(given) > MAX_COMMANDS:
        raise SessionConfiguration("verify_commands", f"must be at most {MAX_COMMANDS} commands")
    return [_check_command(command) for command in given]


def _check_command(command: object) -> Command:
    if isinstance(command, str):
        return _check_word(command, blank="must not hold an empty command")
    if isinstance(command, bytes) or not isinstance(command, Sequence):
        raise TypeError(
            f"'verify_commands' must hold command lines or lists of arguments, not {type(command).__name__}"
        )
    words: Sequence[object] = command  # pyright: ignore[reportUnknownVariableType]
    if not words:
        raise SessionConfiguration("verify_commands", "must not hold an empty command")
    first, *others = words
    program = _check_word(first, blank="must not hold a command without a program")
    return [program, *(_check_word(word) for word in others)]


def _check_word(word: object, blank: str = "") -> str:
    if not isinstance(word, str):
        raise TypeError(f"'verify_commands' must be made of text, not {type(word).__name__}")
    if blank and not word.strip():
        raise SessionConfiguration("verify_commands", blank)
    if "\0" in word:
        raise SessionConfiguration("verify_commands", "must not contain NUL characters")
    try:
        return check_text(word, "verify_commands")
    except ValueError as error:
        raise SessionConfiguration("verify_commands", str(error)) from None
