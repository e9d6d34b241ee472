"""From a dead process to the next model request: resuming 1,000 rounds, beside plain SQLite reading their rows.

    python benchmarks/resume.py [--rounds 1000] [--repeat 5]

Both sides are fresh processes; CPU seconds of the part that is named, medians of pairs.
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


def resume(folder: Path) -> None:
    """Open, resume, and print the CPU seconds until the model is asked."""
    import work

    from thence import Agent, Request, ScriptedModel
    from thence.testing import ScriptedReply, reply

    start = time.process_time()

    def answer(request: Request) -> ScriptedReply:
        print(time.process_time() - start)
        return reply("done")

    with Agent(folder / DB, model=ScriptedModel([answer]), tools=[work.look]) as agent:
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
    parser.add_argument("--part", choices=("die", "resume", "read"))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.part == "die":
        return die(options.folder, options.rounds)
    if options.part is not None:
        return resume(options.folder) if options.part == "resume" else read(options.folder)
    dead = Path(tempfile.mkdtemp(prefix="bench-resume-"))
    _part("die", dead, options.rounds)
    pairs: list[tuple[float, float]] = []
    for _ in range(options.repeat):
        copy = Path(tempfile.mkdtemp(prefix="bench-resume-")) / "copy"
        shutil.copytree(dead, copy)
        pairs.append((_part("resume", copy, 0), _part("read", copy, 0)))
    ours, plain = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"resume {ours * 1000:.0f} ms of CPU, plain read {plain * 1000:.0f} ms, ratio {ratio:.1f}")
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
