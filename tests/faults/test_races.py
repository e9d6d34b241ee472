"""Many who want the same: interrupted runs that everybody resumes, a session that everybody uses (C5, §7, §8)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from .kit import Judge
from .kit_crew import Worker

Measured = Callable[..., None]
Crew = Callable[..., Worker]

INTERRUPTED = """
effects = os.open(args[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
waiting = threading.Semaphore(0)

@tool(effect="idempotent")
def poke(n: int, context: ToolContext) -> str:
    "Change something."
    waiting.release()
    time.sleep(3600)

class Model:
    name = "model"
    def stream(self, request):
        if request.messages[-1].text == "in the model":
            waiting.release()
            time.sleep(3600)
        yield Reply("", (RawCall("c", "poke", '{"n": 1}'),))

agent = Agent(db, model=Model(), tools=[poke], durability="process")
for number in range(int(args[1])):
    session = agent.session("/nowhere", SessionOptions(session_id=f"s{number}"))
    session.spawn_run_with_id(f"r{number}", "in a tool" if number % 2 else "in the model")
for _ in range(int(args[1])):
    waiting.acquire()
say(ready=True)
hear()
"""

RESUMER = """
effects = os.open(args[0], os.O_WRONLY | os.O_APPEND)

@tool(effect="idempotent")
def poke(n: int, context: ToolContext) -> str:
    "Change something."
    os.write(effects, f"{context.session_id} {me}\\n".encode())
    time.sleep(0.002)
    return "done"

class Model:
    name = "model"
    def stream(self, request):
        if request.messages[-1].role == "tool":
            yield Reply("all done")
        else:
            yield Reply("", (RawCall("c", "poke", '{"n": 1}'),))

numbers = list(range(int(args[1])))
random.Random(args[2]).shuffle(numbers)
with Agent(db, model=Model(), tools=[poke]) as agent:
    sessions = {number: agent.resume_session(f"s{number}") for number in numbers}
    say(ready=True)
    hear()
    outcomes = {}
    for number in numbers:
        try:
            result = sessions[number].resume_run(f"r{number}")
            outcomes[number] = "replayed" if result.replayed else f"won: {result.text}"
        except SessionBusy:
            outcomes[number] = "busy"
        except Exception as error:
            outcomes[number] = repr(error)
    say(outcomes=outcomes)
"""


def everybody_resumes(crew: Crew, tmp_path: Path, runs: int, measured: Measured) -> None:
    """``runs`` interrupted runs; four processes each resume them all, half of them in the same order."""
    db, effects = tmp_path / "a.db", tmp_path / "effects"
    dying = crew(INTERRUPTED, "dying", effects, runs)
    dying.hear()
    dying.kill()
    dying.process.wait()
    assert effects.read_text() == ""
    workers = [crew(RESUMER, f"w{number}", effects, runs, number // 2) for number in range(4)]
    for worker in workers:
        worker.hear()
    began = time.monotonic()
    for worker in workers:
        worker.tell()
    outcomes = [worker.hear()["outcomes"] for worker in workers]
    took = time.monotonic() - began
    counts = Counter(word for one in outcomes for word in one.values())
    ran = Counter(line.split()[0] for line in effects.read_text().splitlines())
    measured(runs=runs, seconds=round(took, 2), **{word.split(":")[0]: count for word, count in counts.items()})
    assert set(counts) <= {"won: all done", "busy", "replayed"}, counts
    winners = Counter(number for one in outcomes for number, word in one.items() if word.startswith("won"))
    assert winners == Counter(map(str, range(runs)))
    assert ran == Counter(f"s{number}" for number in range(runs)), "executions that are not exactly one"
    with Judge(db) as judge:
        assert judge.complaints() == []
        assert judge.rows("SELECT count(*) FROM runs WHERE resumed_from IS NOT NULL") == [(runs,)]


def test_c5_every_interrupted_run_is_resumed_once(crew: Crew, tmp_path: Path, measured: Measured) -> None:
    everybody_resumes(crew, tmp_path, 40, measured)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c5_two_hundred_interrupted_runs(crew: Crew, tmp_path: Path, measured: Measured) -> None:
    everybody_resumes(crew, tmp_path, 200, measured)


CONTENDER = """
class Model:
    name = "model"
    def stream(self, request):
        say(is_="in")
        hear()
        yield Reply("done")

with Agent(db, model=Model()) as agent:
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    say(is_="ready")
    while hear() == "go":
        try:
            say(is_="won", text=session.send("go on").text)
        except SessionBusy as busy:
            say(is_="busy", text=str(busy))
        except Exception as error:
            say(is_="failed", text=repr(error))
"""


def one_winner(workers: Sequence[Worker], rng: random.Random) -> None:
    """All begin at once. One gets in and stays there until all others were told that the session is busy."""
    order = list(workers)
    rng.shuffle(order)
    for worker in order:
        worker.tell("go")
    said = {worker: worker.hear() for worker in workers}
    words = Counter(one["is_"] for one in said.values())
    assert words == {"in": 1, "busy": len(workers) - 1}, said.values()
    for one in said.values():
        assert one["is_"] == "in" or one["text"].startswith("Session 's' already has an active operation"), one
    winner = next(worker for worker, one in said.items() if one["is_"] == "in")
    winner.tell("answer")
    assert winner.hear() == {"is_": "won", "text": "done"}


def everybody_sends(crew: Crew, tmp_path: Path, rounds: int) -> None:
    """Eight processes on one session."""
    rng = random.Random(1)
    workers = [crew(CONTENDER, f"w{number}") for number in range(8)]
    for worker in workers:
        assert worker.hear() == {"is_": "ready"}
    for _ in range(rounds):
        one_winner(workers, rng)
    for worker in workers:
        worker.tell("stop")
        assert worker.process.wait(30) == 0
    with Judge(tmp_path / "a.db") as judge:
        assert judge.complaints() == []
        assert judge.rows("SELECT facts FROM sessions") == [(1 + 3 * rounds,)]


def test_eight_processes_on_one_session(crew: Crew, tmp_path: Path) -> None:
    everybody_sends(crew, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_on_one_session_two_hundred_times(crew: Crew, tmp_path: Path) -> None:
    everybody_sends(crew, tmp_path, 200)
