"""An interrupt at any point: no transaction stays open, and every plan is whole, once, or refused."""

from __future__ import annotations

import gc
import signal
import sys

import pytest

from thence.plan import PlanRefused
from thence.store.group import Job


def test_an_interrupt_leaves_no_transaction_and_no_doubt(open_store, say):
    store = open_store()
    store.commit(say.add("first"))

    def stop(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, stop)
    stopped = 0
    gc.disable()  # an interrupt inside a collector's callback would be lost, by Python's own rules
    try:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.000_02 + (number % 40) * 0.000_004)
                store.commit(say.add(f"i{number}", durable=False))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                stopped += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert store._writer.connection is not None
            assert not store._writer.connection.in_transaction
            assert not store._writer.lock.locked()
            assert not store._gate.held
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    assert stopped > 20
    names = set(store.read(say.names))
    # not one plan was performed twice: that would have been refused, and raised
    assert sum(f"i{number}" in names for number in range(400)) >= 400 - stopped
    store.commit(say.add("last"))


STEPS = {"_lead", "_transact", "_recover", "_acknowledge", "_failed", "_set_synchronous", "roll_back", "perform"}


FOLDING = {"_fold_back", "run", "_fold", "roll_back", "enter", "leave"}


def interrupt_at(line: int, steps: set[str] = STEPS):
    """A tracer that raises before the ``line``-th line of the writer's inner steps, and says whether it did."""
    left = [line]

    def trace(frame, event, _):
        if frame.f_code.co_name not in steps or "store" not in frame.f_code.co_filename:
            return trace
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    return trace, left


@pytest.mark.parametrize("refused", [False, True])
def test_an_interrupt_before_every_line(open_store, say, refused):
    """What COMMIT did is known wherever the interrupt comes: no plan is lost, none is performed twice."""
    store = open_store(durability="process")
    store.commit(say.add("taken"))
    gc.disable()
    try:
        for line in range(1, 200):
            plan = say.add(f"x{line}") + say.add("taken") if refused else say.add(f"x{line}")
            trace, left = interrupt_at(line)
            sys.settrace(trace)
            job = Job(plan)
            try:
                with pytest.raises(KeyboardInterrupt):
                    store._writer.commit((job,))
                    raise KeyboardInterrupt
            finally:
                sys.settrace(None)
            assert not store._writer.connection.in_transaction
            assert isinstance(job.answer, PlanRefused if refused else tuple)
            assert (f"x{line}" in store.read(say.names)) is not refused
            if left[0] > 0:
                break
    finally:
        gc.enable()
    assert 15 < line < 199


def test_an_interrupt_before_every_line_of_a_checkpoint(open_store, say):
    """The lock, the gate and the transaction are let go, or the next commit of this process would wait for ever."""
    store = open_store()
    gc.disable()
    try:
        for line in range(1, 200):
            store.commit(say.add(f"x{line}", durable=False))
            trace, left = interrupt_at(line, FOLDING)
            sys.settrace(trace)
            try:
                store._writer.checkpoint()
            except KeyboardInterrupt:
                assert left[0] == 0
            finally:
                sys.settrace(None)
            assert not store._writer.lock.locked()
            assert not store._writer.connection.in_transaction
            assert not store._gate.held
            if left[0] > 0:
                break
    finally:
        gc.enable()
    assert 20 < line < 199
    assert store._checkpointer.count > 5
