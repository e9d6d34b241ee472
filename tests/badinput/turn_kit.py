"""One turn in either face, and the same conversation once more from the closed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thence import SessionOptions, tool
from thence.testing import ScriptedModel, reply

from .kit import Face

RECEIVED: list[Any] = []


@tool
def take(x: Any) -> str:
    """Take."""
    RECEIVED.append(x)
    return "taken"


def run(face: Face, db: Path, script: list[Any], tools: list[Any], prompt: str = "Go.", **options: Any) -> Any:
    """One turn; then everything once more from a file that was closed meanwhile."""
    model = ScriptedModel([*script, reply("Done.")])
    agent = face.agent(db, model=model, tools=tools)
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s", **options)))
    result = face.do(lambda: session.send(prompt))
    assert result.status == "completed"
    assert result.text == "Done."
    live = face.do(session.history)
    face.close()
    reader = face.agent(db, model=ScriptedModel([reply("And on.")]), tools=tools)
    again = face.do(lambda: reader.resume_session("s"))
    history = face.do(again.history)
    assert history == live
    assert face.do(lambda: again.send("Go on.")).text == "And on."
    json.dumps([event.to_dict() for event in face.do(lambda: again.run_events(result.run_id))]).encode()
    return history


def tool_messages(history: Any) -> list[Any]:
    return [message for message in history if message.role == "tool"]
