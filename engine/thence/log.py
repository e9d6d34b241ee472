"""A session's log in memory: the fold and the transcript, grown fact by fact beside the file (§4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .codec import is_known
from .errors import UnknownCriticalFact
from .facts import GENESIS, Answered, Asked, Configured, NewFact, Payload
from .fold import advance
from .kept_state import KeptState, restore_state
from .pages import StoredFact, new_fact
from .parts import Blobs
from .state import State
from .transcript import Transcript
from .writes import Head


class Log:
    """What the facts of one branch amount to. Nothing here folds or decodes a fact twice."""

    def __init__(self, branch_pk: int, session_pk: int | None = None) -> None:
        self.branch_pk, self.session_pk = branch_pk, session_pk
        self.state = State()
        self.transcript = Transcript()
        self.head = Head()
        self.answer_hash = GENESIS
        """Chain hash at the newest model's answer: it names the calls of that answer in every copy of the log (§7)."""
        self.requests: set[str] = set()
        """Request ids of the messages so far: the same request again says nothing new."""

    def add(self, facts: Iterable[NewFact]) -> None:
        """Fold ``facts`` in, in order.

        Raises:
            IllegalFact: one that cannot come here.
        """
        for fact in facts:
            self.state = advance(self.state, fact)
            self.transcript.advance(fact)
            self._note_request(fact.payload)

    def _note_request(self, payload: Payload) -> None:
        if isinstance(payload, Asked) and payload.request_id is not None:
            self.requests.add(payload.request_id)

    def add_stored(self, facts: Sequence[StoredFact], blobs: Blobs, head: Head, kept: KeptState | None = None) -> None:
        """Fold checked facts of the file in, in order; ``head`` is where they lead to.

        ``kept``, for a log that is still empty, is a state that may stand for the first of them: up to where it stands
        they need not be folded.

        Raises:
            IllegalFact: one that cannot come here.
            UnknownCriticalFact: one of a later version.
            StoreError: one that cannot be read.
        """
        for kind in {fact[1] for fact in facts}:
            if not is_known(kind):
                raise UnknownCriticalFact(f"the log holds a '{kind}' fact, which this version of thence does not know")
        restored = None if kept is None else _restored(kept, facts, blobs)
        if restored is not None and kept is not None:
            self.state = restored
            rest = facts[kept.seq :]
        else:
            rest = facts
        for fact in rest:
            self.state = advance(self.state, new_fact(fact, blobs))
        self.transcript.add_stored(facts, blobs)
        self.head = head
        for fact in facts:
            if fact[1] == "user.message" and '"request_id"' in fact[7]:
                self._note_request(new_fact(fact, blobs).payload)
        for fact in reversed(facts):
            if fact[1] == "model.turn":
                self.answer_hash = fact[6]
                break


def _restored(kept: KeptState, facts: Sequence[StoredFact], blobs: Blobs) -> State | None:
    """The kept state, if it is that of the first ``kept.seq`` of ``facts``, a log's beginning."""
    if not 0 < kept.seq <= len(facts):
        return None
    config = _newest("run.configured", kept.seq, facts, blobs)
    answer = _newest("model.turn", kept.seq, facts, blobs)
    return restore_state(
        kept,
        facts[kept.seq - 1][6],
        config if isinstance(config, Configured) else None,
        answer if isinstance(answer, Answered) else None,
    )


def _newest(kind: str, seq: int, facts: Sequence[StoredFact], blobs: Blobs) -> Payload | None:
    for index in range(seq - 1, -1, -1):
        if facts[index][1] == kind:
            return new_fact(facts[index], blobs).payload
    return None
