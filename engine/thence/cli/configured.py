"""What a run was configured with, and whether this command line has the same: going on with other things than a program
gave its run is for its user to say (§7, §13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .. import reads
from ..canonical import NotJson, loads
from ..errors import ThenceError
from ..host.toolkit import collect
from ..host.workspace import workspace_tools
from ..ledger import Setup, tool_schemas
from ..limits import Limits
from ..parts import blob_sha
from ..reads import SessionRow
from ..steps import Traits
from .looking import Look
from .options import Settings
from .text import visible


class OtherConfiguration(ThenceError):
    """The run had another model, other instructions, settings or tools than this command would go on with."""

    code = "OTHER_CONFIGURATION"

    def __init__(self, session_id: str, run_id: str, differences: Iterable[str], words: str) -> None:
        super().__init__(
            f"run {run_id} was begun with {'; '.join(differences)}. Resume it from the program that began it "
            f"(agent.recover(), or session.resume_run), or go on with what is here: {words}",
            run_id=run_id,
        )
        self.session_id = session_id


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest ``run.configured`` of a session; ``unfinished``: the log's last turn has no end."""

    model: str
    instructions_sha256: str
    settings: Any
    tools_sha256: str
    unfinished: bool


@dataclass(frozen=True)
class Here:
    """What this command would go on with: the model's name, and whether with ``workspace_tools()``.

    ``chosen``: the model was named on the command line, which is a word about it. ``reconfigured``: so was all else.
    ``unguarded``: what the session had of callables may be missing.
    """

    model: str
    tools: bool
    chosen: bool = False
    reconfigured: bool = False
    unguarded: bool = False

    @cached_property
    def tools_sha256(self) -> str:
        """The hash under which a run of ours records its tools."""
        return tools_hash(with_tools=self.tools)


def tools_hash(*, with_tools: bool) -> str:
    """SHA-256 of the tools of a run that this command line configures."""
    tools = collect(workspace_tools() if with_tools else ())
    specs = tuple(tool.spec for tool in tools.values())
    traits = {one.name: Traits(one.effect, one.repeatable, one.timeout_ms, one.workspace) for one in tools.values()}
    return blob_sha(tool_schemas(Setup("", "", {}, specs, traits, Limits())))


def recorded(look: Look, session: SessionRow) -> Recorded | None:
    """What the session's last run was configured with; None before the first one."""
    value: Mapping[str, Any] | None = None
    unfinished = False
    for fact in look.facts(session):
        if fact.kind == "run.configured":
            value = fact.value
        elif fact.kind in ("user.message", "turn.ended"):
            unfinished = fact.kind == "user.message"
    if value is None:
        return None
    # a hook's choice is not the host's: what counts is the model that the host had
    model = value.get("instead_of") or value.get("model")
    instructions = str(value.get("instructions_sha256") or _sha256(value.get("instructions")))
    return Recorded(str(model), instructions, value.get("settings"), str(value.get("tools_sha256")), unfinished)


def _sha256(text: object) -> str:
    return blob_sha(str(text or "").encode())


def _instructed_here(session: SessionRow) -> str:
    """Hash of the instructions that a command of ours gives: those that were stored with the session, or none."""
    return _sha256(session.options.get("instructions"))


def tool_names(look: Look, session: SessionRow, tools_sha256: str) -> list[str]:
    """Names of the tools that are recorded under a hash."""
    stored = look.ask(reads.blob(session.session_pk, tools_sha256))
    try:
        found = loads((stored or b"[]").decode())
    except (NotJson, UnicodeDecodeError):
        return []
    specs: list[Any] = found if isinstance(found, list) else []  # pyright: ignore[reportUnknownVariableType]
    return [str(spec["name"]) for spec in specs if "name" in spec]


def check_configuration(look: Look, session: SessionRow, run_id: str, here: Here) -> None:
    """See to it that the session's open turn goes on with what it was begun with.

    Raises:
        OtherConfiguration: it would not, and nobody said that it shall.
    """
    had = recorded(look, session)
    if had is None or not had.unfinished or here.reconfigured:
        return
    found: list[str] = []
    if had.model != here.model and not here.chosen:
        found.append(f"the model {had.model} (here: {here.model}; -m MODEL chooses it)")
    if had.instructions_sha256 != _instructed_here(session):
        found.append("instructions (here: none)")
    if had.settings != session.options.get("model_settings", {}):
        found.append("other model settings")
    if had.tools_sha256 != here.tools_sha256:
        found.append(_tools_differ(look, session, had.tools_sha256, here))
    if found:
        words = "--reconfigured"
        if session.requires and not here.unguarded:
            # that one would be refused next
            found.append(f"its own {', '.join(session.requires)}")
            words += " --unguarded"
        raise OtherConfiguration(session.session_id, run_id, found, words)


def _tools_differ(look: Look, session: SessionRow, tools_sha256: str, here: Here) -> str:
    theirs = ", ".join(tool_names(look, session, tools_sha256)) or "none"
    ours = ", ".join(collect(workspace_tools())) if here.tools else "none"
    return f"the tools {theirs} (here: {ours})" if theirs != ours else f"tools of the same names as here ({ours})"


def way_on(settings: Settings, look: Look, session: SessionRow, run_id: str) -> str:
    """How to go on with a run, as it is printed: a command, if a command line has what the run needs; else who has."""
    had = recorded(look, session)
    if had is not None and not session.requires and had.instructions_sha256 == _instructed_here(session):
        for words, with_tools in (((), True), (("--no-tools",), False)):
            if had.tools_sha256 == tools_hash(with_tools=with_tools):
                return settings.command("resume", run_id, *words)
    return visible(f"from the program that began it: agent.recover(), or session.resume_run('{run_id}')")
