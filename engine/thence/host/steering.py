"""Saying something to a live run, of this or of another process: through its inbox in either case (§1, §8)."""

from __future__ import annotations

from .. import inbox
from ..effects import Commit, Flow, Now, Read
from ..identity import MAX_REQUEST_ID_BYTES, check_id
from .core import SessionCore, check_prompt
from .operations import current_run, stream_of


def steer(core: SessionCore, text: str, request_id: str | None) -> Flow[bool]:
    """Leave a message for the run that is live. Whether it is, SQLite decides once more as the message is written."""
    check_prompt(text, "text")
    if request_id is not None:
        check_id(request_id, "request_id", MAX_REQUEST_ID_BYTES)
    live = yield from current_run(core)
    stream = None if live is None else (yield from stream_of(core, live.id))
    if stream is None:
        return False
    now = yield from Now()
    left = yield from Commit(inbox.steer(stream, text, now_ms=now, request_id=request_id))
    if not left[0]:
        return request_id is not None and (yield from Read(inbox.request_known(core.session_pk, request_id)))
    operation = core.agent.live.get(core.session_id)
    if operation is not None:
        operation.look_again()
    return True
