"""PermissionPolicy (§10): what it decides, and what is no policy."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from thence import PermissionPolicy, SessionConfiguration, SessionOptions, ThenceError, tool
from thence.testing import call, reply

from ..kit import World, check_session, results
from ..resume.kit import calls, done
from .kit import asks, box


def rm(text: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": text}


def store(value: Any) -> tuple[str, dict[str, Any]]:
    return "store", {"value": value}


LS, PUT = rm("ls"), ("put", {"n": 5})
DENY_RM = {"deny": ("bash(command=rm *)",)}
COPY = {"deny": ("copy(src=/a*, dst=/b*)",)}

DECISIONS: list[tuple[dict[str, Any], tuple[str, dict[str, Any]], str]] = [
    # names
    ({}, LS, "allow"),
    ({"deny": ("bash",)}, LS, "deny"),
    ({"deny": ("bash",)}, PUT, "allow"),
    ({"ask": ("bash",)}, LS, "ask"),
    ({"deny": ("b*",)}, LS, "deny"),
    ({"deny": ("?ash",)}, LS, "deny"),
    ({"deny": ("[bc]ash",)}, LS, "deny"),
    ({"deny": ("*",)}, PUT, "deny"),
    ({"deny": ("BASH",)}, LS, "allow"),
    ({"deny": ("bas",)}, LS, "allow"),
    ({"deny": ("ash",)}, LS, "allow"),
    ({"deny": ("nobody", "bash")}, LS, "deny"),
    # arguments: the whole text, as it is
    (DENY_RM, rm("rm -rf x"), "deny"),
    (DENY_RM, rm("ls"), "allow"),
    (DENY_RM, rm("sudo rm x"), "allow"),
    (DENY_RM, rm("rm"), "allow"),
    (DENY_RM, rm("RM x"), "allow"),
    (DENY_RM, rm("rm a\nb"), "deny"),
    ({"deny": ("bash(command=*rm *)",)}, rm("ls\nrm x"), "deny"),
    ({"deny": ("*(command=rm *)",)}, rm("rm x"), "deny"),
    ({"deny": ("bash(command=ls)",)}, LS, "deny"),
    # a missing argument does not match, not even a star
    ({"deny": ("bash(path=*)",)}, LS, "allow"),
    ({"deny": ("bash(command=*)",)}, rm(""), "deny"),
    ({"allow": ("bash(path=*)",), "default": "deny"}, LS, "deny"),
    # all must match
    (COPY, ("copy", {"src": "/a/1", "dst": "/b/1"}), "deny"),
    (COPY, ("copy", {"src": "/a/1", "dst": "/c/1"}), "allow"),
    (COPY, ("copy", {"src": "/c/1", "dst": "/b/1"}), "allow"),
    (COPY, ("copy", {"dst": "/b/1", "src": "/a/1"}), "deny"),
    # what is not a text is matched by its canonical JSON
    ({"deny": ("put(n=5)",)}, PUT, "deny"),
    ({"deny": ("put(n=6)",)}, PUT, "allow"),
    ({"deny": ("put(n=5*)",)}, ("put", {"n": 55}), "deny"),
    ({"deny": ("store(value=true)",)}, store(True), "deny"),
    ({"deny": ("store(value=True)",)}, store(True), "allow"),
    ({"deny": ("store(value=null)",)}, store(None), "deny"),
    ({"deny": ("store(value=1.5)",)}, store(1.5), "deny"),
    ({"deny": ('store(value={"a":2*)',)}, store({"b": 1, "a": 2}), "deny"),
    ({"deny": ("store(value=*secret*)",)}, store(["a", {"x": "my secret"}]), "deny"),
    ({"deny": ("store(value=é*)",)}, store("étage"), "deny"),
    ({"deny": ('store(value=*"é"*)',)}, store(["é"]), "deny"),
    # deny wins over ask wins over allow; else the default
    ({"deny": ("bash",), "ask": ("bash",), "allow": ("bash",)}, LS, "deny"),
    ({"ask": ("bash",), "allow": ("bash",)}, LS, "ask"),
    ({"ask": ("b*",), "allow": ("bash(command=ls)",)}, LS, "ask"),
    ({"deny": ("*",), "allow": ("bash",)}, LS, "deny"),
    ({"allow": ("bash",), "default": "deny"}, LS, "allow"),
    ({"allow": ("bash",), "default": "deny"}, PUT, "deny"),
    ({"allow": ("bash",), "default": "ask"}, PUT, "ask"),
    ({"deny": ("bash",), "default": "ask"}, LS, "deny"),
    ({"default": "allow"}, PUT, "allow"),
    ({"allow": ("bash(command=ls*)",), "default": "deny"}, rm("ls -l"), "allow"),
    ({"allow": ("bash(command=ls*)",), "default": "deny"}, rm("rm x"), "deny"),
    # lists are as good as tuples
    ({"deny": ["bash"]}, LS, "deny"),
]  # fmt: skip


def does_what_it_is_told(request: Any) -> Any:
    """Makes the call that the prompt names, then ends."""
    last = request.messages[-1]
    return reply(calls=[call(*json.loads(last.text))]) if last.role == "user" else reply("ok")


async def test_table_of_decisions(world: World):
    """§10: tool-name globs with argument patterns, precedence and default; one row per rule."""
    ran: list[str] = []
    wrong: list[Any] = []
    agent = await world.agent(itertools.repeat(does_what_it_is_told), db=None, tools=box(ran))
    for given, (name, args), expected in DECISIONS:
        ran.clear()
        session = await agent.session(".", SessionOptions(permission_policy=PermissionPolicy(**given)))
        result = await session.send(json.dumps([name, args]))
        if result.status == "parked":
            decided = "ask"
        else:
            [(_, ok, text)] = results(await check_session(session))
            decided = "allow" if ok else "deny" if "permission denied" in text else text
        if decided != expected or (ran == [name]) is not (decided == "allow"):
            wrong.append((given, name, args, expected, decided, list(ran)))
    assert not wrong


@pytest.mark.parametrize("where", ["allow", "ask", "deny"])
@pytest.mark.parametrize(
    "pattern", ["bash(", "bash(command)", "(command=x)", "bash(command=x", "bash(=x)", "bash(command=x) y"]
)
def test_bad_patterns_are_refused_by_name(where: str, pattern: str):
    """§10, public API: ValueError naming the pattern."""
    with pytest.raises(ValueError, match=re.escape(pattern)):
        PermissionPolicy(**{where: ("read", pattern)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"deny": ("",)}, {"deny": ("  ",)}, {"deny": (5,)}, {"allow": "read"}, {"ask": 5}, {"default": "maybe"},
        {"default": None}, {"timeout_ms": -1}, {"timeout_ms": "5"}, {"timeout_ms": 1.5}, {"timeout_ms": True},
    ],
)  # fmt: skip
def test_bad_policies_are_refused(given: dict[str, Any]):
    """§1: bad arguments raise ValueError or TypeError. A lone text is no list of patterns: its letters would be."""
    with pytest.raises((ValueError, TypeError)):
        PermissionPolicy(**given)


@pytest.mark.parametrize("policy", ["deny", {"deny": ["bash"]}, 5, PermissionPolicy])
async def test_only_a_policy_is_a_policy(world: World, policy: Any):
    """§2: what is no policy is refused, not ignored."""
    with pytest.raises((ThenceError, TypeError, ValueError)):
        await world.session([done()], permission_policy=policy)


@pytest.mark.parametrize("given", [{}, {"permission_policy": None}])
async def test_a_session_that_had_a_policy_demands_one(world: World, given: dict[str, Any]):
    """§2: the session stores that it had a permission policy, never the policy itself."""
    agent = await world.agent([])
    await agent.session(".", SessionOptions(session_id="s", permission_policy=PermissionPolicy()))
    await agent.close()
    agent = await world.agent([])
    with pytest.raises(SessionConfiguration) as refused:
        await agent.resume_session("s", SessionOptions(**given))
    assert refused.value.field == "permission_policy"
    assert await agent.resume_session("s", SessionOptions(permission_policy=asks("x")))


async def test_tools_of_any_kind_are_judged(world: World):
    """§10: a read-only coroutine tool is no exception."""
    ran: list[int] = []

    @tool(effect="read")
    async def look(n: int) -> str:
        ran.append(n)
        return "seen"

    session = await world.session(
        [calls("look:1", "look:2"), done()], [look], permission_policy=PermissionPolicy(deny=("look(n=1)",))
    )
    await session.send("go")
    assert ran == [2] and [ok for _, ok, _ in results(await check_session(session))] == [False, True]
