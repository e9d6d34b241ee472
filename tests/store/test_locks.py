"""Who is alive, and whose turn it is."""

from __future__ import annotations

import os
import threading
import time

import pytest

from thence.errors import FileRefused
from thence.store import locks
from thence.store.locks import Gate, OwnerFile
from thence.store.sqlite import SqliteStore


@pytest.mark.parametrize("portable", [False, True])
def test_owner_files(tmp_path, monkeypatch, portable):
    monkeypatch.setattr(locks, "_portable", portable)
    path = tmp_path / "a.db"
    first = OwnerFile(path, "first")
    assert locks.probe(path, "first") == "alive"
    assert locks.probe(path, "nobody") == "dead"
    with pytest.raises(FileRefused, match="first"):
        OwnerFile(path, "first")
    locks.owner_path(path, "crashed").touch()
    assert locks.living_owners(path, besides="me") == ["first"]
    assert not locks.owner_path(path, "crashed").exists()
    first.release()
    first.release()
    assert locks.probe(path, "first") == "dead"
    assert not list(tmp_path.iterdir())


def test_two_that_probe_at_once_do_not_see_each_other(tmp_path):
    path = tmp_path / "a.db"
    file = locks.owner_path(path, "dead")
    file.touch()
    descriptor = os.open(file, os.O_RDWR)
    assert locks.try_lock(descriptor, shared=True)
    assert locks.probe(path, "dead") == "dead"
    os.close(descriptor)


@pytest.mark.parametrize("portable", [False, True])
def test_the_gate_lets_a_waiter_in_first(tmp_path, monkeypatch, portable):
    monkeypatch.setattr(locks, "_portable", portable)
    mine, other = Gate(tmp_path / "a.db"), Gate(tmp_path / "a.db")
    order: list[str] = []
    mine.enter()

    def wait() -> None:
        other.enter()
        order.append("waiter")
        other.leave()

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    mine.leave()
    mine.enter()
    order.append("me again")
    mine.leave()
    waiter.join()
    assert order == ["waiter", "me again"]


def test_a_stopped_holder_of_the_gate_stops_nobody(tmp_path, open_store, say):
    store = open_store()
    held = Gate(tmp_path / "a.db")
    held.enter()
    started = time.monotonic()
    store.commit(say.add("a"))
    assert 0.5 < time.monotonic() - started < 10
    held.leave()
    held.forget()


def test_an_interrupt_at_the_gate_leaves_it_open(tmp_path, monkeypatch):
    """Ctrl-C while one waits for the turn with the place behind it taken: both are given back."""
    holder, interrupted, third = (Gate(tmp_path / "a.db") for _ in range(3))
    holder.enter()

    def interrupt(gate: Gate, descriptor: int, pause_s: float) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "_wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            interrupted.enter()
    interrupted.leave()
    holder.leave()
    started = time.monotonic()
    third.enter()
    assert time.monotonic() - started < 0.5  # it waits a second for a place that nobody gives back
    for gate in (holder, interrupted, third):
        gate.leave()
        gate.forget()


def test_a_stopped_holder_of_the_gate_costs_a_moment_and_not_each_commit(tmp_path, open_store, say, monkeypatch):
    store = open_store()
    held = Gate(tmp_path / "a.db")
    held.enter()
    started = time.monotonic()
    for number in range(12):
        store.commit(say.add(f"a{number}"))
    assert time.monotonic() - started < 8
    # the gate is in use again as soon as it is free, and waited for once more after a while
    held.leave()
    store.commit(say.add("b"))
    held.enter()
    monkeypatch.setattr(locks, "GATE_REST_S", 0.0)
    other = Gate(tmp_path / "a.db")
    for _ in range(2):
        started = time.monotonic()
        other.enter()
        other.leave()
        assert time.monotonic() - started > 0.5
    for gate in (held, other):
        gate.forget()


def test_no_gate_can_be_made(tmp_path, say):
    (tmp_path / "a.db-gate").mkdir()
    store = SqliteStore(tmp_path / "a.db", "me")
    store.commit(say.add("a"))
    store.close()
