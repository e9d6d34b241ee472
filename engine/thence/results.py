"""What ``session.send`` and ``agent.passivate`` return (§1, §8)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from .canonical import Json
from .chat import Usage
from .compaction import Compaction
from .endings import Outcome
from .waits import Wait


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of one turn.

    Attributes:
        text: the model's last answer.
        run_id: the run, for ``resume_run``, ``run_snapshot`` and ``tail``.
        status: ``completed``, ``cancelled`` or ``parked``; a run that failed or was interrupted raises instead.
        usage: tokens of the whole turn, where providers said them.
        tool_calls_count: calls that were executed, failed ones included and refused ones not.
        waits: what a parked run waits for; answered, it goes on with ``resume_run``.
        replayed: the run had ended before; its recorded outcome is given again and nothing was called.
        output: the answer as a value of the ``output_type`` that this call was given. None without one, and unless the
            run has completed.
        output_json: the same as the JSON that the model said; it stands for ``output`` in :meth:`to_dict`.
    """

    text: str
    run_id: str
    status: str
    usage: Usage
    tool_calls_count: int
    replayed: bool = False
    waits: tuple[Wait, ...] = ()
    output: Any = field(default=None, hash=False)
    output_json: Json = field(default=None, hash=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        found = asdict(replace(self, output=None))
        found["output"] = found.pop("output_json")
        return found


class Reader(Protocol):
    """What makes a value of an answer's text."""

    def read(self, run_id: str, text: str) -> tuple[Any, Json]:
        """The value, and the same as JSON. Raises OutputInvalid."""
        ...


@dataclass(frozen=True, slots=True)
class Passivated:
    """What ``agent.passivate`` came to (§8).

    Attributes:
        file_complete: nobody has the file open any more and its WAL is folded in: the one file may be copied as any
            other. False: copy it with ``VACUUM INTO`` only.
        released: ids of the sessions that were busy and have let go.
        left: ids of the sessions that had not let go in time. This process writes nothing more for them.
    """

    file_complete: bool
    released: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return asdict(self)


def result_of(outcome: Outcome, output: Reader | None = None) -> SendResult:
    """The public value of an outcome that is no error.

    Raises:
        OutputInvalid: the run completed, and ``output`` cannot read its answer.
    """
    value, said = None, None
    if output is not None and outcome.status == "completed" and not outcome.of_earlier:
        value, said = output.read(outcome.run_id, outcome.text)
    return SendResult(
        outcome.text,
        outcome.run_id,
        outcome.status,
        outcome.usage,
        outcome.tool_calls_count,
        outcome.replayed,
        outcome.waits,
        value,
        said,
    )


def compaction_of(outcome: Outcome) -> Compaction:
    """The public value of a compaction's outcome."""
    return outcome.compaction or Compaction(0, 0, "")
