"""What a session's model requests took, by its facts; and how many said nothing of it (§6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import reads
from ..chat import Usage
from ..compacted import Compacted
from ..effects import Flow, Read
from ..facts import Answered, Asked
from ..identity import Scope, check_id
from ..pages import PAGE
from ..reads import LoggedFact
from ..runs import Run, SessionUsage
from ..writes import BEGINNING, Head
from .scoping import must_see


def session_usage(scope: Scope, session_id: str) -> Flow[SessionUsage]:
    """Sum the usage of a session's answers, and of its summaries.

    Raises:
        SessionNotFound: no such session; never a sum of nothing.
    """
    row = yield from must_see(scope, check_id(session_id, "session_id"))
    count, after = _Count(), BEGINNING
    while True:
        page = yield from Read(reads.facts(row.live_branch, after, session_pk=row.session_pk))
        count.add(page)
        if len(page) < PAGE:
            break
        after = Head(page[-1].fact.seq, page[-1].hash)
    runs = yield from Read(reads.runs(row.session_pk))
    silent = count.silent + _failed_requests(runs, count.silent_at)
    return SessionUsage(session_id, count.known, silent, count.usage)


class _Count:
    """Answers so far. ``silent_at``: by run, how many of its turn's answers had no usage at its last fact."""

    def __init__(self) -> None:
        self.usage, self.known, self.silent = Usage(), 0, 0
        self.silent_at: dict[str, int] = {}
        self._before_turn = 0

    def add(self, page: Sequence[LoggedFact]) -> None:
        """Count a page of facts."""
        for one in page:
            payload = one.new.payload
            if isinstance(payload, Asked) and payload.origin == "host":
                self._before_turn = self.silent
            elif isinstance(payload, Answered | Compacted):
                self.known += payload.usage is not None
                self.silent += payload.usage is None
                self.usage = self.usage + (payload.usage or Usage())
            # A compaction that the host asked for came when its run had ended, and is not in the run's totals.
            asked_for = isinstance(payload, Compacted) and payload.trigger == "request"
            if one.fact.run_id is not None and not asked_for:
                self.silent_at[one.fact.run_id] = self.silent - self._before_turn


def _failed_requests(runs: Sequence[Run], silent_at: Mapping[str, int]) -> int:
    """Requests that were sent and failed: a run's row counts them together with its turn's answers without usage."""
    total = 0
    known = dict(silent_at)
    for run in runs:
        answers = known.get(run.id, known.get(run.resumed_from or "", 0))
        known[run.id] = answers
        total += max(0, run.requests_without_usage - answers)
    return total
