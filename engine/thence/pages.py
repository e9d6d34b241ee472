"""A page of a log as it is stored, checked in full: what every reader of facts starts from (§4, §10). Pure.

Opening a session reads its whole log. So a row stays the row that SQLite gave, and costs one hash; who wants values
decodes them (`reads.facts`), and the transcript does so only for messages that somebody looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from .codec import chain, decode
from .errors import StoreError
from .facts import NewFact
from .parts import Blobs
from .plan import Params, Query, Rows, Select
from .writes import BEGINNING, Head

PAGE = 1000
RESTORE = "the file is damaged: restore a backup, or read what is left with sqlite3"

StoredFact: TypeAlias = "tuple[int, str, str, str | None, str | None, bytes, bytes, str]"
"""seq, kind, key, cause, run id (None where it was not asked for), previous hash, hash, payload text."""

_SEQ = itemgetter(0)


@dataclass(slots=True)
class Page:
    """Facts that follow one another, the blobs that they name, and where the log has got to behind them.

    ``more``: there may be facts behind this page.
    """

    facts: list[StoredFact]
    blobs: Blobs
    head: Head
    more: bool


def page(
    branch_pk: int,
    after: Head = BEGINNING,
    limit: int = PAGE,
    session_pk: int | None = None,
    statement: str = "fact_page",
) -> Query[Page]:
    """Visible facts of a branch behind ``after``; checked to be all there are, in one chain.

    ``session_pk`` is whose branch it must be. A seq without its hash (``Head(seq, b"")``) leaves the first link open.
    """
    params: Params = {"branch_pk": branch_pk, "after_seq": after.seq, "up_to_seq": after.seq + limit}
    selects = (
        Select(statement, params),
        Select("fact_blobs", params),
        Select("branch_head", {"branch_pk": branch_pk}),
    )

    def value(results: Sequence[Rows]) -> Page:
        if not results[2] or (session_pk is not None and results[2][0][0] != session_pk):
            raise StoreError(f"the session's branch {branch_pk} is not its own; {RESTORE}")
        _, head_seq, head_hash, *_ = results[2][0]
        # The stretches of a branch come one after the other; sorting what is sorted costs SQLite more than Python.
        found: list[StoredFact] = sorted(results[0], key=_SEQ)
        reached = check_chain(found, after)
        complete = reached == Head(head_seq, head_hash) if reached.hash else reached.seq == head_seq
        more = len(found) == limit
        if not (complete or (more and reached.seq < head_seq) or after.seq > head_seq):
            raise StoreError(
                f"the log is not whole: it ends at seq {reached.seq} and should end at {head_seq}; {RESTORE}"
            )
        return Page(found, dict(results[1]), reached, more)

    return Query(selects, value)


def check_chain(facts: Sequence[StoredFact], after: Head) -> Head:
    """Each fact is what was written, and goes on from the one before it; returns where that leads to.

    Raises:
        StoreError: a fact was changed, is missing, or cannot be read.
    """
    seq, last = after.seq, after.hash
    for number, kind, key, cause, _, prev_hash, digest, text in facts:
        try:
            sound = chain(prev_hash, number, kind, key, cause, text) == digest
        except (TypeError, ValueError) as error:
            raise unreadable(number, key, error) from error
        if not sound:
            raise StoreError(f"fact {number} ('{key}') was changed: its hash does not fit; {RESTORE}")
        if number != seq + 1 or (last and prev_hash != last):
            raise StoreError(f"the log is not whole: fact {number} does not go on from seq {seq}; {RESTORE}")
        seq, last = number, digest
    return Head(seq, last)


def new_fact(stored: StoredFact, blobs: Mapping[str, bytes]) -> NewFact:
    """A stored fact with its value.

    Raises:
        StoreError: no version of ours can have written it so.
        UnknownCriticalFact: a later version has.
    """
    try:
        payload = decode(stored[1], stored[7], blobs.__getitem__)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(stored[0], stored[2], error) from error
    return NewFact(stored[2], stored[3], payload)


def unreadable(seq: int, key: str, error: Exception) -> StoreError:
    """The error for a fact that no version of ours can have written so."""
    return StoreError(f"fact {seq} ('{key}') cannot be read: {error!r}; {RESTORE}")
