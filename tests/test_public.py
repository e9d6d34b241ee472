"""The public API: it is documented, it is what it says, and what the seed documents show runs as they show it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

import thence
import thence.testing
from thence import (
    Agent,
    AsyncAgent,
    AsyncSession,
    BudgetExhausted,
    HostEnvConfig,
    Session,
    SessionOptions,
    ThenceError,
)
from thence.facts import WaitKind
from thence.testing import ScriptedModel, call, reply

ALIASES = {"Model"}
"""Type aliases carry no docstring of their own."""

PUBLIC = [(f"thence.{name}", getattr(thence, name)) for name in thence.__all__ if name not in ALIASES]
PUBLIC += [(f"thence.testing.{name}", getattr(thence.testing, name)) for name in thence.testing.__all__]


@pytest.mark.parametrize(("name", "value"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_public_name_has_a_docstring(name: str, value: Any):
    own = value.__doc__ or ""
    assert own.strip(), f"{name} has no docstring"
    # A dataclass without one is given its own signature: that is no documentation.
    assert not own.startswith(f"{getattr(value, '__name__', '')}("), f"{name} has a made-up docstring"


VALUES = [(name, getattr(thence, name)) for name in thence.__all__ if is_dataclass(getattr(thence, name))]
ELSEWHERE = {"Hook": "register_hook"}
"""Whose docstring names where its fields are described."""


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_every_field_of_a_public_value_is_described(name: str, value: Any):
    own = value.__doc__ or ""
    if name in ELSEWHERE:
        assert ELSEWHERE[name] in own
        return
    named = [field.name for field in fields(value) if not field.name.startswith("_")]
    assert [word for word in named if not re.search(rf"\b{word}\b", own)] == []


def test_a_wait_says_its_kinds_and_a_binding_its_paragraph():
    kinds: tuple[str, ...] = get_args(WaitKind)
    assert [kind for kind in kinds if f"``{kind}``" not in (thence.Wait.__doc__ or "")] == []
    assert "§3" in (thence.DurableMemoryBinding.__doc__ or "")
    assert "<resume run=" in (thence.Run.__doc__ or "")


METHODS = [
    (f"{cls.__name__}.{name}", member)
    for cls in (Agent, AsyncAgent, Session, AsyncSession, SessionOptions)
    for name, member in inspect.getmembers(cls)
    if not name.startswith("_") and (callable(member) or isinstance(member, property))
]


@pytest.mark.parametrize(("name", "member"), METHODS, ids=[name for name, _ in METHODS])
def test_every_public_method_has_a_docstring(name: str, member: Any):
    assert (member.__doc__ or "").strip(), f"{name} has no docstring"


def test_all_is_sorted_complete_and_there():
    assert list(thence.__all__) == sorted(thence.__all__)
    for name in thence.__all__:
        assert hasattr(thence, name)
    errors = {n for n, v in vars(thence).items() if isinstance(v, type) and issubclass(v, ThenceError)}
    assert errors <= set(thence.__all__)


@pytest.mark.parametrize(("sync", "other"), [(Agent, AsyncAgent), (Session, AsyncSession)])
def test_both_faces_have_the_same_methods_with_the_same_parameters(sync: type, other: type):
    def methods(cls: type) -> dict[str, list[str]]:
        found = inspect.getmembers(cls, inspect.isfunction)
        return {n: list(inspect.signature(f).parameters) for n, f in found if not n.startswith("_")}

    assert methods(sync) == methods(other)


PLAIN = {"scoped", "set_budget_guard", "register_hook", "unregister_hook", "stream", "tail"}


def test_in_the_async_face_a_method_is_awaitable_iff_it_touches_the_file():
    for cls in (AsyncAgent, AsyncSession):
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                assert inspect.iscoroutinefunction(function) is (name not in PLAIN), f"{cls.__name__}.{name}"


SESSION = (
    "send", "stream", "history", "facts", "runs", "run_snapshot", "current_run", "run_events", "run_event_page",
    "tail", "events", "trace_events", "usage", "emit", "cancel", "cancel_run", "steer", "interrupt", "passivate",
    "waits", "answer", "confirm", "waive", "report_verification",
    "set_retention", "set_budget_guard", "register_hook", "unregister_hook", "close", "session_id", "workspace",
    "is_closed", "tenant_id", "principal", "agent_template_id", "correlation_id",
)  # fmt: skip
AGENT = ("session", "resume_session", "list_sessions", "scoped", "usage", "doctor", "passivate", "close", "is_closed")


@pytest.mark.parametrize("name", SESSION)
def test_a_session_has(name: str):
    assert hasattr(Session, name) and hasattr(AsyncSession, name)


@pytest.mark.parametrize("name", AGENT)
def test_an_agent_has(name: str):
    assert hasattr(Agent, name) and hasattr(AsyncAgent, name)


CODES = {
    "SessionBusy": "SESSION_BUSY", "SessionClosed": "SESSION_CLOSED", "SessionError": "SESSION_ERROR",
    "SessionConfiguration": "SESSION_CONFIGURATION_ERROR", "RunInterrupted": "RUN_INTERRUPTED",
    "BudgetExhausted": "BUDGET_EXHAUSTED", "RunIdentityConflict": "RUN_IDENTITY_CONFLICT",
    "ContextOverflow": "CONTEXT_OVERFLOW", "ModelError": "LLM_ERROR", "ToolError": "TOOL_ERROR",
    "StoreError": "STORE_ERROR", "DiskFull": "DISK_FULL", "FileReplaced": "FILE_REPLACED",
    "OwnershipLost": "OWNERSHIP_LOST", "SchemaChanged": "SCHEMA_CHANGED",
    "GateClosed": "COMPLETION_GATE", "OutputInvalid": "OUTPUT_INVALID",
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_a_code_is_stable(name: str):
    error = getattr(thence, name)
    assert error.code == CODES[name] and issubclass(error, ThenceError) and issubclass(ThenceError, RuntimeError)


def test_all_errors_of_the_library_are_public():
    ours = {n for n, v in vars(thence.errors).items() if isinstance(v, type) and issubclass(v, ThenceError)}
    assert ours | {"ToolCancelled"} <= set(thence.__all__)


async def test_how_a_streamed_run_ended_is_asked_alike_in_both_faces(tmp_path: Path):
    model = ScriptedModel([reply("one"), reply("two")])
    with Agent(tmp_path / "a.db", model=model) as agent:
        stream = agent.session("/w", SessionOptions(session_id="s")).stream("go")
        assert isinstance(stream, thence.RunStream)
        assert stream.wait().text == stream.result.text == "one"
    async with AsyncAgent(tmp_path / "a.db", model=model) as other:
        streamed = (await other.resume_session("s")).stream("go on")
        assert isinstance(streamed, thence.AsyncRunStream)
        assert (await streamed.wait()).text == (await streamed.result()).text == "two"


def test_importing_it_is_light():
    code = (
        "import sys, thence; thence.OpenAIModel;"
        "heavy = {'pydantic', 'click', 'sqlite_utils', 'openai', 'portalocker'} & set(sys.modules);"
        "sys.exit(','.join(heavy) or 0)"
    )
    engine = Path(thence.__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(engine)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ what the seed documents show


@pytest.fixture
def agent(tmp_path: Path):
    with Agent(tmp_path / "agents.db", model=ScriptedModel([reply("ok", usage={"prompt_tokens": 30})] * 9)) as made:
        yield made


def test_seed_identity_tags_are_set_on_the_options_and_read_from_the_session(agent: Agent):
    opts = SessionOptions()
    opts.tenant_id = "tenant-example"
    opts.principal = "principal-example"
    opts.agent_template_id = "agent-template-example"
    opts.correlation_id = "trace-example"
    session = agent.session("/path/to/project", opts)
    assert session.tenant_id == "tenant-example"
    assert session.principal == "principal-example"
    assert session.agent_template_id == "agent-template-example"
    assert session.correlation_id == "trace-example"
    assert agent.session("/path/to/project").tenant_id is None
    session.close()


class MeteredGuard:
    """Positional arguments, as the seeds call it; a plain limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.spent, self.seen = limit, 0, list[str]()

    def check_before_llm(self, session_id, estimated_tokens):
        self.seen.append(session_id)
        assert isinstance(estimated_tokens, int)
        if self.spent >= self.limit:
            return {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
        return {"decision": "allow"}

    def record_after_llm(self, session_id, usage):
        self.spent += usage["total_tokens"]
        assert set(usage) == {
            "prompt_tokens", "completion_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens",
        }  # fmt: skip


def test_seed_a_guard_on_the_options_meters_denies_and_is_cleared(agent: Agent):
    guard = MeteredGuard(50)
    opts = SessionOptions()
    opts.budget_guard = guard
    session = agent.session("/path/to/project", opts)
    session.send("one")
    session.send("two")
    assert guard.spent == 60 and set(guard.seen) == {session.session_id}
    with pytest.raises(RuntimeError, match="Budget exhausted on 'tokens': monthly cap reached") as denied:
        session.send("three")
    assert isinstance(denied.value, BudgetExhausted) and not session.is_closed
    session.set_budget_guard(None)
    assert session.send("four").text == "ok"
    session.set_budget_guard(guard, timeout_ms=5000)
    with pytest.raises(RuntimeError):
        session.send("five")


def test_seed_check_before_tool_takes_a_name(tmp_path: Path):
    asked: list[tuple[str, str]] = []

    class ToolGuard:
        def check_before_tool(self, session_id, tool_name):
            asked.append((session_id, tool_name))
            return {"decision": "allow"}

    def look() -> str:
        return "seen"

    opts = SessionOptions()
    opts.budget_guard = ToolGuard()
    opts.budget_guard_timeout_ms = 5000
    with Agent(
        tmp_path / "a.db", model=ScriptedModel([reply(calls=[call("look")]), reply("ok")]), tools=[look]
    ) as agent:
        session = agent.session("/repo", opts)
        session.send("go")
        assert asked == [(session.session_id, "look")]


def test_seed_limits_are_attributes_in_snake_case(tmp_path: Path):
    def step(n: int) -> int:
        return n

    opts = SessionOptions()
    opts.max_tool_rounds = 24
    opts.max_parse_retries = 3
    opts.tool_timeout_ms = 120000
    opts.circuit_breaker_threshold = 4
    opts.continuation_enabled = True
    opts.max_continuation_turns = 3
    model = ScriptedModel([*(reply(calls=[call("step", {"n": n})]) for n in range(24)), reply("text at last")])
    with Agent(tmp_path / "a.db", model=model, tools=[step]) as agent:
        session = agent.session("/repo", opts)
        assert session.send("go").text == "text at last"
    assert [len(request.tools) for request in model.requests] == [1] * 24 + [0]


def test_seed_compaction_options_are_taken(tmp_path: Path):
    """``opts.auto_compact = True`` and a threshold run as written, whether or not anything has to be compacted."""
    opts = SessionOptions()
    opts.auto_compact = True
    opts.auto_compact_threshold = 0.75
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("ok")])) as agent:
        assert agent.session("/repo", opts).send("go").text == "ok"


