"""A message to a live run, and a death before or after every effect on its way from the inbox into the log (§8).

What was left in the inbox is read exactly once, whoever goes on with the turn; the logs are equal byte for byte.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, inbox

from .hand import STEER, Died, by_hand
from .kit import Again, Eyes, Tools, calls, done, head, last_run, options, resume_to_its_end

SCRIPT = [calls("look:1", "charge:2"), done(), done("Done again.")]


class InTheLastMoment:
    """A store on which somebody speaks to the run just before the commit that ends it."""

    def __init__(self, store: Any) -> None:
        self._store, self._said = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, plan: Any) -> Any:
        ends = [row for op in plan.ops if op.statement == "run_end" for row in op.rows]
        if ends and not self._said:
            self._said = True
            left = self._store.commit(inbox.steer(ends[0]["run_pk"], STEER, now_ms=0, request_id="q"))
            assert left[0], "the run still lives"
        return self._store.commit(plan)


WAYS: dict[str, dict[str, Any]] = {
    "while a tool runs": {"steer_in": "t1-r1-c0"},
    "as the turn ends": {"wrap": InTheLastMoment},
}


def said(db: Path) -> list[str]:
    with Eyes(db) as eyes:
        found = eyes.rows("SELECT key FROM facts WHERE kind = 'user.message' AND key NOT LIKE '%user' ORDER BY seq")
    return [key for (key,) in found]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_said_is_read_once_wherever_the_process_dies(way: str, quick: Path) -> None:
    empty = quick / "empty.db"
    with Agent(empty, model=Again([]), tools=Tools().all(), durability="process") as agent:
        agent.session("/w", options())

    def file(name: str) -> Path:
        db = quick / f"{name}.db"
        shutil.copy(empty, db)
        return db

    whole, quiet = file("whole"), file("quiet")
    hand, outcome = by_hand(whole, SCRIPT, **WAYS[way])
    assert outcome.status == "completed" and said(whole) == ["t1-steer1"]
    assert outcome.text == ("Done." if way == "while a tool runs" else "Done again.")
    by_hand(quiet, SCRIPT)
    earlier = file("earlier")
    by_hand(earlier, SCRIPT, steer_in="t1-r1-c0")
    # An answer that was about to be written with the end of the turn, and was not, is asked for again: with what was
    # said meanwhile in the request.
    heads = {True: {head(whole), head(earlier)}, False: {head(quiet)}}
    seen = set[tuple[bool, bool]]()
    for at in range(1, len(hand.names) + 1):
        for when in ("before", "after"):
            db = file(f"{at}-{when}")
            _, outcome = by_hand(db, SCRIPT, at=at, when=when, **WAYS[way])
            if not isinstance(outcome, Died):
                # this run had one step less to take than the first: pieces of an answer are written by the clock
                assert head(db) in heads[True]
                continue
            run_id = last_run(db)
            if run_id is None:
                continue
            with Eyes(db) as eyes:
                waits = bool(eyes.one("SELECT count(*) FROM inbox WHERE kind = 'steer'"))
                unknown = bool(eyes.one("SELECT count(*) FROM inflight WHERE effect = 'once' AND state = 'started'"))
            read = bool(said(db))
            assert not (waits and read)
            seen.add((waits, read))
            resume_to_its_end("sync" if when == "before" else "async", db, run_id, SCRIPT)
            assert said(db) == (["t1-steer1"] if waits or read else [])
            assert unknown or head(db) in heads[waits or read]
            with Eyes(db) as eyes:
                assert eyes.one("SELECT count(*) FROM inbox") == 0
    assert seen == {(False, False), (True, False), (False, True)}
