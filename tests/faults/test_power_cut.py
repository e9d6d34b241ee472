"""The power goes, at any moment: what was acknowledged is there, and every file goes on (§5, §8; P5, P6).

A process is recorded (`record.c`) while it lives `kit_scenario`; `kit_power` builds what a disk may hold after a cut
anywhere in that life; `kit_recovery` says what of the contract the result breaks. Any state can be looked at again:
its model, seed and number are in the complaint.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import kit_scenario
from .kit import compiled, run_child
from .kit_power import MODES, Disk, Model, Step, cuts, read_log
from .kit_recovery import violations

MAX_SHOWN = 4
ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records lives."""

    shim: Path
    folder: Path

    def life(self, face: str, durability: str = "power", laps: int = 1) -> list[Step]:
        """What a process did in its life of ``laps`` rounds of sessions."""
        where = self.folder / f"{face}-{durability}-{laps}"
        if not where.exists():
            (where / "data").mkdir(parents=True)
            marks = str(where / "marks")
            env = {"REC_DIR": str(where / "data"), "REC_LOG": str(where / "log"), "REC_MARK": marks}
            env["LD_PRELOAD"] = str(self.shim)
            life = Path(kit_scenario.__file__)
            done = run_child("", face, where / "data" / "a.db", marks, durability, laps, code_of=life, **env)
            assert done.returncode == 0, done.stderr
        return read_log(where / "log")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    folder = tmp_path_factory.mktemp("recorded")
    return Recorder(compiled("record.c", folder), folder)


class Tally:
    """What was found wrong, and where to find it again."""

    def __init__(self) -> None:
        self.states = 0
        self.broken: Counter[str] = Counter()
        self.shown: list[str] = []

    def count(self, found: list[str], where: str) -> None:
        self.states += 1
        if not found:
            return
        self.broken[found[0].split(":")[0]] += 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(f"{where}: {found[0]}")

    def assert_clean(self) -> None:
        assert not self.broken, f"{dict(self.broken)} of {self.states} states\n" + "\n".join(self.shown)


def judge_cuts(
    steps: list[Step],
    model: Model,
    number: int,
    seed: int,
    folder: Path,
    *,
    folder_syncs: bool = True,
    enough: str = "",
) -> Tally:
    """Build and judge ``number`` states, or as many as it takes to find ``ENOUGH`` of the kind that is ``enough``."""
    tally = Tally()
    for cut in cuts(steps, model, number, seed, folder_syncs=folder_syncs):
        cut.lay_out(folder)
        tally.count(violations(folder, cut.marks), f"{model}, seed {seed}, {cut.mode} after step {cut.step}")
        if tally.broken[enough] >= ENOUGH:
            break
    return tally


Measured = Callable[..., None]


@pytest.mark.parametrize(("face", "model"), [("sync", "strict"), ("async", "ext4")])
def test_p5_nothing_acknowledged_is_lost(
    recorder: Recorder, quick: Path, measured: Measured, face: str, model: Model
) -> None:
    tally = judge_cuts(recorder.life(face), model, 90, 1, quick)
    measured(states=tally.states, broken=dict(tally.broken))
    tally.assert_clean()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", ["strict", "ext4"])
@pytest.mark.parametrize("face", ["sync", "async"])
def test_p5_nothing_acknowledged_is_lost_in_twenty_thousand_states(
    recorder: Recorder, quick: Path, measured: Measured, face: str, model: Model
) -> None:
    """20,000 in all: four lives of 5,000."""
    tally = judge_cuts(recorder.life(face, laps=2), model, 5000, 2, quick)
    measured(states=tally.states, broken=dict(tally.broken))
    tally.assert_clean()


@pytest.mark.parametrize("model", ["strict", "ext4"])
def test_p6_the_first_commit(recorder: Recorder, quick: Path, measured: Measured, model: Model) -> None:
    """Each step from the empty folder to just after the first promise: the file is absent, empty or right."""
    steps = recorder.life("sync")
    first = next(at for at, step in enumerate(steps) if step.op == "a")
    tally = judge_steps(steps[: first + 1], model, quick, every=17)
    measured(states=tally.states, broken=dict(tally.broken))
    tally.assert_clean()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model", ["strict", "ext4"])
def test_p6_the_first_commits_step_by_step(recorder: Recorder, quick: Path, measured: Measured, model: Model) -> None:
    """As above for every step and every mode, on to the third promise: over 3,000 states."""
    steps = recorder.life("sync")
    third = [at for at, step in enumerate(steps) if step.op == "a"][2]
    tally = judge_steps(steps[: third + 1], model, quick, every=1)
    measured(states=tally.states, broken=dict(tally.broken))
    tally.assert_clean()


def judge_steps(steps: list[Step], model: Model, folder: Path, *, every: int) -> Tally:
    """All modes after the steps that are no plain write, one mode in turn after each ``every``-th of the others."""
    tally, disk, rng = Tally(), Disk(model), random.Random(3)
    for at, step in enumerate(steps):
        disk.do(step)
        modes = MODES if every == 1 or step.op != "w" else () if at % every else (MODES[at // every % len(MODES)],)
        for mode in modes:
            cut = disk.cut(at, mode, rng)
            cut.lay_out(folder)
            tally.count(violations(folder, cut.marks), f"{model}, {mode} after step {at}")
    return tally


def test_p6_the_first_page_is_torn(recorder: Recorder, quick: Path) -> None:
    """The rollback journal of the very first write is still there, and would undo it."""
    steps = recorder.life("sync")
    first = next(at for at, step in enumerate(steps) if step.op == "w" and step.name == "a.db")
    disk = Disk("ext4")
    for step in steps[:first]:
        disk.do(step)
    whole = steps[first]
    disk.do(Step("w", whole.name, whole.inode, 512, whole.data[512:]))
    cut = disk.cut(first, "all", random.Random(0))
    assert "a.db-journal" in cut.files
    cut.lay_out(quick)
    assert violations(quick, cut.marks) == []


def test_a_cut_in_the_middle_of_a_checkpoint(recorder: Recorder, quick: Path) -> None:
    """Page 1 says how long the file will be before the pages at its end are there; the -wal still has them all.

    What is there is also what a SIGKILL leaves, and what another process finds that opens the file just then.
    """
    steps = recorder.life("sync")
    # a checkpoint that makes the file longer: writes into a.db, beginning with its first page
    start = next(at for at, step in enumerate(steps) if at > 100 and step.name == "a.db" and step.offset == 0)
    disk = Disk("ext4")
    for step in steps[: start + 1]:
        disk.do(step)
    cut = disk.cut(start, "all", random.Random(0))
    cut.lay_out(quick)
    assert violations(quick, cut.marks) == []


# -- the tests of the tests: each of these machines must be able to say no


def test_the_judge_sees_what_a_process_that_does_not_sync_loses(recorder: Recorder, quick: Path) -> None:
    """``durability="process"`` promises nothing about the power: most cuts lose something, and are seen to."""
    tally = judge_cuts(recorder.life("async", durability="process"), "ext4", 90, 1, quick, enough="lost")
    assert tally.broken["lost"] >= ENOUGH, tally.broken


def test_the_judge_sees_a_folder_that_was_never_synced(recorder: Recorder, quick: Path) -> None:
    gone = "the file is lost"
    tally = judge_cuts(recorder.life("sync"), "strict", 30, 1, quick, folder_syncs=False, enough=gone)
    assert tally.broken[gone] >= ENOUGH, tally.broken
