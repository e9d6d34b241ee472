"""Event pages as a table (§10)."""

from __future__ import annotations

import pytest

from thence.events import Event, page_of


def events(*sequences: int) -> tuple[Event, ...]:
    return tuple(Event("x", {}, {"sequence": sequence}) for sequence in sequences)


# events, first available, latest exclusive, cursor, more -> next cursor, gap
TABLE = [
    ((0, 1, 2), 0, 3, None, False, 2, False),
    ((0, 1), 0, 3, None, True, 1, False),
    ((2,), 0, 3, 1, False, 2, False),
    ((), 0, 3, 2, False, 2, False),
    ((), 0, 3, 99, False, 99, False),
    ((), None, 0, None, False, None, False),
    ((5, 6), 5, 7, None, False, 6, True),
    ((5, 6), 5, 7, 3, False, 6, True),
    ((5, 6), 5, 7, 4, False, 6, False),
    ((6,), 5, 7, 5, False, 6, False),
    ((), None, 7, None, False, None, True),
    ((), None, 7, 5, False, 5, True),
    ((), None, 7, 6, False, 6, False),
    ((0, 2), 0, 3, None, False, 2, False),
    ((), 0, 3, None, True, None, False),
]


@pytest.mark.parametrize(("kept", "first", "latest", "after", "more", "following", "gap"), TABLE)
def test_a_page(kept, first, latest, after, more, following, gap):
    page = page_of(events(*kept), first, latest, after, more=more)
    assert page.next_after_sequence == following
    assert page.retention_gap is gap
    assert page.has_more is more
    assert (page.first_available_sequence, page.latest_sequence_exclusive) == (first, latest)
    assert page.events == events(*kept)


def test_the_envelope_as_json():
    event = Event("x", {"a": 1}, {"sequence": 0})
    assert event.to_dict() == {"version": 1, "type": "x", "payload": {"a": 1}, "metadata": {"sequence": 0}}
