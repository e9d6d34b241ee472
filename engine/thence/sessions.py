"""Sessions in the file: made, opened again with new options, claimed (§1, §3, §8, §9). Values only."""

from __future__ import annotations

from .identity import Tags
from .limits import Retention
from .plan import Op, Params, Plan, SqlValue


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


def relabel_session(session_pk: int, workspace: str | None, tags: Tags) -> Op:
    """Tags and workspace given anew on resume; what is None stays as it is."""
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


def claim(session_pk: int, owner: str, dead_owner: str | None, *, force: bool = False) -> Plan:
    """Become the one who may write; refused with SESSION_BUSY. Returns (fence, live_branch, head_seq, head_hash).

    ``dead_owner`` is one whose lock was found free. ``force`` displaces whoever it is, also a living one.
    """
    row: Params = {"session_pk": session_pk, "owner": owner, "dead_owner": dead_owner, "force": int(force)}
    return Plan((Op("session_claim", (row,), expect=1, refusal="SESSION_BUSY", returning=True),))


def set_options(session_pk: int, options: str, requires: str) -> Op:
    """Options given anew when the session was opened again."""
    return Op("session_option_update", ({"session_pk": session_pk, "options": options, "requires": requires},))
