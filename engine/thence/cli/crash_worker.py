"""One process of ``demo --crash``: ``python -m thence.cli.crash_worker ORDER`` (§13).

It sends the demo's prompt, or resumes the run of another process that was killed, and prints what came of it as a line
of JSON. Told to, it kills itself with SIGKILL inside its second tool call.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from ..agent import Agent
from ..chat import Delta, Reply, Request, SyncModel, ToolMessage
from ..models.resolve import resolve_model
from ..models.scripted import Answer, ScriptedModel, call, reply
from ..session_options import SessionOptions

PROMPT = "Book the rent (900), bread (4) and flowers (30)."
ENTRIES = (("rent", 900), ("bread", 4), ("flowers", 30))
DIES_IN = "bread"


@dataclass(frozen=True, slots=True)
class Order:
    """What the process shall do.

    Attributes:
        resumes: the run to go on with; None sends the prompt.
        dies: kill this process inside the call that books :data:`DIES_IN`.
    """

    db: str
    session_id: str
    ledger: str
    model: str
    resumes: str | None = None
    dies: bool = False

    def to_json(self) -> str:
        """The order as an argument of the process."""
        return json.dumps(asdict(self))


class Clerk:
    """Makes three calls, as a script does; ``writer``, or the script, makes words of their results."""

    def __init__(self, writer: SyncModel | None) -> None:
        self.name = "scripted" if writer is None else writer.name
        self._writer = writer

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """The calls, or the answer once there are results. A function of the request alone."""
        if not any(isinstance(message, ToolMessage) for message in request.messages):
            calls = [call("book", {"entry": entry, "euros": euros}) for entry, euros in ENTRIES]
            return ScriptedModel([reply(calls=calls)], self.name).stream(request)
        if self._writer is not None:
            return self._writer.stream(request)
        return ScriptedModel([_sum_up], self.name).stream(request)

    def close(self) -> None:
        """As the model inside, if it can be closed."""
        closing = getattr(self._writer, "close", None)
        if closing is not None:
            closing()


def _sum_up(request: Request) -> Answer:
    results = [message.text for message in request.messages if isinstance(message, ToolMessage)]
    total = sum(int(number) for result in results for number in re.findall(r"\d+", result))
    return reply(f"(script) {len(results)} entries are booked, {total} euros in all.")


def booking(ledger: Path, *, dies: bool) -> Callable[[str, int], str]:
    """The tool: a line in the ledger when a call begins, another when its work is done."""

    def book(entry: str, euros: int) -> str:
        """Put an expense in the ledger."""
        _append(ledger, f"process {os.getpid()} begins {entry}")
        if dies and entry == DIES_IN:
            os.kill(os.getpid(), signal.SIGKILL)
        _append(ledger, f"process {os.getpid()} booked {entry} {euros}")
        return f"booked {entry} for {euros} euros"

    return book


def _append(ledger: Path, line: str) -> None:
    with ledger.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def main() -> None:
    """Do what the order says."""
    order = Order(**json.loads(sys.argv[1]))
    ledger = Path(order.ledger)
    model = Clerk(None if order.model == "scripted" else cast("SyncModel", resolve_model(order.model)))
    with Agent(order.db, model=model, tools=[booking(ledger, dies=order.dies)]) as agent:
        if order.resumes is None:
            session = agent.session(ledger.parent, SessionOptions(session_id=order.session_id))
            result = session.send(PROMPT)
        else:
            session = agent.resume_session(order.session_id)
            result = session.resume_run(order.resumes)
        facts = session.facts()
    model.close()
    told = {"pid": os.getpid(), "run_id": result.run_id, "text": result.text, "facts": len(facts)}
    sys.stdout.write(json.dumps({**told, "head": facts[-1].hash}) + "\n")


if __name__ == "__main__":
    main()
