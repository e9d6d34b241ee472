"""Stop before and after every effect of reference runs, resume in the other face, compare facts (§4, §7, P2, P3).

The log that an interrupted and resumed run leaves is the undisturbed one, by head hash. The one exception is the
contract's own: a ``once`` call that had started asks what came of it, so its log has a wait and the answer more. Told
the undisturbed result, all results are the undisturbed ones.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, SessionError
from thence.facts import WaitAnswered, WaitOpened
from thence.testing import reply

from ..kit import check_log, check_messages, results
from .hand import Died, by_hand
from .kit import (
    After,
    Again,
    Eyes,
    Tools,
    answer_all,
    calls,
    done,
    head,
    last_run,
    options,
    rest,
    resume_to_its_end,
    run_rows,
)


@dataclass(frozen=True)
class Reference:
    """A run to interrupt. ``ending``: positions of the calls that end first. ``stop_in``: a cancel comes in there."""

    script: list[Any]
    given: dict[str, Any] = field(default_factory=dict)
    ending: tuple[int, ...] = ()
    stop_in: str | None = None


REFERENCES = {
    "reads": Reference([calls("look:1", "look:2", "look:3"), done()]),
    "reads, last first": Reference([calls("look:1", "look:2", "look:3"), done()], ending=(2, 1, 0)),
    "undeclared": Reference([calls("add:1"), calls("add:2"), done()]),
    "once": Reference([calls("charge:1", "add:2"), done()]),
    "failing": Reference([calls("fail:1", "look:2"), calls("add:3"), done()]),
    "mixed": Reference([calls("look:1", "look:2", "put:3", "charge:4", "look:5"), done()]),
    "capped": Reference([calls("look:1", "add:2"), calls("add:3", "look:4"), done()], {"max_tool_rounds": 1}),
    "malformed": Reference([calls("add:{1", "look:2"), calls("add:3"), done()]),
    "malformed, fatal": Reference([calls("look:1", "add:{1", "add:2"), done()], {"max_parse_retries": 0}),
    "duplicates": Reference([calls("look:1", "look:1", "look:1", "look:1", "add:2"), done()]),
    "duplicates, fatal": Reference([calls(*["add:1"] * 5, "look:2"), done()]),
    "unknown tool": Reference([calls("nope:1", "look:2"), done()]),
    "continued": Reference([reply("Half", stop_reason="length"), reply("", stop_reason="stop"), done()]),
    "cancelled": Reference([calls("look:1", "add:2", "charge:3", "look:4"), done()], stop_in="t1-r1-c1"),
    "cancelled in once": Reference([calls("charge:1", "look:2"), done()], stop_in="t1-r1-c0"),
    "cancelled in a batch": Reference([calls("look:1", "look:2", "look:3"), done()], stop_in="t1-r1-c1"),
}
EMPTY = "empty"


EVERY_DAY = {
    "reads, last first",
    "undeclared",
    "once",
    "failing",
    "mixed",
    "capped",
    "malformed",
    "duplicates",
    "cancelled",
    "cancelled in once",
}
NAMES = [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in REFERENCES]


def results_of(db: Path) -> list[Any]:
    """(key, ok, text) of every result in a file that nobody disturbed."""
    with Agent(db, model=Again([]), durability="process") as agent:
        return results(agent.resume_session("s").facts())


class Case:
    """One reference run in files of its own, and what it comes to when nobody disturbs it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reference, self._folder = REFERENCES[name], folder
        self._number = 0
        self._empty = folder / "empty.db"
        with Agent(self._empty, model=Again([]), tools=Tools().all(), durability="process") as agent:
            agent.session("/w", options(**self.reference.given))
        self.tools = Tools()
        db = self.file()
        self.hand, self.outcome = self.start(db, 0, "after", self.tools)
        self.head = head(db)
        self.heads = {self.head}
        self.results = [results_of(db)]
        self.effects = len(self.hand.names)
        if self.reference.stop_in:
            # The cancel dies with the process that had it: a resumed run may also go on to its end.
            quiet = self.file()
            by_hand(quiet, self.reference.script, tools=Tools())
            self.heads.add(head(quiet))
            self.results.append(results_of(quiet))

    def file(self) -> Path:
        self._number += 1
        db = self._folder / f"{self._number}.db"
        shutil.copy(self._empty, db)
        return db

    def start(self, db: Path, at: int, when: str, tools: Tools, resume: str | None = None) -> tuple[Any, Any]:
        one = self.reference
        return by_hand(
            db, one.script, at=at, when=when, ending=one.ending, tools=tools, stop_in=one.stop_in, resume=resume
        )

    def points(self, every: int = 1) -> Iterator[tuple[int, str]]:
        """Before each effect, and after each ``every``-th, the last one among them."""
        for at in range(1, self.effects + 1):
            yield at, "before"
            if (self.effects - at) % every == 0:
                yield at, "after"


