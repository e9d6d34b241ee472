"""A session's log in memory: the fold and the transcript, grown fact by fact beside the file (§4)."""

from __future__ import annotations

from collections.abc import Iterable

from .facts import GENESIS, NewFact
from .fold import State, advance
from .transcript import Transcript
from .writes import Head


class Log:
    """What the facts of one branch amount to. Nothing here keeps or copies the facts themselves."""

    def __init__(self, branch_pk: int, session_pk: int | None = None) -> None:
        self.branch_pk, self.session_pk = branch_pk, session_pk
        self.state = State()
        self.transcript = Transcript()
        self.head = Head()
        self.answer_hash = GENESIS
        """Chain hash at the newest model's answer: it names the calls of that answer in every copy of the log (§7)."""

    def add(self, facts: Iterable[NewFact]) -> None:
        """Fold ``facts`` in, in order.

        Raises:
            IllegalFact: one that cannot come here.
        """
        for fact in facts:
            self.state = advance(self.state, fact)
            self.transcript.advance(fact)
