"""The state in a checkpoint is a cache: it is the fold of the facts, or it is not believed (§4, §7)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence import kept_state
from thence.chat import Usage
from thence.errors import UnknownCriticalFact
from thence.facts import Ended, NewFact
from thence.fold import fold
from thence.kept_state import MAX_BYTES, KeptState, keep_state
from thence.log import Log
from thence.loopguard import LoopGuard
from thence.pages import StoredFact
from thence.state import Phase, State
from thence.steps import OpenCall, OpenWait
from thence.writes import Head, RunIds, append

from .logs import legal_logs

IDS = RunIds(1, "s", 1, "run-1", "me", 1, 1)


def stored(facts: list[NewFact]) -> tuple[list[StoredFact], Head, dict[str, bytes]]:
    """The facts as a page of the file would give them."""
    ops, head, _ = append(IDS, Head(), facts, 0)
    blobs = {row["sha256"]: row["bytes"] for op in ops if op.statement == "blob_add" for row in op.rows}
    names = ("seq", "kind", "key", "cause", "run_id", "prev_hash", "hash", "payload")
    rows: list[Any] = [tuple(row[name] for name in names) for row in ops[-1].rows] if facts else []
    return rows, head, blobs  # type: ignore[return-value]


def kept(facts: list[NewFact], at: int) -> KeptState | None:
    """What a checkpoint behind the first ``at`` facts would carry."""
    _, head, _ = stored(facts[:at])
    found = keep_state(fold(facts[:at]), head.hash)
    return None if found is None else KeptState(at, found[0].encode(), found[1])


def log_of(facts: list[NewFact], cache: KeptState | None) -> Log:
    rows, head, blobs = stored(facts)
    log = Log(1, 1)
    log.add_stored(rows, blobs, head, cache)
    return log


@given(legal_logs(most=40), st.integers(1, 40))
def test_the_state_from_the_cache_is_the_state_from_the_facts(facts: list[NewFact], at: int):
    if not facts:
        return
    at = min(at, len(facts))
    cache = kept(facts, at)
    state = fold(facts[:at])
    assert (cache is None) == bool(state.open or state.waits or state.ended), "what it cannot tell, it does not keep"
    assert log_of(facts, cache).state == log_of(facts, None).state == fold(facts)


@given(legal_logs(most=40), st.data())
def test_a_live_log_and_a_resumed_one_are_the_same(facts: list[NewFact], data: st.DataObject):
    live, resumed = Log(1, 1), log_of(facts, None)
    live.add(facts)
    if data.draw(st.booleans()):
        assert resumed.transcript.bytes == live.transcript.bytes  # measured before anything was looked at
    messages = live.transcript.snapshot()
    for index in data.draw(st.permutations(range(len(messages)))):
        assert resumed.transcript.snapshot()[index] == messages[index]
    assert list(resumed.transcript.snapshot()) == list(messages)
    assert resumed.transcript.bytes == live.transcript.bytes


def a_log() -> list[NewFact]:
    return next(log for log in _logs() if fold(log).phase is Phase.INFER and fold(log).rounds > 1)


def _logs() -> Any:
    from random import Random

    from .logs import Walk

    for seed in range(1000):
        walk = Walk(Random(seed))
        for _ in range(30):
            walk.step()
        yield walk.facts


def test_the_cache_is_used_where_it_belongs(monkeypatch: pytest.MonkeyPatch):
    """A planted fault: a state that was kept wrongly comes back wrong, so the laws above do see the cache."""
    facts = a_log()
    right = fold(facts)
    _, head, _ = stored(facts)
    text, _ = keep_state(right, head.hash) or ("", b"")
    wrong = orjson.dumps({**orjson.loads(text), "rounds": 77})
    forged = KeptState(len(facts), wrong, kept_state._proof(head.hash, wrong))
    assert log_of(facts, forged).state == replace(right, rounds=77)


@pytest.mark.parametrize("damage", ["text", "proof", "seq", "other log", "version", "fields", "too far", "zero"])
def test_a_cache_of_something_else_is_not_believed(damage: str, monkeypatch: pytest.MonkeyPatch):
    facts = a_log()
    cache = kept(facts, len(facts))
    assert cache is not None
    if damage == "text":
        cache = replace(cache, text=cache.text.replace(b'"rounds":', b'"rounds":1'))
    elif damage == "proof":
        cache = replace(cache, proof=bytes(32))
    elif damage == "seq":
        cache = replace(cache, seq=cache.seq - 1)
    elif damage == "too far":
        cache = replace(cache, seq=cache.seq + 1)
    elif damage == "zero":
        cache = replace(cache, seq=0)
    elif damage == "other log":
        facts = [replace(facts[0], cause="another"), *facts[1:]]
    else:
        other = [2, "x"] if damage == "version" else [1, "deadbeef"]
        monkeypatch.setattr(kept_state, "_VERSION", other)
    rows, head, blobs = stored(facts)
    restored: list[object] = []

    def seen(state: State, fact: NewFact) -> State:
        restored.append(fact)
        return fold([fact], state)

    monkeypatch.setattr("thence.log.advance", seen)
    log = Log(1, 1)
    log.add_stored(rows, blobs, head, cache)
    assert len(restored) == len(facts), "every fact was folded"
    assert log.state == fold(facts)


def test_what_a_later_version_wrote_is_refused_also_before_the_cached_state():
    facts = a_log()
    rows, head, blobs = stored(facts)
    seq, _, key, cause, run, *rest = rows[1]
    rows[1] = (seq, "plan.made", key, cause, run, *rest)  # type: ignore[assignment]
    with pytest.raises(UnknownCriticalFact, match=r"'plan\.made'"):
        Log(1, 1).add_stored(rows, blobs, head, kept(facts, len(facts)))


def test_the_text_stays_small_or_is_not_kept():
    busy = LoopGuard(tuple(f"{'n' * 64}:{i:064}" for i in range(8)), "r" * 129, 3)
    state = State(Phase.INFER, 3, text="x" * 10**6, loop=busy, continued=("c" * 64,) * 10, usage=Usage(1))
    text, proof = keep_state(state, bytes(32)) or ("", b"")
    assert 0 < len(text) < 3000 and len(proof) == 32
    assert keep_state(replace(state, loop=replace(busy, refused="n" * MAX_BYTES)), bytes(32)) is None
    assert keep_state(replace(state, usage=Usage(2**64)), bytes(32)) is None


def test_a_state_with_something_that_is_not_kept_is_not_kept():
    call = OpenCall("t1-r1-c0", 0, None, "s")  # type: ignore[arg-type]
    wait = OpenWait("t1-r1-w1", "budget_hold", "t1-r1")
    for state in (State(open=(call,)), State(waits=(wait,)), State(ended=Ended("completed"))):
        assert keep_state(state, bytes(32)) is None
    known = {*kept_state._PLAIN, *kept_state._BUILT, *kept_state._IN_FACTS, "open", "waits", "ended"}
    assert known == {field.name for field in fields(State)}, (
        "a new field of State: keep it in kept_state, or add it here if a state that has it is folded anew"
    )
