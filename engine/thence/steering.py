"""What others say to a run that is live becomes messages of its turn, where a message may come (§1, §8).

A message waits in the inbox while a model answers or calls are open: never between a call and its result. It leaves the
inbox in the commit that makes it a fact, so that a crash between the two loses nothing and says nothing twice.
"""

from __future__ import annotations

from . import inbox
from .effects import Flow, IsSteered, Read
from .facts import Asked, Text, turn_key
from .ledger import Ledger
from .report import control_applied
from .state import Phase

HEARING = frozenset({Phase.INFER, Phase.ANSWERED})
"""Phases in which a message may come; in the second the model is asked again instead of the turn ending."""


def hear(ledger: Ledger) -> Flow[bool]:
    """Take what waits, if anything does. Returns whether there was something."""
    if ledger.log.state.fatal is not None or not (yield from IsSteered()):
        return False
    return (yield from take_steers(ledger))


def take_steers(ledger: Ledger) -> Flow[bool]:
    """Make every message that waits a fact, in order; one whose request the log knows is dropped.

    Returns whether there were any.
    """
    found = False
    while waiting := (yield from Read(inbox.steers(ledger.ids.session_pk))):
        found = True
        for one in waiting:
            if one.request_id is None or one.request_id not in ledger.log.requests:
                _take(ledger, one)
        ledger.also(*inbox.drop(ledger.ids, [one.number for one in waiting]).ops)
        yield from ledger.flush()
    return found


def _take(ledger: Ledger, one: inbox.Steer) -> None:
    state = ledger.log.state
    key = f"{turn_key(state.turn)}-steer{state.steers + 1}"
    ledger.stage(key, None, Asked((Text(one.text),), "steer", one.request_id))
    ledger.say(control_applied("steer", ledger.log.state, request_id=one.request_id, text=one.text))
