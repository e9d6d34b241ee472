"""A process was killed, and then the -wal lost its end (B14, D5)."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from thence import Agent, ThenceError

from .kit import Judge
from .kit_crew import Worker
from .kit_scenario import Planner, make_tools

CRASHED = """
from thence.testing import ScriptedModel, reply

class Model:
    name = "model"
    def stream(self, request):
        yield Reply("done")

agent = Agent(db, model=Model())
session = agent.session("/nowhere", SessionOptions(session_id="s"))
for _ in range(20):
    session.send("go on")
say(facts=len(session.facts()))
time.sleep(3600)
"""


@pytest.fixture
def crashed(crew: Callable[..., Worker], tmp_path: Path) -> tuple[Path, int]:
    """A file whose process was killed: all of it is in the -wal. And how many facts it holds."""
    worker = crew(CRASHED, "w")
    facts = worker.hear()["facts"]
    worker.kill()
    worker.process.wait()
    assert (tmp_path / "a.db").stat().st_size < 100_000 < (tmp_path / "a.db-wal").stat().st_size
    return tmp_path / "a.db", facts


def facts_after_cut(db: Path, cut: int, folder: Path) -> int | ThenceError:
    """How many facts the library reads when the -wal lacks its last ``cut`` bytes; it must be able to go on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(db, folder / "a.db")
    wal = Path(f"{db}-wal").read_bytes()
    (folder / "a.db-wal").write_bytes(wal[: len(wal) - cut])
    try:
        with Agent(folder / "a.db", model=Planner(), tools=make_tools()) as agent:
            session = agent.resume_session("s")
            facts = len(session.facts())
            session.send(":poke", on_interrupted="settle")
    except ThenceError as error:
        return error
    with Judge(folder / "a.db") as judge:
        assert judge.complaints() == []
    return facts


def test_b14_the_end_of_the_wal_is_gone(crashed: tuple[Path, int], tmp_path: Path) -> None:
    """All facts up to the last whole commit are there. The last turn has three, in two commits."""
    db, facts = crashed
    for cut in (0, 1, 100, 4096, 8192, 20_000):
        found = facts_after_cut(db, cut, tmp_path / "cut")
        assert not isinstance(found, ThenceError), (cut, found)
        assert facts - 6 * (cut > 0) <= found <= facts, cut


@pytest.mark.slow
def test_d5_a_wal_cut_anywhere(crashed: tuple[Path, int], tmp_path: Path, measured: Callable[..., None]) -> None:
    """200 cuts: never more than there was, never out of order, and a longer -wal never gives fewer facts."""
    db, facts = crashed
    size = Path(f"{db}-wal").stat().st_size
    cuts = sorted(random.Random(4).sample(range(1, size), 200))
    counts: list[int] = []
    told: Counter[str] = Counter()
    for cut in cuts:
        found = facts_after_cut(db, cut, tmp_path / "cut")
        if isinstance(found, ThenceError):
            told[found.code] += 1
        else:
            counts.append(found)
    measured(cuts=len(cuts), told=dict(told))
    assert counts == sorted(counts, reverse=True) and counts[0] <= facts
    assert set(told) <= {"SESSION_NOT_FOUND", "FILE_REFUSED", "STORE_ERROR"}
