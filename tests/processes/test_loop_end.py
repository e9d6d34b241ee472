"""What becomes of a run whose event loop ends around it (§1, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thence import AsyncAgent, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from .kit import Plain


@tool
def put(n: int) -> str:
    return "put"


def test_the_end_of_a_loop_lets_the_sessions_of_its_runs_go(db: Path, plain: Callable[[], Plain]) -> None:
    """`asyncio.run` cancels what is left, all at once: the commit on its way, and the run that waits for it."""

    async def main() -> AsyncAgent:
        agent = AsyncAgent(db, model=ScriptedModel([reply("", [call("put", {"n": 1})]), reply("Done.")]), tools=[put])
        session = await agent.session("/w", SessionOptions(session_id="s"))
        store: Any = agent._core.store
        store._writer.lock.acquire()
        asyncio.get_running_loop().call_later(0.2, store._writer.lock.release)
        begun = asyncio.create_task(session.send("Go."))
        await asyncio.sleep(0.05)
        assert not begun.done()
        return agent

    agent = asyncio.run(main())
    assert plain().one("SELECT owner FROM session") is None
    asyncio.run(agent.close())
