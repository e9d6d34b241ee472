"""A replay scenario: everything that happens in turns, in either face, and the dump of the file it leaves."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any, Literal

from thence import Agent, AsyncAgent, BudgetExhausted, HostEnvConfig, ModelError, RunFailed, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

MS = 1_700_000_000_000


@tool(effect="read")
def look(n: int) -> dict[str, object]:
    return {"n": n, "tags": {"x", "y", "z"}, "big": 2**70}


@tool
def write(text: str) -> str:
    if text == "fail":
        raise ValueError("no")
    return "written " * 2000 if text == "long" else "written"


class Guard:
    """Denies the ninth request, softly warns at the second."""

    asked = 0

    def check_before_llm(self, session_id: str, tokens: int) -> Any:
        self.asked += 1
        if self.asked == 9:
            return {"decision": "deny", "resource": "tokens", "reason": "cap"}
        return {"decision": "soft", "resource": "tokens", "consumed": 1, "limit": 2} if self.asked == 2 else None


def script() -> list[Any]:
    """Rounds, refusals, broken arguments, failures, a continuation, a retry and a denial."""
    usage = {"prompt_tokens": 5, "completion_tokens": 6}
    return [
        reply(
            "one", calls=[call("look", {"n": 1}), call("look", {"n": 2}), call("write", {"text": "é😀"})], usage=usage
        ),
        reply(calls=[call("write", "{broken"), call("nope"), call("write", {"text": "fail"})]),
        reply("half", stop_reason="length", deltas=["ha", "lf"]),
        reply("whole", usage=usage),
        ModelError("http_503", "503", retryable=True),
        reply(calls=[call("write", {"text": "long"})] * 5),
        reply("x" * 100_000),
        *[reply("short")] * 9,
    ]


Where = Literal["agent", "session"]
"""Who is given the environment: the agent, as its sessions' default, or the session's options, as in the seeds."""


def environment(where: Where, asked: Where) -> HostEnvConfig | None:
    return HostEnvConfig("replay", MS) if where == asked else None


def options(where: Where) -> SessionOptions:
    return SessionOptions(
        max_parallel_tools=1, host_env=environment(where, "session"), tenant_id="acme", retry_base_ms=0,
        max_tool_output_bytes=2000, budget_guard=Guard(), max_tool_rounds=4,
        retention_limits={"max_runs_retained": 3, "max_events_per_run": 12, "max_trace_events": 7},
    )  # fmt: skip


PROMPTS = ["first", "second", "third", "fourth", "fifth"]


def play(path: Path, where: Where) -> None:
    """The whole scenario in the blocking face."""
    with Agent(
        path,
        model=ScriptedModel(script()),
        tools=[look, write],
        instructions="Be brief.",
        host_env=environment(where, "agent"),
    ) as agent:
        session = agent.session("/w", options(where))
        for prompt in PROMPTS:
            try:
                session.send(prompt)
            except (RunFailed, BudgetExhausted):
                continue
        session.emit({"type": "passivation_requested", "payload": {"reason": "drain"}})
        session.close()


async def aplay(path: Path, where: Where) -> None:
    """The same in the async face."""
    async with AsyncAgent(
        path,
        model=ScriptedModel(script()),
        tools=[look, write],
        instructions="Be brief.",
        host_env=environment(where, "agent"),
    ) as agent:
        session = await agent.session("/w", options(where))
        for prompt in PROMPTS:
            try:
                await session.send(prompt)
            except (RunFailed, BudgetExhausted):
                continue
        await session.emit({"type": "passivation_requested", "payload": {"reason": "drain"}})
        await session.close()


def dump(path: Path) -> str:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return "\n".join(db.iterdump())
    finally:
        db.close()


def digest(path: Path) -> str:
    return hashlib.sha256(dump(path).encode()).hexdigest()
