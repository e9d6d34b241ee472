"""Decisions as plans: how each thing that happens is written (§4, §5, §8). Values only; a store performs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .canonical import dumps
from .codec import Encoded, chain, encode
from .events import NewEvent
from .facts import GENESIS, Answered, NewFact
from .kept_state import keep_state
from .plan import Op, Params, Plan
from .rows import encode_row
from .state import State

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Head:
    """How far a branch has come."""

    seq: int = 0
    hash: bytes = GENESIS


BEGINNING = Head()


@dataclass(frozen=True, slots=True)
class RunIds:
    """Where a run writes: its session and branch, and the claim it writes under. ``run_pk`` is None before its row.

    ``head`` is where the branch had got to when the session was claimed.
    """

    session_pk: int
    session_id: str
    branch_pk: int
    run_id: str
    owner: str
    fence: int
    run_pk: int | None = None
    head: Head = BEGINNING


def release(ids: RunIds) -> Op:
    """The operation is over."""
    return Op("session_release", ({"session_pk": ids.session_pk, "owner": ids.owner, "fence": ids.fence},))


def begin_run(
    ids: RunIds, *, first_seq: int, input_sha256: str, prompt: str, now_ms: int, resumed_from: int | None = None
) -> tuple[Op, ...]:
    """A run's id, row and event numbering. The ``run_begin`` op returns its number."""
    identity: Params = {
        "run_id": ids.run_id,
        "session_pk": ids.session_pk,
        "first_seq": first_seq,
        "input_sha256": input_sha256,
        "resumed_from": resumed_from,
    }
    row: Params = {
        "run_id": ids.run_id,
        "fence": ids.fence,
        "status": "executing",
        "now_ms": now_ms,
        "prompt": prompt,
    }
    return (
        Op("run_identity_add", (identity,)),
        Op("stream_add", ({"run_id": ids.run_id},)),
        Op("run_begin", (row,), returning=True),
    )


def fork_branch(session_pk: int) -> tuple[Op, ...]:
    """The session's log goes on in a new branch from where it is. The ``branch_fork`` op returns its number."""
    by_session: Params = {"session_pk": session_pk}
    return (
        Op("branch_fork", (by_session,), expect=1, returning=True),
        Op("ancestry_fork", (by_session,)),
        Op("session_go_live_again", (by_session,)),
    )


def append(ids: RunIds, head: Head, facts: Iterable[NewFact], now_ms: int) -> tuple[tuple[Op, ...], Head, bytes | None]:
    """Facts at the head of the run's branch, in order; where the head is then; and the hash of the last model's answer
    among them, if there is one."""
    answer_hash: bytes | None = None
    rows: list[Params] = []
    blobs: dict[str, bytes] = {}
    for fact in facts:
        encoded = encode(fact.payload)
        blobs.update(encoded.blobs)
        seq = head.seq + 1
        digest = chain(head.hash, seq, encoded.kind, fact.key, fact.cause, encoded.text)
        rows.append(_fact_row(ids, fact, encoded, seq, head.hash, digest, now_ms))
        head = Head(seq, digest)
        if isinstance(fact.payload, Answered):
            answer_hash = digest
    return (*keep_blobs(ids.session_pk, blobs), Op("fact_append", tuple(rows))), head, answer_hash


def _fact_row(
    ids: RunIds, fact: NewFact, encoded: Encoded, seq: int, prev_hash: bytes, digest: bytes, now_ms: int
) -> Params:
    return {
        "branch_pk": ids.branch_pk,
        "seq": seq,
        "run_pk": ids.run_pk,
        "run_id": ids.run_id,
        "fence": ids.fence,
        "ts_ms": now_ms,
        "kind": encoded.kind,
        "key": fact.key,
        "cause": fact.cause,
        "prev_hash": prev_hash,
        "hash": digest,
        "blobs": dumps(sorted(encoded.blobs)) if encoded.blobs else None,
        "payload": encoded.text,
    }


def keep_blobs(session_pk: int, blobs: Mapping[str, bytes]) -> tuple[Op, ...]:
    """Bytes into the blob table, once in the file, for as long as the session lives."""
    if not blobs:
        return ()
    add = tuple[Params, ...]({"sha256": sha, "size": len(data), "bytes": data} for sha, data in blobs.items())
    refs = tuple[Params, ...]({"session_pk": session_pk, "sha256": sha} for sha in blobs)
    return (Op("blob_add", add), Op("blob_ref_add", refs))


