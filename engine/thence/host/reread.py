"""``read_output``: the rest of a tool result that a model was shown only in part (§5)."""

from __future__ import annotations

from .. import reads
from ..facts import Returned
from ..plan import Store
from .output import MAX_KEPT_BYTES
from .toolkit import Tool, describe, tool

NAME = "read_output"
PIECE_BYTES = 16_384


def reread_tool(store: Store, session_pk: int, session_id: str) -> Tool:
    """The tool for one session. It reads the file on its own thread; offered once there is something to read."""

    @tool(effect="read", name=NAME)
    def read_output(call: str, offset: int = 0) -> str:
        """Read on in the output of an earlier call that was shown only in part.

        `call` is the call's key as the marker names it, `offset` the byte to start at.
        """
        row = store.read(reads.session(session_id))
        found = None if row is None else store.read(reads.fact_by_key(row.live_branch, call))
        payload = None if found is None else found.fact.payload
        if not isinstance(payload, Returned):
            raise LookupError(f"there is no result of a call '{call}'")  # noqa: TRY004 - nothing is of a wrong type
        output = payload.metadata.get("output")
        if not isinstance(output, dict):
            raise LookupError(f"the result of '{call}' was shown whole")  # noqa: TRY004 - nothing is of a wrong type
        data = store.read(reads.blob(session_pk, str(output["sha256"])))
        if data is None:
            raise LookupError(f"the output of '{call}' was over {MAX_KEPT_BYTES} bytes and was not kept")
        start = min(max(offset, 0), len(data))
        end = min(start + PIECE_BYTES, len(data))
        text = data[start:end].decode("utf-8", "ignore")
        more = f"\n[bytes {start} to {end} of {len(data)}; go on with offset {end}]" if end < len(data) else ""
        return text + more

    return describe(read_output)
