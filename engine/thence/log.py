"""A session's log in memory: the fold and the transcript, grown fact by fact beside the file (§4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .codec import is_known
from .compacted import Compacted
from .errors import UnknownCriticalFact
from .facts import GENESIS, Answered, Asked, Configured, NewFact, Payload
from .fold import advance
from .kept_state import KeptState, restore_state
from .pages import StoredFact, new_fact, unreadable
from .parts import Blobs
from .state import State
from .state_json import decode_state
from .transcript import Transcript
from .writes import Head


class Log:
    """What the facts of one branch amount to. Nothing here folds or decodes a fact twice."""

    def __init__(self, branch_pk: int, session_pk: int | None = None) -> None:
        self.branch_pk, self.session_pk = branch_pk, session_pk
        self.state = State()
        self.transcript = Transcript()
        self.head = Head()
        self.seq = 0
        """Seq of the newest fact that was folded in, be it in the file yet or not."""
        self.compacted_at = 0
        """Seq of the newest compaction; 0 for none."""
        self.answer_hash = GENESIS
        """Chain hash at the newest model's answer: it names the calls of that answer in every copy of the log (§7)."""
        self.requests: dict[str, int] = {}
        """Request ids of the messages that a provider is still shown, and their seqs: the same request again says
        nothing new."""

    def add(self, facts: Iterable[NewFact]) -> None:
        """Fold ``facts`` in, in order.

        Raises:
            IllegalFact: one that cannot come here.
        """
        for fact in facts:
            self.state = advance(self.state, fact)
            self.seq += 1
            if isinstance(fact.payload, Compacted):
                self._compact(fact.payload, self.seq)
            else:
                self.transcript.advance(fact, self.seq)
                self._note_request(fact.payload, self.seq)

    @property
    def is_compacted(self) -> bool:
        """Whether nothing was said since the newest compaction, or ever."""
        return not len(self.transcript) or self.transcript.seq(-1) < self.compacted_at

    def _compact(self, fact: Compacted, seq: int) -> None:
        self.compacted_at = seq
        self.transcript = self.transcript.compacted(fact)
        self.requests = {request: seq for request, seq in self.requests.items() if seq >= fact.kept_from}

    def _note_request(self, payload: Payload, seq: int) -> None:
        if isinstance(payload, Asked) and payload.request_id is not None:
            self.requests[payload.request_id] = seq

    def add_stored(self, facts: Sequence[StoredFact], blobs: Blobs, head: Head, kept: KeptState | None = None) -> None:
        """Fold checked facts of the file in, in order; ``head`` is where they lead to.

        ``kept``, for a log that has just been opened, is a state that may stand for the first of them: up to where it
        stands they need not be folded.

        Raises:
            IllegalFact: one that cannot come here.
            UnknownCriticalFact: one of a later version.
            StoreError: one that cannot be read.
        """
        kinds = _known_kinds(facts)
        restored = None if kept is None else self._restored(kept, facts, blobs)
        if restored is not None and kept is not None:
            self.state = restored
            rest = facts[kept.seq - self.seq :]
        else:
            rest = facts
        for fact in rest:
            self.state = advance(self.state, new_fact(fact, blobs))
        start = 0
        if "compaction.done" in kinds:
            for index, fact in enumerate(facts):
                if fact[1] == "compaction.done":
                    self._show_stored(facts[start:index], blobs)
                    self._compact(_compacted(fact, blobs), fact[0])
                    start = index + 1
        self._show_stored(facts[start:] if start else facts, blobs)
        self.head, self.seq = head, head.seq
        self._note_answer(facts)

    def open_at(
        self,
        seq: int,
        message: Sequence[StoredFact],
        facts: Sequence[StoredFact],
        blobs: Blobs,
        head: Head,
        kept: KeptState | None = None,
    ) -> None:
        """Begin this empty log with the compaction at ``seq``: its state stands for all facts up to there.

        ``message`` is the message that it kept, if it kept one, and ``facts`` is what the file holds from its
        ``kept_from`` on. Raises what :meth:`add_stored` does.
        """
        at = seq - facts[0][0]
        fact = _compacted(facts[at], blobs)
        _known_kinds(facts[:at])
        self.state = decode_state(fact.state)
        self.transcript = Transcript(fact)
        self._show_stored([*message, *facts[:at]], blobs)
        self._note_answer(facts[:at])
        self.seq = self.compacted_at = seq
        self.add_stored(facts[at + 1 :], blobs, head, kept)

    def _show_stored(self, facts: Sequence[StoredFact], blobs: Blobs) -> None:
        self.transcript.add_stored(facts, blobs)
        for fact in facts:
            if fact[1] == "user.message" and '"request_id"' in fact[7]:
                self._note_request(new_fact(fact, blobs).payload, fact[0])

    def _note_answer(self, facts: Sequence[StoredFact]) -> None:
        for fact in reversed(facts):
            if fact[1] == "model.turn":
                self.answer_hash = fact[6]
                break

    def _restored(self, kept: KeptState, facts: Sequence[StoredFact], blobs: Blobs) -> State | None:
        """The kept state, if it is that of ``facts`` up to where it stands; what came before is folded already."""
        count = kept.seq - self.seq
        if not 0 < count <= len(facts):
            return None
        before = self.state
        config = _newest("run.configured", count, facts, blobs)
        answer = _newest("model.turn", count, facts, blobs)
        return restore_state(
            kept,
            facts[count - 1][6],
            config if isinstance(config, Configured) else before.config,
            answer if isinstance(answer, Answered) else Answered(before.text, stop_reason=before.stop_reason),
        )


def _known_kinds(facts: Sequence[StoredFact]) -> set[str]:
    kinds = {fact[1] for fact in facts}
    for kind in kinds:
        if not is_known(kind):
            raise UnknownCriticalFact(f"the log holds a '{kind}' fact, which this version of thence does not know")
    return kinds


def _compacted(fact: StoredFact, blobs: Blobs) -> Compacted:
    payload = new_fact(fact, blobs).payload
    if not isinstance(payload, Compacted):
        raise unreadable(fact[0], fact[2], TypeError("it is no compaction"))
    return payload


def _newest(kind: str, count: int, facts: Sequence[StoredFact], blobs: Blobs) -> Payload | None:
    for index in range(count - 1, -1, -1):
        if facts[index][1] == kind:
            return new_fact(facts[index], blobs).payload
    return None