def test_seed_retention_limits_take_all_five_caps(agent: Agent):
    opts = SessionOptions()
    opts.retention_limits = {
        "max_runs_retained": 2,
        "max_events_per_run": 5000,
        "max_event_bytes_per_run": 16 * 1024 * 1024,
        "max_trace_events": 20000,
        "max_terminal_subagent_tasks": 500,
    }
    session = agent.session("/repo", opts)
    for number in range(4):
        session.send(str(number))
    assert [run.prompt for run in session.runs()] == ["2", "3"]


def test_seed_a_fixed_environment_gives_fixed_ids_and_times(tmp_path: Path):
    opts = SessionOptions()
    opts.host_env = HostEnvConfig("replay", 1_700_000_000_000)
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("ok")])) as agent:
        session = agent.session(".", opts)
        assert session.session_id == "replay-0"
        assert session.send("go").run_id == "run-replay-1"
        assert {event.metadata["timestamp_ms"] for event in session.run_events("run-replay-1")} == {1_700_000_000_000}


def test_seed_hosts_emit_the_cluster_events_themselves(agent: Agent):
    session = agent.session("/repo")
    session.emit(
        {"type": "passivation_requested", "payload": {"reason": "node drain", "deadline_ms": 1_700_000_000_000}}
    )
    session.emit({"type": "peer_invocation", "payload": {"from_session_id": "s-9", "correlation_id": "c"}})
    assert [event.type for event in session.events()] == ["passivation_requested", "peer_invocation"]


def test_the_first_lines_of_the_contract_run(tmp_path: Path):
    agent = Agent(tmp_path / "agents.db", model=ScriptedModel([reply("A summary."), reply("More.")]), tools=[])
    opts = SessionOptions()
    opts.tenant_id = "tenant-example"
    session = agent.session("/path/to/project", opts)
    result = session.send("Summarize this repository.")
    assert (result.text, result.status, result.tool_calls_count) == ("A summary.", "completed", 0)
    assert result.run_id and result.usage.total_tokens == 0
    assert [event.text for event in session.stream("Go on.") if event.type == "turn_end"] == ["More."]
    session.close()
    agent.close()
