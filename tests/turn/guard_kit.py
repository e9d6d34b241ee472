"""What the guard tests share."""

from __future__ import annotations

from typing import Any

from ..kit import Both

DENY = {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
SOFT = {"decision": "soft", "resource": "tokens", "consumed": 80, "limit": 100.5}


class Guard:
    """Answers with what it was made with; remembers what it was asked."""

    def __init__(self, llm: Any = None, tool: Any = None, record: Any = None) -> None:
        self.llm, self.tool, self.record = llm, tool, record
        self.asked: list[tuple[Any, ...]] = []

    def check_before_llm(self, session_id, tokens):
        self.asked.append(("llm", session_id, tokens))
        return self.llm() if callable(self.llm) else self.llm

    def check_before_tool(self, session_id, name):
        self.asked.append(("tool", session_id, name))
        return self.tool() if callable(self.tool) else self.tool

    def record_after_llm(self, session_id, usage):
        self.asked.append(("record", session_id, usage))
        if callable(self.record):
            self.record()


def act(n: int = 0) -> int:
    return n


async def hits(session: Both) -> list[dict[str, Any]]:
    [run] = (await session.runs())[-1:]
    return [dict(e.payload) for e in await session.run_events(run.id) if e.type == "budget_threshold_hit"]
