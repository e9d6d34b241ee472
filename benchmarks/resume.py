"""From a dead process to the next model request: resuming 1,000 rounds, beside plain SQLite reading their rows.

The transcript decodes a message when somebody looks at it, so the cost of looking at every one of them is told too, for
a model that does; and, for the imports, that of a tool whose parameters need pydantic.

    python benchmarks/resume.py [--rounds 1000] [--repeat 5]

Both sides are fresh processes on a copy each of the file as the dead process left it; CPU seconds of the part that is
named, modules of thence and sqlite3 that are imported with them not counted, medians of pairs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine")]

DB = "resume.db"
PARTS = {
    "read": "plain read of the same rows",
    "resume": "resume, until the model is asked",
    "look": "the same, and every message of the request was looked at",
    "pydantic": "resume with a tool that needs pydantic to describe it",
}


def die(folder: Path, rounds: int) -> None:
    """Run ``rounds`` rounds and be killed in the request after them."""
    import itertools

    import work

    from thence import Agent, Reply, Request, ScriptedModel, SessionOptions

    script = work.Rounds(rounds)

    def answer(request: Request) -> Reply:
        if script.asked == rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        return script(request)

    options = SessionOptions(session_id="s", max_tool_rounds=rounds + 1)
    with Agent(folder / DB, model=ScriptedModel(itertools.repeat(answer)), tools=[work.look]) as agent:
        agent.session(folder, options).send("Go.")


def listed(names: list[str]) -> str:
    """A tool whose parameters pydantic must describe."""
    return ", ".join(names)


def resume(folder: Path, part: str) -> None:
    """Open, resume, and print the CPU seconds until the model is asked, or has read all that it is asked with."""
    import work

    from thence import Agent, Request, ScriptedModel
    from thence.testing import ScriptedReply, reply

    start = time.process_time()

    def answer(request: Request) -> ScriptedReply:
        if part == "look":
            size = sum(len(message.text) for message in request.messages)
            if size < 1000:
                raise SystemExit("nothing was read")
        print(time.process_time() - start)
        return reply("done")

    tools = [work.look, listed] if part == "pydantic" else [work.look]
    with Agent(folder / DB, model=ScriptedModel([answer]), tools=tools) as agent:
        agent.resume_session("s").resume_run("the last")


def read(folder: Path) -> None:
    """Read the same rows with plain sqlite3 and print the CPU seconds."""
    start = time.process_time()
    db = sqlite3.connect(folder / DB)
    rows = db.execute("SELECT id, kind, key, cause, prev_hash, hash, payload FROM fact ORDER BY id").fetchall()
    print(time.process_time() - start)
    if len(rows) < 10:
        raise SystemExit("nothing was read")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--part", choices=("die", *PARTS))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.part == "die":
        return die(options.folder, options.rounds)
    if options.part is not None:
        return read(options.folder) if options.part == "read" else resume(options.folder, options.part)
    dead = Path(tempfile.mkdtemp(prefix="bench-resume-"))
    _part("die", dead, options.rounds)
    took: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(options.repeat):
        for part, values in took.items():
            copy = Path(tempfile.mkdtemp(prefix="bench-resume-")) / "copy"
            shutil.copytree(dead, copy)
            values.append(_part(part, copy, 0))
            shutil.rmtree(copy.parent)
    shutil.rmtree(dead)
    for part, values in took.items():
        ratio = statistics.median(a / b for a, b in zip(values, took["read"], strict=True))
        print(f"{PARTS[part]:58} {statistics.median(values) * 1000:5.0f} ms of CPU, {ratio:5.1f} times")
    return None


def _part(part: str, folder: Path, rounds: int) -> float:
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder), "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if part == "die":
        return 0.0
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[0])


if __name__ == "__main__":
    main()
