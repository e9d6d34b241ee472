"""Decisions as plans: how each thing that happens is written (§4, §5, §8). Values only; a store performs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .canonical import dumps
from .codec import Encoded, chain, encode, encode_result, encode_row
from .events import NewEvent
from .facts import GENESIS, NewFact, Returned
from .fold import State
from .identity import Tags
from .limits import Retention
from .plan import Op, Params, Plan, SqlValue
from .steps import OpenCall, Traits

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunIds:
    """Where a run writes: its session and branch, and the claim it writes under. ``run_pk`` is None until its row is."""

    session_pk: int
    session_id: str
    branch_pk: int
    run_id: str
    owner: str
    fence: int
    run_pk: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """How far a branch has come."""

    seq: int = 0
    hash: bytes = GENESIS


def create_session(
    *,
    session_id: str,
    workspace: str,
    tags: Tags,
    created_ms: int,
    retention: Retention,
    options: str,
    requires: str,
    durable_memory: str | None,
    lineage_id: str,
    allow_network_fs: bool,
    forked_from: str | None = None,
) -> Plan:
    """A new session with an empty log; refused with SESSION_EXISTS when the id is taken."""
    by_id: Params = {"session_id": session_id}
    row: dict[str, SqlValue] = {
        "session_id": session_id,
        "workspace": workspace,
        "tenant_id": tags.tenant_id,
        "principal": tags.principal,
        "agent_template_id": tags.agent_template_id,
        "correlation_id": tags.correlation_id,
        "created_ms": created_ms,
        "forked_from": forked_from,
        **retention.to_dict(),
    }
    file: Params = {"lineage_id": lineage_id, "created_ms": created_ms, "allow_network_fs": int(allow_network_fs)}
    stored: Params = {**by_id, "options": options, "requires": requires, "durable_memory": durable_memory}
    return Plan(
        (
            Op("file_add", (file,)),
            Op("session_add", (row,)),
            Op("branch_first", (by_id,)),
            Op("session_go_live", (by_id,)),
            Op("session_option_add", (stored,)),
            Op("stream_add_channel", (by_id,)),
        ),
        durable=True,
    )


def relabel_session(session_pk: int, workspace: str, tags: Tags) -> Op:
    """Tags and workspace given anew on resume."""
    row: Params = {
        "session_pk": session_pk,
        "workspace": workspace,
        "tenant_id": tags.tenant_id,
        "principal": tags.principal,
        "agent_template_id": tags.agent_template_id,
        "correlation_id": tags.correlation_id,
    }
    return Op("session_relabel", (row,))


def set_caps(session_pk: int, retention: Retention) -> Op:
    """Retention caps given anew."""
    return Op("session_caps", ({"session_pk": session_pk, **retention.to_dict()},))


def claim(session_pk: int, owner: str, dead_owner: str | None) -> Plan:
    """Become the one who may write; refused with SESSION_BUSY. Returns (fence, live_branch)."""
    row: Params = {"session_pk": session_pk, "owner": owner, "dead_owner": dead_owner}
    return Plan((Op("session_claim", (row,), expect=1, refusal="SESSION_BUSY", returning=True),))


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
        "branch_pk": ids.branch_pk,
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


def append(ids: RunIds, head: Head, facts: Iterable[NewFact], now_ms: int) -> tuple[tuple[Op, ...], Head]:
    """Facts at the head of the run's branch, in order; and where the head is then."""
    rows: list[Params] = []
    blobs: dict[str, bytes] = {}
    for fact in facts:
        encoded = encode(fact.payload)
        blobs.update(encoded.blobs)
        seq = head.seq + 1
        digest = chain(head.hash, seq, encoded.kind, fact.key, fact.cause, encoded.text)
        rows.append(_fact_row(ids, fact, encoded, seq, head.hash, digest, now_ms))
        head = Head(seq, digest)
    return (*keep_blobs(ids.session_pk, blobs), Op("fact_append", tuple(rows))), head


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


def start_calls(ids: RunIds, calls: Sequence[OpenCall], tools: Mapping[str, Traits], now_ms: int) -> Op:
    """From here on a crash leaves a trace of these calls."""
    rows = tuple[Params, ...](
        {
            "session_pk": ids.session_pk,
            "run_pk": ids.run_pk,
            "fence": ids.fence,
            "call_key": call.key,
            "position": call.position,
            "tool": call.call.name,
            "effect": tools[call.call.name].effect,
            "started_ms": now_ms,
        }
        for call in calls
    )
    return Op("inflight_start", rows)


