"""What a budget guard costs, and what a hung one holds up (contract §6).

    python benchmarks/guards.py [--checks 20000]

Times of busy machines are noisy: shown are medians, and the worst where a promise is about the worst.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINE = str(Path(__file__).parents[1] / "engine")
sys.path[:0] = [ENGINE]

from thence.effects import AskGuard, Flow  # noqa: E402
from thence.host.drive import AsyncMailbox, SyncMailbox, Take, adrive, drive  # noqa: E402
from thence.host.env import build_env  # noqa: E402
from thence.host.guard import Guarded, ask_guard, stuck_threads  # noqa: E402
from thence.host.guard_process import ProcessGuard  # noqa: E402
from thence.host.plain_world import PlainWorld  # noqa: E402
from thence.host.workers import Workers  # noqa: E402

WORKERS = Workers("bench")
WORLD = PlainWorld(build_env(None))
STORE: Any = None


class Calls:
    """A guard whose one method is ``function``."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def check_before_tool(self, session_id: str, tool_name: str) -> Any:
        return self.function()


def take(until: float | None) -> Flow[Any]:
    return (yield Take(None if until is None else max(0.0, until - time.monotonic())))


def flow(guard: object, limit_ms: int, post: Callable[[Any], None]) -> Flow[Any]:
    effect = AskGuard("check_before_tool", "bash")
    return ask_guard(Guarded(guard, limit_ms), effect, "s", post, take, bool)


def decide(guard: object, limit_ms: int) -> tuple[Any, float]:
    """One decision, and how many milliseconds it took."""
    mailbox = SyncMailbox()
    began = time.perf_counter()
    decision = drive(flow(guard, limit_ms, mailbox.post), STORE, WORLD, mailbox, WORKERS)
    return decision, (time.perf_counter() - began) * 1000


async def adecide(guard: object, limit_ms: int) -> Any:
    mailbox = AsyncMailbox.here()
    return await adrive(flow(guard, limit_ms, mailbox.post), STORE, WORLD, mailbox, WORKERS)


def show(name: str, value: str) -> None:
    print(f"{name:58} {value}")


def allowing(checks: int) -> None:
    def each(run: Callable[[], Any], count: int) -> str:
        wall: list[float] = []
        cpu = time.process_time()
        for _ in range(count):
            began = time.perf_counter()
            run()
            wall.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        return f"{statistics.median(wall) * 1e6:6.0f} µs (median), {cpu / count * 1e6:6.0f} µs of CPU"

    nothing = Calls(lambda: None)
    show("an allowing guard, blocking face", each(lambda: decide(nothing, 5000), checks))
    show("a guard without that method", each(lambda: decide(object(), 5000), checks))

    async def several() -> str:
        wall: list[float] = []
        for _ in range(checks):
            began = time.perf_counter()
            await adecide(nothing, 5000)
            wall.append(time.perf_counter() - began)
        return f"{statistics.median(wall) * 1e6:6.0f} µs (median)"

    show("an allowing guard, async face", asyncio.run(several()))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bench_guard.py").write_text(
            "class G:\n    def check_before_tool(self, session_id, tool_name): return None\n"
        )
        sys.path.insert(0, folder)
        guard = ProcessGuard("bench_guard:G")
        _, first = decide(guard, 60_000)
        show("a guard in a process of its own, the first check", f"{first:6.0f} ms")
        show("a guard in a process of its own, each further one", each(lambda: decide(guard, 5000), checks // 10))
        guard.close()


def hanging() -> None:
    slow = [Calls(lambda: time.sleep(0.2)) for _ in range(100)]
    took = [decide(guard, 50) for guard in slow]
    denied = sum(decision.resource == "budget_guard_timeout" for decision, _ in took)
    worst, median = max(ms for _, ms in took), statistics.median(ms for _, ms in took)
    show("100 checks that hang, limit 50 ms: denied", f"{denied} of 100; worst {worst:.1f} ms, median {median:.1f} ms")
    late = 0
    for _ in range(1000):
        decision, _ = decide(Calls(lambda: time.sleep(0.004)), 2)
        late += decision.decision == "allow"
    show("allows that come late (limit 2 ms, answer after 4 ms)", f"{late} of 1000 count")
    settle()


def others() -> None:
    gate = threading.Event()
    for _ in range(9):
        hung = Calls(lambda: gate.wait(60))
        for _ in range(7):
            decide(hung, 5)
    fine = [decide(Calls(lambda: None), 5000) for _ in range(200)]
    worst = max(ms for _, ms in fine)
    allowed = sum(decision.decision == "allow" for decision, _ in fine)
    show(f"beside {stuck_threads()} hung threads: allowed", f"{allowed} of 200; worst {worst:.2f} ms")
    decide(Calls(lambda: gate.wait(60)), 5)
    full = [decide(Calls(lambda: None), 5000) for _ in range(200)]
    worst = max(ms for _, ms in full)
    show(f"beside {stuck_threads()} hung threads: denied at once", f"worst {worst:.2f} ms")
    gate.set()
    settle()


def stalls() -> None:
    async def watch(work: Callable[[], Any] | None) -> tuple[float, float]:
        lateness: list[float] = []
        busy = None if work is None else asyncio.ensure_future(work())
        end = time.monotonic() + 3
        while time.monotonic() < end:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            lateness.append((time.perf_counter() - before - 0.001) * 1000)
        if busy is not None:
            await busy
        lateness.sort()
        return lateness[int(len(lateness) * 0.99)], lateness[-1]

    async def work() -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            await asyncio.gather(*(adecide(Calls(lambda: time.sleep(0.06)), 20) for _ in range(4)))

    idle, busy = asyncio.run(watch(None)), asyncio.run(watch(work))
    show("stall of the event loop with nothing to do", f"p99 {idle[0]:.2f} ms, worst {idle[1]:.2f} ms")
    show("stall of the event loop beside hung guards", f"p99 {busy[0]:.2f} ms, worst {busy[1]:.2f} ms")
    settle()


LEAVING = """
import sys, time
sys.path[:0] = sys.argv[1:2]
from thence import Agent, BudgetExhausted, ScriptedModel, SessionOptions
class Hung:
    def check_before_llm(self, session_id, estimated_tokens): time.sleep(600)
agent = Agent(sys.argv[2] + "/a.db", model=ScriptedModel([]))
for _ in range(8):
    try: agent.session(".", SessionOptions(budget_guard=Hung(), budget_guard_timeout_ms=20)).send("Go.")
    except BudgetExhausted: pass
print(time.time(), flush=True)
"""


def leaving() -> None:
    took: list[float] = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", LEAVING, ENGINE, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took.append(time.time() - float(done.stdout))
    show("exit of a process with 8 hung guards and no close()", f"worst {max(took):.2f} s of 5, code 0")


def settle() -> None:
    while stuck_threads():
        time.sleep(0.01)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=20_000)
    options = parser.parse_args()
    allowing(options.checks)
    hanging()
    others()
    stalls()
    leaving()


if __name__ == "__main__":
    main()