def interrupt_and_resume(case: Case, at: int, when: str) -> None:
    """Die there, resume in one face, check all of what §7 promises."""
    db, before = case.file(), Tools()
    _, outcome = case.start(db, at, when, before)
    assert isinstance(outcome, Died)
    found, rows, run_id = rest(db), run_rows(db), last_run(db)
    after = resume_to_its_end("sync" if when == "before" else "async", db, run_id or "never", case.reference.script)
    if not found.kinds:
        assert isinstance(after.error, SessionError)
        assert str(after.error) == "no loop checkpoint found for run 'never'"
        return
    unknown = {key for key, effect in found.started.items() if effect == "once"}
    check_calls(case, before, after, found, unknown)
    check_file(case, db, after, unknown)
    now = run_rows(db)
    assert all(now[old] == row for old, row in rows.items()), "an old run's row was rewritten"
    assert len(now) == len(rows) + (not found.closed)
    if found.closed:
        assert after.nothing_called
        assert after.result is None or after.result.replayed


def check_calls(case: Case, before: Tools, after: After, found: Any, unknown: set[str]) -> None:
    """Landed: never again. Started: once more, with the same key, unless ``once``. Not started: once."""
    again = after.tools.times()
    assert not set(again) & (found.settled | found.landed | unknown)
    assert all(count == 1 for count in again.values())
    total = before.times() + again
    assert all(count == 1 or key in found.started for key, count in total.items())
    if not case.reference.stop_in:
        assert set(total) | unknown == set(case.tools.times()), "a recorded call was forgotten"
    names = {one.call_key: one.idempotency_key for one in (() if unknown else case.tools.ran)}
    for one in after.tools.ran + before.ran:
        assert one.idempotency_key == names.setdefault(one.call_key, one.idempotency_key)


def check_file(case: Case, db: Path, after: After, unknown: set[str]) -> None:
    """The chain verifies, the history is valid, and the facts are the undisturbed ones."""
    check_log(after.facts)
    check_messages(after.history)
    assert after.facts[-1].kind == "turn.ended"
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM session WHERE owner IS NOT NULL") == 0
        assert eyes.one("SELECT count(*) FROM inflight") == 0
        assert eyes.one("SELECT count(*) FROM checkpoint") == 0
        assert eyes.one("SELECT count(*) FROM wait WHERE closed_ms IS NULL") == 0
    if not unknown:
        assert head(db) in case.heads
        return
    assert results(after.facts) in case.results
    asked = [fact.payload.subject for fact in after.facts if isinstance(fact.payload, WaitOpened)]
    assert set(asked) == unknown and len(asked) == len(unknown), "each is asked once"
    heard = [fact.payload.wait_id for fact in after.facts if isinstance(fact.payload, WaitAnswered)]
    assert sorted(heard) == [f"{key}-w1" for key in sorted(unknown)]


