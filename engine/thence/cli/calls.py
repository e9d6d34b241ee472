"""Calls of a turn that was broken off: which have a result, which had started, which had not (§7, §13)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .. import inflight
from ..errors import ThenceError
from ..facts import Returned, Text
from ..reads import SessionRow
from .configured import recorded, tool_names
from .looking import Look, RawFact
from .summary import calls_of

CallState = Literal["landed", "started", "not started"]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A recorded call whose result is no fact yet; ``result`` is the text of one that has landed."""

    key: str
    tool: str
    arguments: Any
    state: CallState
    result: str = ""


class ForeignTools(ThenceError):
    """Open calls are to tools that this command does not have: going on here would record them as failed."""

    code = "FOREIGN_TOOLS"

    def __init__(self, session_id: str, tools: Iterable[str]) -> None:
        super().__init__(
            f"session '{session_id}' has open calls of tools that are not here ({', '.join(sorted(tools))}): "
            f"resume it from the program that has them"
        )
        self.session_id = session_id


def open_calls(look: Look, session: SessionRow) -> list[OpenCall]:
    """Calls of the session's last answer that have no result in the log, in call order."""
    answer: RawFact | None = None
    settled: set[str] = set()
    for fact in look.facts(session):
        if fact.kind == "model.turn":
            answer = fact
        elif fact.kind == "turn.ended":
            answer = None
        elif fact.kind in ("tool.result", "budget.denied"):
            settled.add(str(fact.value.get("call_key")))
    if answer is None:
        return []
    begun = {call.call_key: call for call in look.ask(inflight.calls_in_flight(session.session_pk))}
    found: list[OpenCall] = []
    for position, (name, arguments) in enumerate(calls_of(answer.value)):
        key = f"{answer.key}-c{position}"
        if key in settled:
            continue
        call = begun.get(key)
        if call is None:
            found.append(OpenCall(key, name, arguments, "not started"))
        elif call.result is None:
            found.append(OpenCall(key, name, arguments, "started"))
        else:
            found.append(OpenCall(key, name, arguments, "landed", "".join(_texts(call.result))))
    return found


def _texts(result: Returned) -> Iterable[str]:
    return (part.text for part in result.parts if isinstance(part, Text))


def check_tools(look: Look, session: SessionRow, known: Iterable[str]) -> None:
    """See to it that every open call can be made here. A tool that nobody ever offered is the model's mistake.

    Raises:
        ForeignTools: one cannot.
    """
    needed = {call.tool for call in open_calls(look, session) if call.state != "landed"} - set(known)
    had = recorded(look, session) if needed else None
    foreign = needed & set(tool_names(look, session, had.tools_sha256)) if had else set[str]()
    if foreign:
        raise ForeignTools(session.session_id, foreign)
