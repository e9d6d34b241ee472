"""Hosts that hang in every way, and what the next process must find after them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from thence import Agent, SessionOptions
from thence.testing import ScriptedModel, reply

TOOLS = """
@tool
def hold(context: ToolContext) -> str:
    say("holding")
    while not context.cancelled: time.sleep(0.01)
    return "let go"

@tool
def hang() -> str:
    say("holding")
    time.sleep(100)
    return "never"

@tool
async def ahang() -> str:
    say("holding")
    await asyncio.sleep(100)
    return "never"

class Stuck:
    def check_before_llm(self, session_id, tokens):
        say("holding")
        time.sleep(100)

def waits(request):
    say("holding")
    time.sleep(100)
    return reply("never")

async def awaits(request):
    say("holding")
    await asyncio.sleep(100)
    return reply("never")
"""


def look_after(db: Path) -> list[tuple[str, str | None]]:
    """What this process finds after that one: nothing is held, and the session goes on."""
    with Agent(db, model=ScriptedModel([reply("Settled.")])) as agent:
        assert [(info.session_id, info.busy) for info in agent.list_sessions()] == [("s", False)]
        session = agent.resume_session("s", SessionOptions(budget_guard=SimpleNamespace(check_before_llm=None)))
        runs = [(run.state, run.result_text) for run in session.runs()]
        assert session.send("Go on.", on_interrupted="settle").text == "Settled."
    return runs


def working(what: str) -> str:
    """Code that makes a session whose next send says "holding" and stays there, after one turn that is done."""
    script = {"model": "waits", "amodel": "awaits"}.get(what) or f"reply('', [call('{what}')])"
    guard = "Stuck()" if what == "guard" else "None"
    return f"""
from itertools import chain, repeat
model = ScriptedModel(chain([reply("First.")], repeat({script})))
tools, guard = [hold, hang, ahang], {guard}
"""
