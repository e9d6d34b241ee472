"""What is there for an agent: sessions that its scope sees, and nothing of any other (§1, §3). Flows for both faces.

Whoever looks up a session by an id that a caller gave does it here. What decides is :meth:`thence.identity.Scope.sees`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from .. import reads
from ..effects import Flow, Read
from ..errors import SessionNotFound
from ..identity import Scope
from ..reads import SessionRow

R = TypeVar("R")


def seen(scope: Scope, session_id: str) -> Flow[SessionRow | None]:
    """The session, or None when there is none for this scope."""
    row = yield from Read(reads.session(session_id))
    return row if row is not None and scope.sees(row.tags) else None


def must_see(scope: Scope, session_id: str) -> Flow[SessionRow]:
    """The session. Raises SessionNotFound, with the same words whether there is none or it is another's."""
    return check_seen(scope, session_id, (yield from Read(reads.session(session_id))))


def check_seen(scope: Scope, session_id: str, row: SessionRow | None) -> SessionRow:
    """The row of a session, if there is one for this scope. Raises SessionNotFound."""
    if row is None or not scope.sees(row.tags):
        raise SessionNotFound(session_id)
    return row


def all_seen(scope: Scope, session_ids: Iterable[str]) -> Flow[set[str]]:
    """Those of the sessions that the scope sees."""
    found = set(session_ids)
    if not scope.tags:
        return found
    for session_id in sorted(found):
        if (yield from seen(scope, session_id)) is None:
            found.discard(session_id)
    return found


def within(scope: Scope, session_id: str, flow: Flow[R]) -> Flow[R]:
    """``flow`` of an open session, unless somebody has relabelled it since: then it is not there any more."""
    return _checked(scope, session_id, flow) if scope.tags else flow


def _checked(scope: Scope, session_id: str, flow: Flow[R]) -> Flow[R]:
    yield from must_see(scope, session_id)
    return (yield from flow)
