"""A file with parked runs for the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thence import Agent, PermissionPolicy, Question, SessionOptions, tool

from ..resume.kit import Again, calls, done
from .kit import Effects, Plain, asks


class File:
    """A closed file in a folder, with sessions that are parked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.effects = Effects()
        self.runs: dict[str, str] = {}

    def park(self, session_id: str = "s", *said: str, policy: PermissionPolicy | None = None) -> str:
        """Park one run; returns its id."""
        options = SessionOptions(session_id=session_id)
        if policy is not None or not said:
            options.permission_policy = policy or asks("put")

        @tool
        def ask(n: int) -> str:
            raise Question(f"Which one, {n}?")

        model = Again([calls(*(said or ("put:1",))), done()])
        with Agent(self.path, model=model, tools=[*self.effects.tools(), ask], durability="process") as agent:
            result = agent.session("/w", options).send("Go.")
        assert result.status == "parked"
        self.runs[session_id] = result.run_id
        return result.run_id

    def go_on(self, session_id: str = "s") -> Any:
        """What the host does when everything is answered."""
        model = Again([calls("put:1"), done()])
        with Agent(self.path, model=model, tools=self.effects.tools(), durability="process") as agent:
            session = agent.resume_session(session_id, SessionOptions(permission_policy=asks("put")))
            return session.resume_run(self.runs[session_id])

    def answers(self) -> list[Any]:
        with Plain(self.path) as plain:
            return plain.rows(
                "SELECT session_id, wait_id, answer, answered_by FROM waits WHERE answer IS NOT NULL ORDER BY 1, 2"
            )
