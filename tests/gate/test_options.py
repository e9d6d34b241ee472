"""Options of the gate (§2): what is refused, what is stored, and that a verifier must be given again."""

from __future__ import annotations

from typing import Any

import pytest

from thence import Agent, SessionConfiguration, SessionOptions
from thence.session_options import WITHOUT
from thence.testing import ScriptedModel, reply

from ..kit import World
from .kit import TOOLS, closed, writes


def test_unset_options_read_as_their_defaults():
    options = SessionOptions()
    assert (options.completion_gate, options.verify_commands, options.verify_timeout_ms) == ("auto", (), 600_000)
    assert options.verifier is None


REFUSED = "Invalid session configuration for '{}': {}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("completion_gate", None, "must be 'auto', True or False"),
        ("completion_gate", "on", "must be 'auto', True or False"),
        ("completion_gate", 1, "must be 'auto', True or False"),
        ("verify_timeout_ms", 0, "must be greater than zero"),
        ("verify_timeout_ms", -1, "must be greater than zero"),
        ("verify_timeout_ms", 2**60, f"must be at most {2**53}"),
        ("verify_commands", [""], "must not hold an empty command"),
        ("verify_commands", ["true", " \n"], "must not hold an empty command"),
        ("verify_commands", [[]], "must not hold an empty command"),
        ("verify_commands", [["", "x"]], "must not hold a command without a program"),
        ("verify_commands", ["a\0b"], "must not contain NUL characters"),
        ("verify_commands", [["a", "\0"]], "must not contain NUL characters"),
        ("verify_commands", ["true"] * 101, "must be at most 100 commands"),
    ],
)
def test_a_refused_value_names_its_field(name: str, value: Any, words: str):
    with Agent(None) as agent, pytest.raises(SessionConfiguration) as refused:
        agent.session(".", SessionOptions(**{name: value}))
    assert (str(refused.value), refused.value.field) == (REFUSED.format(name, words), name)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("verify_timeout_ms", None, "'verify_timeout_ms' must be an integer, not NoneType"),
        ("verify_timeout_ms", True, "'verify_timeout_ms' must be an integer, not bool"),
        ("verify_timeout_ms", 1.5, "'verify_timeout_ms' must be an integer, not float"),
        ("verify_commands", None, "'verify_commands' must be a list of commands, not NoneType"),
        ("verify_commands", "pytest -q", "'verify_commands' must be a list of commands, not str"),
        ("verify_commands", b"x", "'verify_commands' must be a list of commands, not bytes"),
        ("verify_commands", {"true"}, "'verify_commands' must be a list of commands, not set"),
        ("verify_commands", [b"x"], "'verify_commands' must hold command lines or lists of arguments, not bytes"),
        ("verify_commands", [None], "'verify_commands' must hold command lines or lists of arguments, not NoneType"),
        ("verify_commands", [["x", 1]], "'verify_commands' must be made of text, not int"),
        ("verifier", "pytest", "'verifier' must be callable, not str"),
    ],
)
def test_a_wrong_type_names_its_field(name: str, value: Any, words: str):
    with Agent(None) as agent, pytest.raises(TypeError) as refused:
        agent.session(".", SessionOptions(**{name: value}))
    assert str(refused.value) == words


@pytest.mark.parametrize("name", ["verify_commands"])
def test_a_lone_surrogate_is_refused(name: str):
    with Agent(None) as agent, pytest.raises(SessionConfiguration):
        agent.session(".", SessionOptions(**dict[str, Any]({name: ["\ud800"]})))


async def test_the_options_are_stored_and_restored_and_what_is_given_wins(world: World):
    commands: list[Any] = [("false",), "true"]
    session = await world.session(writes("x"), TOOLS, verify_commands=commands, verify_timeout_ms=5000)
    error = await closed(session.send("go"))
    again = await (await world.agent(tools=TOOLS)).resume_session(session.session_id)
    assert (await closed(again.resume_run(error.run_id))).digest == error.digest
    given = SessionOptions(verify_commands=[["true"]], completion_gate="auto")
    other = await (await world.agent(tools=TOOLS)).resume_session(session.session_id, given)
    assert (await other.resume_run((await other.runs())[-1].id)).status == "completed"
    facts = [fact for fact in await other.facts() if fact.kind == "verification.reported"]
    assert [fact.payload.report["commands"][0]["command"] for fact in facts] == [["false"], ["false"], ["true"]]
    with Agent(world.db) as agent:
        core: Any = agent.resume_session(session.session_id)._core
        assert core.shaping["verify_commands"] == [["true"]] and core.shaping["verify_timeout_ms"] == 5000


@pytest.mark.parametrize("options", [None, SessionOptions(), SessionOptions(verifier=None)])
async def test_a_session_that_had_a_verifier_demands_one(world: World, options: SessionOptions | None):
    session = await world.session([reply("a")], TOOLS, verifier=lambda context: True)
    agent = await world.agent(tools=TOOLS)
    with pytest.raises(SessionConfiguration) as refused:
        await agent.resume_session(session.session_id, options)
    words = "the session had one: give it again to resume the session"
    assert (str(refused.value), refused.value.field) == (REFUSED.format("verifier", words), "verifier")
    again = await agent.resume_session(session.session_id, SessionOptions(verifier=lambda context: False))
    assert again.session_id == session.session_id


async def test_recover_is_given_the_verifier(world: World):
    session = await world.session(writes("x"), TOOLS, verifier=lambda context: True)
    await session.send("go")
    agent = await world.agent(tools=TOOLS)
    assert await agent.recover(lambda session_id: SessionOptions(verifier=lambda context: True)) == []


async def test_left_out_on_purpose_a_verifier_is_neither_demanded_nor_forgotten(world: World):
    session = await world.session([*writes("x"), *writes("y")], TOOLS, verifier=lambda context: False)
    await closed(session.send("go"))
    agent = await world.agent(model=ScriptedModel(writes("y")), tools=TOOLS)
    without = await agent.resume_session(session.session_id, SessionOptions(verifier=WITHOUT))
    assert (await without.resume_run((await without.runs())[-1].id)).status == "completed"
    with pytest.raises(SessionConfiguration):
        await agent.resume_session(session.session_id)
    fresh = await agent.session(world.folder / "work", SessionOptions(verifier=WITHOUT, budget_guard=WITHOUT))
    assert (await agent.resume_session(fresh.session_id)).session_id == fresh.session_id
