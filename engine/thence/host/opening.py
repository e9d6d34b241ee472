"""Opening a session: a new one, or one that the file holds (§1, §3). Flows, driven by either face."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import reads, sessions
from ..effects import Commit, Flow, Read
from ..errors import SessionNotFound, StoreError
from ..identity import check_id, check_memory_on_resume
from ..limits import Retention
from ..models.resolve import resolve_model
from ..options import Chosen, check_required, limits_of
from ..pages import RESTORE
from ..plan import Op, Plan, PlanRefused
from ..reads import SessionRow
from ..rows import encode_row
from .core import AgentCore, SessionCore
from .env import HostEnv, build_env, distinct
from .guard import Guarded
from .guard_process import ProcessGuard, isolated
from .scoping import check_seen, must_see


def open_session(
    agent: AgentCore, chosen: Chosen, workspace: str | os.PathLike[str] | None, *, must_exist: bool
) -> Flow[SessionCore]:
    """A session by its id, made if need be and allowed.

    Raises:
        SessionNotFound: ``must_exist``, and the file does not hold it; or it is none that the agent may see.
        SessionConfiguration: options that contradict the agent's scope, or what the file remembers.
    """
    chosen = replace(chosen, tags=agent.scope.over(chosen.tags))
    env = agent.env if chosen.host_env is None else build_env(chosen.host_env)
    model = agent.model if chosen.model is None else resolve_model(chosen.model)
    folder = None if workspace is None else check_workspace(workspace)
    held = isolated(chosen.guard, chosen.guard_isolation)
    session_id = chosen.session_id or (yield from _free_session_id(env))
    row = yield from Read(reads.session(session_id))
    if row is None and chosen.session_id is not None and (yield from Read(reads.session_without_index(session_id))):
        row = yield from Read(reads.session(session_id))  # somebody may have made it between the two looks
        if row is None:
            raise StoreError(f"session '{session_id}' is there, but its index does not know it; {RESTORE}")
    if row is None:
        if must_exist:
            raise SessionNotFound(session_id)
        row = yield from _create(agent, env, session_id, chosen, folder or check_workspace("."))
    else:
        row = yield from _reopen(chosen, check_seen(agent.scope, session_id, row), folder)
    guard = None if held is None else Guarded(held, limits_of(row.options).budget_guard_timeout_ms)
    if isinstance(held, ProcessGuard):
        agent.keep_guard(held)
        held.start()
    core = SessionCore(
        agent=agent,
        session_pk=row.session_pk,
        session_id=session_id,
        workspace=Path(row.workspace),
        tags=row.tags,
        shaping=row.options,
        env=env,
        model=model,
        guard=guard,
        permissions=chosen.permissions,
        requires=row.requires,
        verifier=chosen.verifier,
        guard_isolation=chosen.guard_isolation,
    )
    for hook in chosen.hooks:
        core.add_hook(hook)
    return core


def check_workspace(workspace: str | os.PathLike[str]) -> Path:
    """The absolute path of a workspace, which need not exist.

    Raises:
        TypeError: not a path.
        SessionConfiguration: blank, or with control characters.
    """
    if not isinstance(workspace, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'workspace' must be a path, not {type(workspace).__name__}")
    return Path(os.path.abspath(check_id(os.fspath(workspace), "workspace")))


def _free_session_id(env: HostEnv) -> Flow[str]:
    drawn = distinct(env.new_id)
    while True:
        session_id = next(drawn)
        if (yield from Read(reads.session(session_id))) is None:
            return session_id


def _create(agent: AgentCore, env: HostEnv, session_id: str, chosen: Chosen, folder: Path) -> Flow[SessionRow]:
    now = env.now_ms()  # of the session's own environment, which may not be the agent's
    plan = sessions.create_session(
        session_id=session_id,
        workspace=str(folder),
        tags=chosen.tags,
        created_ms=now,
        retention=chosen.retention or Retention(),
        options=encode_row(dict(chosen.shaping)),
        requires=encode_row(list(chosen.required())),
        durable_memory=None if chosen.memory is None else encode_row(asdict(chosen.memory)),
        lineage_id=env.lineage(),
        allow_network_fs=agent.store.allow_network_fs,
    )
    try:
        yield from Commit(plan)
    except PlanRefused as refused:
        if refused.code != "SESSION_EXISTS":
            raise
        # Somebody else made it between our look and our write: open theirs.
        return (yield from _reopen(chosen, (yield from must_see(agent.scope, session_id)), folder))
    return (yield from must_see(agent.scope, session_id))


def _reopen(chosen: Chosen, row: SessionRow, folder: Path | None) -> Flow[SessionRow]:
    check_memory_on_resume(row.durable_memory, chosen.memory)
    check_required(row.requires, chosen)
    tags = chosen.tags.over(row.tags)
    workspace = row.workspace if folder is None else str(folder)
    options: Mapping[str, Any] = {**row.options, **chosen.shaping}
    requires = tuple(sorted({*row.requires, *chosen.required()}))
    ops: list[Op] = []
    if tags != row.tags or workspace != row.workspace:
        # Only what is new: whoever relabels the session in this moment must not have it undone.
        ops.append(
            sessions.relabel_session(row.session_pk, None if folder is None else workspace, tags.beside(row.tags))
        )
    if options != row.options or requires != row.requires:
        ops.append(sessions.set_options(row.session_pk, encode_row(options), encode_row(requires)))
    if chosen.retention is not None and chosen.retention != row.retention:
        ops.append(sessions.set_caps(row.session_pk, chosen.retention))
    if ops:
        yield from Commit(Plan(tuple(ops), durable=True))
    return replace(row, tags=tags, workspace=workspace, options=dict(options), requires=requires)
