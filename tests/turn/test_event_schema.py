"""schema/events.schema.json is true of what a run really says (§10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from thence import Agent, ModelError, Session, SessionOptions, ThenceError, tool
from thence.events import CLUSTER, PROVISIONAL
from thence.testing import ScriptedModel, call, reply

SCHEMA = json.loads((Path(__file__).parents[2] / "schema" / "events.schema.json").read_text())
TYPES = {branch["if"]["properties"]["type"]["const"] for branch in SCHEMA["allOf"]}


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Guard:
    def check_before_llm(self, session_id, estimated_tokens):
        return {"decision": "soft", "resource": "tokens", "consumed": 9, "limit": 10, "message": "near"}

    def check_before_tool(self, session_id, tool_name):
        return {"decision": "deny", "resource": "tools", "reason": "no"} if tool_name == "add" else None


def spoken_to(folder: Path) -> list[dict[str, Any]]:
    """Events of a run that is steered by its own tool and interrupted by its own model."""
    sessions: list[Session] = []

    def talk() -> bool:
        return sessions[0].steer("more")

    def answer(request: Any) -> Any:
        sessions[0].interrupt("enough")
        return reply("never")

    with Agent(None, model=ScriptedModel([reply(calls=[call("talk")]), answer]), tools=[talk]) as agent:
        sessions.append(agent.session(folder))
        with pytest.raises(ThenceError):
            sessions[0].send("go")
        return [event.to_dict() for event in sessions[0].run_events(sessions[0].runs()[0].id)]


def compacted(folder: Path) -> list[dict[str, Any]]:
    """Events of a run whose window fills, and of a compaction on demand."""
    answers = [reply(letter * 2000) for letter in "abcd"]
    script = [*answers[:2], reply("the story"), *answers[2:], reply("the whole story")]
    with Agent(None, model=ScriptedModel(script)) as agent:
        session = agent.session(folder, SessionOptions(auto_compact=True, max_context_tokens=1200))
        for prompt in ("one", "two", "three", "four"):
            session.send(prompt)
        session.compact()
        events = [*session.run_events(session.runs()[-2].id), *session.events()]
    assert [event.type for event in events].count("context_compacted") == 2
    return [event.to_dict() for event in events]


def test_every_event_of_real_runs_fits_the_schema_and_together_they_use_what_the_engine_says(tmp_path: Path) -> None:
    valid = fastjsonschema.compile(SCHEMA)
    seen: set[str] = set()
    scripts: list[list[Any]] = [
        [reply("I add.", [call("add", {"a": 1, "b": 2})], usage={"prompt_tokens": 1}), reply("3")],
        [reply(calls=[call("add", "{broken"), call("nope", {})]), reply("sorry")],
        [ModelError("http_400", "no", retryable=False)],
    ]
    for guard in (None, Guard()):
        for script in scripts:
            options = SessionOptions(tenant_id="acme", budget_guard=guard)
            with Agent(None, model=ScriptedModel(script), tools=[add]) as agent:
                session = agent.session(tmp_path, options)
                stream = session.stream("go")
                try:
                    events = [event.to_dict() for event in stream]
                except ThenceError:
                    events = [event.to_dict() for event in session.run_events(session.runs()[0].id)]
                session.emit({"type": "peer_invocation", "payload": {"from_session_id": "s"}})
                events += [event.to_dict() for event in session.events()]
            for event in events:
                valid(event)
                seen.add(event["type"])
    for event in spoken_to(tmp_path) + compacted(tmp_path):
        valid(event)
        seen.add(event["type"])
    assert seen <= TYPES
    assert TYPES - seen <= PROVISIONAL | CLUSTER | {"retention_gap"}


def test_the_schema_refuses_what_is_not_so() -> None:
    valid = fastjsonschema.compile(SCHEMA)
    metadata = {"run_id": "r", "session_id": "s", "sequence": 0, "timestamp_ms": 1}
    good = {"version": 1, "type": "turn_start", "payload": {"turn": 1}, "metadata": metadata}
    valid(good)
    changes: list[dict[str, Any]] = [
        {"version": 2},
        {"payload": {"turn": 0}},
        {"payload": {}},
        {"metadata": {}},
        {"type": ""},
    ]
    for change in changes:
        with pytest.raises(fastjsonschema.JsonSchemaException):
            valid({**good, **change})
