"""Errors travel: to another process and back they are what they were (§1)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import thence
from thence import ThenceError
from thence.errors import (
    BudgetExhausted,
    ContextOverflow,
    FileRefused,
    GateClosed,
    ModelError,
    OutputInvalid,
    RunFailed,
    RunIdentityConflict,
    RunInterrupted,
    SessionBusy,
    SessionClosed,
    SessionConfiguration,
    SessionNotFound,
    WaitError,
)
from thence.plan import PlanRefused

MADE: list[ThenceError] = [
    SessionBusy("s", holder="me"),
    SessionBusy("s", run_id="r", waits=("w1", "w2")),
    SessionClosed("s"),
    SessionConfiguration("field", "must not"),
    SessionNotFound("s"),
    RunInterrupted("r", ("c1",), "enough"),
    RunFailed("SESSION_ERROR", "no", run_id="r", retryable=True, resumable=True),
    BudgetExhausted("tokens", "none left", run_id="r"),
    RunIdentityConflict("r"),
    ModelError("http_429", "slow down", retryable=True, retry_after_s=2.5),
    ContextOverflow("too long", "nothing to summarise", run_id="r"),
    OutputInvalid("r", "{}", ("$.name: Field required",)),
    GateClosed("d1", "nobody looked", run_id="r"),
    WaitError("WAIT_EXPIRED", "too late"),
    FileRefused("locking", "no locks"),
    PlanRefused("CONSTRAINT", "no"),
]


PUBLIC = {
    value
    for module in (thence, thence.errors)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, ThenceError)
}


def _plain(kind: type[ThenceError]) -> Iterator[ThenceError]:
    try:
        yield kind("what happened")
    except TypeError:
        assert kind in map(type, MADE), f"{kind.__name__} needs an example here"


EXAMPLES = MADE + [error for kind in sorted(PUBLIC, key=lambda kind: kind.__name__) for error in _plain(kind)]
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "pickle, oldest": lambda error: pickle.loads(pickle.dumps(error, 0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: ThenceError, way: str):
    error.add_note("said by the host")
    other = WAYS[way](error)
    assert type(other) is type(error) and other is not error
    assert (str(other), repr(other), other.args, other.code) == (str(error), repr(error), error.args, error.code)
    assert vars(other) == vars(error)