@pytest.mark.parametrize("name", NAMES)
def test_before_every_effect_and_after_every_third(name: str, quick: Path) -> None:
    """For every n; a death before effect n is resumed by the blocking face, one after it by the async face. What is
    left after effect n is what is left before the next one, and both faces drive one flow: that one is sampled."""
    case = Case(name, quick)
    assert case.effects > 6
    for at, when in case.points(every=3):
        interrupt_and_resume(case, at, when)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REFERENCES))
def test_before_and_after_every_effect(name: str, quick: Path) -> None:
    """The same, with nothing left out in either face."""
    case = Case(name, quick)
    for at, when in case.points():
        interrupt_and_resume(case, at, when)


def killed_again(case: Case, chance: random.Random, depth: int) -> tuple[int, int]:
    """Kill the run and then its resumes, ``depth`` deep; then let it end. Returns (kills, attempts)."""
    db, tools = case.file(), Tools()
    unknown: set[str] = set()
    kills, run_id = 0, None
    for _ in range(depth):
        limit = max(2, case.effects - kills)
        _, outcome = case.start(db, chance.randrange(1, limit), chance.choice(["before", "after"]), tools, run_id)
        kills += isinstance(outcome, Died)
        if isinstance(outcome, Died):
            found = rest(db)
            unknown |= {key for key, effect in found.started.items() if effect == "once"}
        run_id = last_run(db)
        if run_id is None:
            return kills, 0
        if rest(db).closed:
            break
        if chance.random() < 0.7:
            answer_all(db)
    # a parked run goes on as itself: its row may change
    rows = {run: row for run, row in run_rows(db).items() if "parked" not in row}
    after = resume_to_its_end(chance.choice(["sync", "async"]), db, run_id or "never", case.reference.script)
    now = run_rows(db)
    assert all(now[old] == row for old, row in rows.items())
    assert all(count == 1 for key, count in tools.times().items() if key in unknown)
    assert not unknown & set(after.tools.times())
    check_file(case, db, after, unknown)
    return kills, len(now)


@pytest.mark.parametrize("name", NAMES)
def test_killed_again_five_deep(name: str, quick: Path) -> None:
    """P3: whatever is killed five times in a row comes to the undisturbed end in at most six attempts."""
    case, chance = Case(name, quick), random.Random(name)
    deepest = 0
    for _ in range(7):
        kills, attempts = killed_again(case, chance, 5)
        assert attempts <= 6
        deepest = max(deepest, kills)
    assert deepest >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list(REFERENCES))
def test_killed_again_at_every_pair_of_effects(name: str, quick: Path) -> None:
    """Every n of the run, then every third effect of its resume."""
    case = Case(name, quick)
    for at, when in case.points():
        for second in range(1 + at % 3, case.effects, 3):
            db, tools = case.file(), Tools()
            case.start(db, at, when, tools)
            run_id = last_run(db)
            if run_id is None or rest(db).closed:
                continue
            unknown = {key for key, effect in rest(db).started.items() if effect == "once"}
            case.start(db, second, "after", tools, run_id)
            unknown |= {key for key, effect in rest(db).started.items() if effect == "once"}
            after = resume_to_its_end("sync", db, run_id, case.reference.script)
            assert not unknown & set(after.tools.times())
            check_file(case, db, after, unknown)


def test_the_points_of_death_are_many(quick: Path) -> None:
    """Deaths between "started" and "ran", between "ran" and "landed", and in the settling commit are among them."""
    case = Case("mixed", quick)
    seen: set[tuple[bool, bool, bool]] = set()
    for at, when in case.points():
        db, tools = case.file(), Tools()
        case.start(db, at, when, tools)
        found = rest(db)
        ran = set(tools.keys())
        seen |= {(bool(found.landed), bool(set(found.started) & ran), bool(set(found.started) - ran))}
    assert {(False, False, True), (False, True, True), (True, True, False), (True, False, True)} <= seen
    with Eyes(case.file()) as eyes:
        assert eyes.one("SELECT count(*) FROM run") == 0
