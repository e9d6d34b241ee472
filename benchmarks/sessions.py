"""Many async sessions on one file at full durability: rounds a second for 1, 8 and 64, and what the event loop feels.

python benchmarks/sessions.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine")]

import work  # noqa: E402

from thence import AsyncAgent, ScriptedModel, SessionOptions  # noqa: E402


async def measure(sessions: int, rounds: int, name: str) -> tuple[float, list[float]]:
    """(rounds a second, event-loop stalls in milliseconds) of ``sessions`` turns at once."""
    options = SessionOptions(max_tool_rounds=rounds + 1)
    folder = Path(tempfile.mkdtemp(prefix="bench-sessions-"))
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append((time.perf_counter() - before - 0.001) * 1000)

    async def one(agent: AsyncAgent) -> None:
        own = SessionOptions(**options.given())
        own.model = ScriptedModel(itertools.repeat(work.Rounds(rounds, name)))
        session = await agent.session(folder, own)
        await session.send(work.cut(1, 100))

    async with AsyncAgent(folder / "many.db", tools=[work.look, work.act]) as agent:
        await one(agent)
        watcher = asyncio.create_task(watch())
        start = time.perf_counter()
        await asyncio.gather(*(one(agent) for _ in range(sessions)))
        took = time.perf_counter() - start
        watcher.cancel()
    return sessions * rounds / took, sorted(stalls)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    for name in ("act", "look"):
        print(f"{'undeclared tool (2 syncs a round)' if name == 'act' else 'read tool (no sync of its own)'}:")
        for sessions in (1, 8, 64):
            rate, stalls = asyncio.run(measure(sessions, options.rounds, name))
            p99 = stalls[int(len(stalls) * 0.99)] if stalls else 0.0
            print(
                f"  {sessions:3} sessions: {rate:6.0f} rounds/s, loop stall p99 {p99:.2f} ms, max {stalls[-1]:.2f} ms"
            )


if __name__ == "__main__":
    main()
