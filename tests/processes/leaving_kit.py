"""Hosts that hang in every way, and what the next process must find after them."""

from __future__ import annotations

import json

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

AFTER = """
with Agent(db, model=ScriptedModel([reply("Settled.")])) as agent:
    say(json.dumps([[i.session_id, i.busy] for i in agent.list_sessions()]))
    for info in agent.list_sessions():
        session = agent.resume_session(info.session_id, options(budget_guard=object()))
        say(json.dumps([[r.state, r.result_text] for r in session.runs()]))
    say(session.send("Go on.", on_interrupted="settle").text)
"""


def look_after(spawn) -> list[list[str]]:
    """What the next process finds: nothing is held, and the session goes on."""
    after = spawn(AFTER)
    assert json.loads(after.line()) == [["s", False]]
    runs: list[list[str]] = json.loads(after.line())
    after.expect("Settled.")
    after.finish()
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