def record_events(ids: RunIds, events: Sequence[NewEvent], now_ms: int) -> tuple[Op, ...]:
    """Events of the run; SQLite numbers them."""
    if not events:
        return ()
    rows = tuple[Params, ...](
        {
            "stream_pk": ids.run_pk,
            "run_id": ids.run_id,
            "fence": ids.fence,
            "ts_ms": now_ms,
            "type": event.type,
            "payload": encode_row(event.payload),
        }
        for event in events
    )
    return (Op("event_append", rows),)


def trace_call(ids: RunIds, name: str, payload: Mapping[str, object], now_ms: int) -> Op:
    """What one tool run cost."""
    row: Params = {
        "session_pk": ids.session_pk,
        "run_pk": ids.run_pk,
        "fence": ids.fence,
        "ts_ms": now_ms,
        "kind": "tool_execution",
        "name": name,
        "payload": encode_row(payload),
    }
    return Op("trace_append", (row,))


def checkpoint(ids: RunIds, head: Head, state: State, now_ms: int) -> Op:
    """How far the run has come: a cursor, whose size does not grow, with the state of the log's fold up to there."""
    counters = {
        "turn": state.turn,
        "request": state.request,
        "tool_calls": state.tool_calls,
        "continuations": state.continuations,
        "malformed": state.loop.malformed,
        "without_usage": state.without_usage,
    }
    text, proof = keep_state(state, head.hash) or (None, None)
    row: Params = {
        "run_pk": ids.run_pk,
        "session_pk": ids.session_pk,
        "branch_pk": ids.branch_pk,
        "seq": head.seq,
        "round": state.rounds,
        "fence": ids.fence,
        "ts_ms": now_ms,
        "schema_version": SCHEMA_VERSION,
        "counters": encode_row(counters),
        "usage": encode_row(state.usage.to_dict()),
        "state": text,
        "proof": proof,
    }
    return Op("checkpoint_put", (row,))


def clear_deltas(ids: RunIds, step: str) -> Op:
    """The answer or result is recorded: its pieces are void."""
    return Op("delta_clear", ({"stream_pk": ids.run_pk, "step": step},))


def clear_all_deltas(ids: RunIds) -> Op:
    """The run parks: no piece of it is of use any more."""
    return Op("delta_clear_all", ({"stream_pk": ids.run_pk},))


def add_deltas(ids: RunIds, first: int, deltas: Sequence[tuple[str, str, Mapping[str, object]]]) -> Plan:
    """Provisional pieces of an answer or an output, for readers in other processes; numbered from ``first``."""
    rows = tuple[Params, ...](
        {
            "stream_pk": ids.run_pk,
            "fence": ids.fence,
            "number": number,
            "step": step,
            "type": kind,
            "payload": encode_row(payload),
        }
        for number, (step, kind, payload) in enumerate(deltas, first)
    )
    return Plan((Op("delta_add", rows),))


def set_status(ids: RunIds, status: str, now_ms: int) -> Op:
    """What the run is about to do, for whoever looks."""
    row: Params = {"run_pk": ids.run_pk, "fence": ids.fence, "status": status, "now_ms": now_ms}
    return Op("run_set_status", (row,))


def end_run(
    ids: RunIds,
    state: State,
    *,
    status: str,
    now_ms: int,
    text: str | None,
    error: tuple[str, str] | None = None,
    resumable: bool = False,
    failed_requests: int = 0,
) -> Op:
    """The run's last word, with its totals. A run with a message to read does not complete: ``STEERED``."""
    row: Params = {
        "run_pk": ids.run_pk,
        "fence": ids.fence,
        "status": status,
        "now_ms": now_ms,
        "rounds": state.rounds,
        "tool_calls_count": state.tool_calls,
        **state.usage.to_dict(),
        "requests_without_usage": state.without_usage + failed_requests,
        "resumable": int(resumable),
        "error_code": error[0] if error else None,
        "error_message": error[1] if error else None,
        "result_text": text,
    }
    return Op("run_end", (row,), expect=1 if status == "completed" else None, refusal="STEERED")


def count_unknown(ids: RunIds, *, at_least: int = 0, more: int = 0) -> Op:
    """How many requests of a run, which does not end with this, have an unknown cost; nothing where its row is gone."""
    return Op("run_count_unknown", ({"run_pk": ids.run_pk, "fence": ids.fence, "at_least": at_least, "more": more},))


def forget_checkpoint(ids: RunIds) -> Op:
    """The turn was closed by a later one: nothing is left to resume."""
    return Op("run_forget_checkpoint", ({"session_pk": ids.session_pk},))
