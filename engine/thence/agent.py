"""An agent: one file, a model, some tools, and the sessions that run on them. In two faces (§1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self, TypeVar

from .async_session import AsyncSession
from .canonical import Json, check_text
from .chat import Model
from .diagnosis import Diagnosis
from .effects import Flow
from .errors import SessionClosed
from .host import operations as ops
from .host.accounting import session_usage
from .host.core import AgentCore, new_owner
from .host.doctor import diagnose_all
from .host.drive import AsyncMailbox, SyncMailbox, adrive, drive
from .host.env import HostEnv, HostEnvConfig, build_env
from .host.guard import stuck_threads
from .host.leaving import close_now, close_soon, watch_exit
from .host.opening import open_session
from .host.parking import all_waits
from .host.passivating import passivate_now, passivate_soon
from .host.plain_world import PlainWorld
from .host.recovering import interrupted
from .host.spawned import Recovered
from .host.toolkit import Tool, collect
from .identity import check_tags
from .models.resolve import resolve_model
from .options import check_bool, check_chooser, check_db, check_settings, choose, choose_for
from .results import Passivated
from .runs import SessionInfo, SessionUsage
from .session import Session
from .session_options import SessionOptions
from .store.sqlite import Durability, SqliteStore
from .waits import Wait

R = TypeVar("R")
Workspace = str | Path


class _AgentBase:
    """Opens the file and checks the agent's own settings; nothing is written when one is refused.

    Args:
        db: path of the database file, made with mode 0600 when it is not there; None keeps all in memory (one process,
            nothing survives it). SQLite's own ``":memory:"`` and ``file:`` addresses are refused.
        model: a model object, or ``"openai:NAME"`` or ``"local"``; without one, sessions can be read but not run.
        tools: exactly these callables; ``workspace_tools()`` gives the built-in ones.
        instructions: the system message.
        model_settings: passed to the provider as they are (temperature, ...).
        host_env: where ids and times come from (§11). Default: random ids and the machine's clock.
        durability: ``power`` (default): what is acknowledged survives a power cut; ``process``: only the death of the
            process.
        allow_network_fs: accept a file system whose locks cannot be relied on; recorded in a new file.

    Raises:
        ToolError: a tool that cannot be described, or two of one name.
        FileRefused: the path is not a database of ours, or cannot be one.
        StoreError: the file cannot be opened.
    """

    def __init__(
        self,
        db: str | Path | None,
        *,
        model: Model | str | None = None,
        tools: Iterable[Callable[..., object] | Tool] = (),
        instructions: str = "",
        model_settings: Mapping[str, Json] | None = None,
        host_env: HostEnv | HostEnvConfig | None = None,
        durability: Durability = "power",
        allow_network_fs: bool = False,
    ) -> None:
        if not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"'instructions' must be a string, not {type(instructions).__name__}")
        check_db(db)
        check_bool("allow_network_fs", allow_network_fs)
        if not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"'tools' must be an iterable of callables, not {type(tools).__name__}")
        chosen = None if model is None else resolve_model(model)
        described = collect(tools)
        env = build_env(host_env)
        settings = check_settings(model_settings or {})
        check_text(instructions, "instructions")
        store = SqliteStore(db, new_owner(), durability=durability, allow_network_fs=allow_network_fs)
        self._core = AgentCore(store, env, chosen, described, instructions, settings, owns_model=isinstance(model, str))
        watch_exit(self._core)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def scoped(self, **tags: str | None) -> Self:
        """An agent that sees only sessions with exactly these tags; any other is ``Session not found`` (§1, §3).

        New sessions get these tags, and none can be given others. It shares file, model and tools with this agent and
        ends with it; closing it, which is optional, ends only what was started through it.

        Args:
            tags: one at least, by name, as for ``list_sessions``: None is untagged, a tag that is not named may be
                anything. A scoped agent can be scoped further, never wider.

        Raises:
            TypeError: no tag, an unknown one, or one that is no string.
            SessionConfiguration: a tag that cannot be one, or that contradicts this agent's own scope.
            SessionClosed: this agent was closed.
        """
        self._check_open()
        if not tags:
            raise TypeError("scoped() needs at least one tag")
        narrowed = copy.copy(self)
        narrowed._core = self._core.scoped(check_tags(tags))
        return narrowed

    def _check_open(self) -> None:
        if self._core.closed:
            raise SessionClosed(None)


class Agent(_AgentBase):
    """An agent on one file, blocking face. A context manager."""

    def _do(self, flow: Flow[R]) -> R:
        self._check_open()
        core = self._core
        return drive(flow, core.store, PlainWorld(core.env), SyncMailbox(), core.workers)

    def session(self, workspace: Workspace | None = None, options: SessionOptions | None = None) -> Session:
        """A new session, or the one that the file holds under ``options.session_id`` (§1).

        Args:
            workspace: the folder that tools work in; stored absolute, need not exist. Default: the current folder for a
                new session, what is stored for another.
            options: what to set; see :class:`~thence.SessionOptions`.

        Raises:
            SessionConfiguration, TypeError: a refused option, before anything is written.
            SessionNotFound: the agent is scoped, and the id is taken by a session that it does not see.
            SessionClosed: the agent was closed.
        """
        chosen = choose(options)
        return Session(self._do(open_session(self._core, chosen, workspace, must_exist=False)))

    def resume_session(
        self, session_id: str, options: SessionOptions | None = None, *, workspace: Workspace | None = None
    ) -> Session:
        """The session that the file holds under this id.

        Raises:
            SessionNotFound: ``Session not found: <id>``.
            SessionConfiguration, TypeError: as :meth:`session`.
        """
        chosen = choose_for(session_id, options)
        return Session(self._do(open_session(self._core, chosen, workspace, must_exist=True)))

    def list_sessions(self, **tags: str | None) -> list[SessionInfo]:
        """Sessions of the file, oldest first. Tags by name filter by equality; None means untagged only."""
        return self._do(ops.list_sessions(self._core, tags))

    def waits(self) -> list[Wait]:
        """What runs of all sessions wait for, or have been answered and not acted on yet; oldest first (§10)."""
        return self._do(all_waits(self._core))

    def usage(self, session_id: str) -> SessionUsage:
        """What a session's model requests took, by its facts; and of how many nobody knows (§6).

        Raises:
            SessionNotFound: no such session: that is not the same as one that took nothing.
        """
        return self._do(session_usage(self._core.scope, session_id))

    def doctor(self) -> Diagnosis:
        """Look at the health of the file and of this process (§6, §13). Reads only.

        The linked SQLite, the WAL, owners alive and dead, runs that can be resumed, open waits, guard calls that hang.

        Raises:
            SessionError: on a scoped agent: all of this is of the whole file.
        """
        return self._do(diagnose_all(self._core.scope, self._core.store.path, stuck_threads()))

    def recover(self, options: Callable[[str], SessionOptions] | None = None) -> list[Recovered]:
        """Resume every run of the file that has neither ended nor a living owner, and every parked one whose waits are
        all answered, one after the other (§7).

        Args:
            options: gives the options of a session by its id: needed for sessions that had a budget guard.

        Returns:
            One entry a run: its result, or the error that stopped it. An error of one does not keep the others.

        Raises:
            TypeError: ``options`` cannot be called.
        """
        check_chooser(options)
        found = self._do(interrupted(self._core))
        return [self._recover(session_id, run_id, options) for session_id, run_id in found]

    def _recover(self, session_id: str, run_id: str, options: Callable[[str], SessionOptions] | None) -> Recovered:
        try:
            session = self.resume_session(session_id, options(session_id) if options else None)
            return Recovered(session_id, run_id, session.resume_run(run_id))
        except Exception as error:  # noqa: BLE001 - told beside the others' results
            return Recovered(session_id, run_id, error=error)

    def passivate(self, deadline_ms: int | None = None) -> Passivated:
        """Let all sessions go that this agent runs, close it, and say whether its file can be copied as it is (§8).

        Args:
            deadline_ms: as for :meth:`thence.Session.passivate`.

        Raises:
            SessionClosed: the agent was closed before.
        """
        self._check_open()
        return passivate_now(self._core, deadline_ms)

    def close(self) -> None:
        """Interrupt what is live, wait until it has let go, fold the WAL in and close the file. Idempotent."""
        close_now(self._core)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncAgent(_AgentBase):
    """An agent on one file, async face: the same methods, awaited where they touch the file."""

    async def _do(self, flow: Flow[R]) -> R:
        self._check_open()
        core = self._core
        return await adrive(flow, core.store, PlainWorld(core.env), AsyncMailbox.here(), core.workers)

    async def session(self, workspace: Workspace | None = None, options: SessionOptions | None = None) -> AsyncSession:
        """See :meth:`Agent.session`."""
        chosen = choose(options)
        return AsyncSession(await self._do(open_session(self._core, chosen, workspace, must_exist=False)))

    async def resume_session(
        self, session_id: str, options: SessionOptions | None = None, *, workspace: Workspace | None = None
    ) -> AsyncSession:
        """See :meth:`Agent.resume_session`."""
        chosen = choose_for(session_id, options)
        return AsyncSession(await self._do(open_session(self._core, chosen, workspace, must_exist=True)))

    async def list_sessions(self, **tags: str | None) -> list[SessionInfo]:
        """See :meth:`Agent.list_sessions`."""
        return await self._do(ops.list_sessions(self._core, tags))

    async def waits(self) -> list[Wait]:
        """See :meth:`Agent.waits`."""
        return await self._do(all_waits(self._core))

    async def usage(self, session_id: str) -> SessionUsage:
        """See :meth:`Agent.usage`."""
        return await self._do(session_usage(self._core.scope, session_id))

    async def doctor(self) -> Diagnosis:
        """See :meth:`Agent.doctor`."""
        return await self._do(diagnose_all(self._core.scope, self._core.store.path, stuck_threads()))

    async def recover(self, options: Callable[[str], SessionOptions] | None = None) -> list[Recovered]:
        """See :meth:`Agent.recover`."""
        check_chooser(options)
        found = await self._do(interrupted(self._core))
        return [await self._recover(session_id, run_id, options) for session_id, run_id in found]

    async def _recover(
        self, session_id: str, run_id: str, options: Callable[[str], SessionOptions] | None
    ) -> Recovered:
        try:
            session = await self.resume_session(session_id, options(session_id) if options else None)
            return Recovered(session_id, run_id, await session.resume_run(run_id))
        except Exception as error:  # noqa: BLE001 - told beside the others' results
            return Recovered(session_id, run_id, error=error)

    async def passivate(self, deadline_ms: int | None = None) -> Passivated:
        """See :meth:`Agent.passivate`."""
        self._check_open()
        return await passivate_soon(self._core, deadline_ms)

    async def close(self) -> None:
        """See :meth:`Agent.close`."""
        await close_soon(self._core)

    async def __aenter__(self) -> AsyncAgent:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