def land_call(ids: RunIds, result: Returned, now_ms: int) -> tuple[Op, ...]:
    """A call's result, durable before its batch is complete."""
    text, blobs = encode_result(result)
    row: Params = {
        "session_pk": ids.session_pk,
        "call_key": result.call_key,
        "fence": ids.fence,
        "landed_ms": now_ms,
        "result": text,
        "blobs": dumps(sorted(blobs)) if blobs else None,
    }
    return (*keep_blobs(ids.session_pk, blobs), Op("inflight_land", (row,), expect=1, refusal="OWNERSHIP_LOST"))


def clear_calls(ids: RunIds) -> Op:
    """The results are facts now."""
    return Op("inflight_clear", ({"session_pk": ids.session_pk},))


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
    """How far the run has come. A cursor: its size does not grow."""
    counters = {
        "turn": state.turn,
        "request": state.request,
        "tool_calls": state.tool_calls,
        "continuations": state.continuations,
        "malformed": state.loop.malformed,
        "without_usage": state.without_usage,
    }
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
    }
    return Op("checkpoint_put", (row,))


def clear_deltas(ids: RunIds, step: str) -> Op:
    """The answer or result is recorded: its pieces are void."""
    return Op("delta_clear", ({"stream_pk": ids.run_pk, "step": step},))


def add_deltas(ids: RunIds, step: str, first: int, deltas: Sequence[tuple[str, Mapping[str, object]]]) -> Plan:
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
        for number, (kind, payload) in enumerate(deltas, first)
    )
    return Plan((Op("delta_add", rows),))


def end_run(
    ids: RunIds,
    state: State,
    *,
    status: str,
    now_ms: int,
    text: str | None,
    error: tuple[str, str] | None = None,
    resumable: bool = False,
) -> Op:
    """The run's last word, with its totals."""
    row: Params = {
        "run_pk": ids.run_pk,
        "fence": ids.fence,
        "status": status,
        "now_ms": now_ms,
        "rounds": state.rounds,
        "tool_calls_count": state.tool_calls,
        **state.usage.to_dict(),
        "requests_without_usage": state.without_usage,
        "resumable": int(resumable),
        "error_code": error[0] if error else None,
        "error_message": error[1] if error else None,
        "result_text": text,
    }
    return Op("run_end", (row,))


def tell_owner(
    stream_pk: int, kind: str, payload: Mapping[str, object], *, now_ms: int, type: str = "", request_id: str | None = None
) -> Plan:
    """An inbox row for whoever owns the session: an event, a cancel, an interrupt."""
    row: Params = {
        "stream_pk": stream_pk,
        "kind": kind,
        "request_id": request_id,
        "ts_ms": now_ms,
        "type": type or kind,
        "payload": encode_row(payload),
    }
    return Plan((Op("inbox_add", (row,)),), durable=True)


def take_inbox(ids: RunIds, rows: Sequence[tuple[int, int, str, str]], now_ms: int) -> Plan:
    """Turn waiting events (inbox number, stream, type, payload text) into recorded ones; drop the inbox rows."""
    events = tuple[Params, ...](
        {
            "stream_pk": stream_pk,
            "run_id": None,
            "fence": ids.fence,
            "ts_ms": now_ms,
            "type": type_,
            "payload": payload,
        }
        for _, stream_pk, type_, payload in rows
    )
    return Plan((Op("event_append", events), drop_inbox([number for number, *_ in rows])))


def drop_inbox(numbers: Sequence[int]) -> Op:
    """These inbox rows have been dealt with."""
    return Op("inbox_remove", tuple[Params, ...]({"inbox_pk": number} for number in numbers))


def forget_checkpoint(ids: RunIds) -> Op:
    """The turn was closed by a later one: nothing is left to resume."""
    return Op("run_forget_checkpoint", ({"session_pk": ids.session_pk},))


def set_options(session_pk: int, options: str, requires: str) -> Op:
    """Options given anew when the session was opened again."""
    return Op("session_option_update", ({"session_pk": session_pk, "options": options, "requires": requires},))
