"""The completion gate at the end of a turn (§5): verify what it changed and record the report, or say what is missing.

A report is staged, not written: it goes into the commit that ends the run, one way or the other.
"""

from __future__ import annotations

from . import writes
from .effects import Flow, Now, RunVerification, SafePoint, Stopped
from .errors import GateClosed
from .facts import Reported, turn_key
from .ledger import Ledger

NOTHING_VERIFIES = "this session has nothing that verifies them: report a verification or waive the digest, then resume"
FIX_OR_WAIVE = "correct it and resume the run, or waive the digest and resume"


def pass_gate(ledger: Ledger, digest: str) -> Flow[Stopped | GateClosed | None]:
    """Verify the changes known by ``digest``. None: the gate is open; otherwise why the run stops here."""
    ids, state = ledger.ids, ledger.log.state
    if not ledger.setup.verifies:
        return GateClosed(digest, NOTHING_VERIFIES, run_id=ids.run_id)
    stopped = yield from SafePoint()
    if stopped is not None:
        return stopped
    now = yield from Now()
    ledger.also(writes.set_status(ids, "verifying", now))
    yield from ledger.flush()
    said = yield from RunVerification(turn_key(state.turn), digest, state.text)
    if isinstance(said, Stopped):
        return said
    key = f"{turn_key(state.turn)}-verify{state.gate.reports + 1}"
    ledger.stage(key, f"verify:{key}", Reported(digest, said.passed, said.report))
    if said.passed:
        return None
    return GateClosed(digest, f"the verification failed ({said.why}): {FIX_OR_WAIVE}", run_id=ids.run_id)
