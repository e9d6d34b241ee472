"""CPU per round at rounds 10, 100 and 1,000, beside plain SQLite doing the same writes; fsyncs per round.

    python benchmarks/rounds.py [--repeat 5] [--rounds 1000]

Ratios within one run are what to trust: the two take turns, and medians are shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine")]

import work  # noqa: E402

POINTS = ((10, 8), (100, 40), (1000, 400))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    ours: dict[str, list[float]] = {}
    floor: dict[str, list[float]] = {}
    for _ in range(options.repeat):
        for name, run, into in (("thence", work.run_thence, ours), ("floor", work.run_floor, floor)):
            folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
            cpu = run(folder, options.rounds)
            shutil.rmtree(folder)
            for at, width in POINTS:
                if at <= options.rounds:
                    into.setdefault(f"at round {at}", []).append(work.per_round(cpu, at, width))
            last = min(options.rounds, len(cpu) - 1)
            into.setdefault("mean of all", []).append(work.mean_per_round(cpu, 1, last))
    print(f"{'CPU microseconds a round':28} {'thence':>8} {'floor':>8} {'ratio':>6}")
    for point in ours:
        pairs = zip(ours[point], floor[point], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{point:28} {statistics.median(ours[point]):8.0f} {statistics.median(floor[point]):8.0f} {ratio:6.2f}")
    first, last = f"at round {POINTS[0][0]}", f"at round {POINTS[-1][0]}"
    if last in ours:
        growth = statistics.median(b / a for a, b in zip(ours[first], ours[last], strict=True))
        print(f"growth from round 10 to 1,000: {growth:.2f}")
    for name in ("look", "act"):
        print(f"fsyncs a round with the {'read' if name == 'look' else 'undeclared'} tool: {_fsyncs(name)}")


def _fsyncs(name: str, rounds: int = 50) -> str:
    if shutil.which("strace") is None:
        return "not measured (no strace)"
    code = (
        "import sys, tempfile, pathlib; sys.path[:0] = sys.argv[2:4]; import work; "
        "work.run_thence(pathlib.Path(tempfile.mkdtemp()), int(sys.argv[1]), sys.argv[4])"
    )
    counts: list[int] = []
    for count in (rounds, 2 * rounds):
        command = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", sys.executable, "-c", code, str(count)]
        done = subprocess.run([*command, *sys.path[:2], name], capture_output=True, text=True, check=True)
        rows = [line.split() for line in done.stderr.splitlines() if line.strip().endswith("sync")]
        counts.append(sum(int(row[3]) for row in rows))
    return f"{(counts[1] - counts[0]) / rounds:.2f}"


if __name__ == "__main__":
    main()
