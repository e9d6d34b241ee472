"""Generators and clocks of a host that misbehave: a typed error that names them, never a hang (§1, §11)."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from thence import (
    FixedClock,
    HostEnv,
    RunFailed,
    RunInterrupted,
    SequentialIdGenerator,
    SessionConfiguration,
    SessionOptions,
    tool,
)
from thence.testing import ScriptedModel, call, reply

from .kit import FACES, LONE, Face


class Ids:
    """Gives ``values`` in order, and then the last of them for ever."""

    def __init__(self, *values: Any, lineage: Any = "line") -> None:
        self._values, self._lineage = list(values), lineage

    def next_id(self) -> Any:
        return self._values.pop(0) if len(self._values) > 1 else self._values[0]

    def lineage(self) -> Any:
        return self._lineage


class Now:
    def __init__(self, ms: Any) -> None:
        self.ms = ms

    def now_ms(self) -> Any:
        return self.ms


PARTS: list[tuple[dict[str, Any], str]] = [
    ({"id_generator": 5}, "'id_generator' must be an object with next_id and lineage, not a int"),
    ({"id_generator": FixedClock(1)}, "'id_generator'.* not a FixedClock"),
    ({"id_generator": SequentialIdGenerator}, "'id_generator'.* not the class SequentialIdGenerator"),
    ({"id_generator": None}, "'id_generator'"),
    ({"clock": 1_700_000_000_000}, "'clock' must be an object with now_ms, not a int"),
    ({"clock": Ids("x")}, "'clock'"),
]


@pytest.mark.parametrize(("given", "words"), PARTS)
def test_an_environment_of_something_else_is_refused_where_it_is_made(given: dict[str, Any], words: str):
    with pytest.raises(TypeError, match=words):
        HostEnv(**given)


BAD_IDS = [5, None, b"x", "", "  ", "a\nb", LONE]
BAD_TIMES = [1.5, "5", None, True, -5, 2**53, 2**70]


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
@pytest.mark.parametrize("where", ["session", "lineage", "run"])
def test_an_id_that_cannot_be_one(face: Face, db, where, bad):
    ids = {"session": Ids(bad), "lineage": Ids("a", "b", lineage=bad), "run": Ids("a", bad)}[where]
    agent = face.agent(db, model=ScriptedModel([reply("x")]), host_env=HostEnv(ids, FixedClock(1)))
    with pytest.raises(SessionConfiguration, match="'id_generator'") as refused:
        session = face.do(lambda: agent.session("/w"))
        face.do(lambda: session.send("Go."))
    assert refused.value.field == "id_generator"
    assert [info.runs_ever for info in face.do(agent.list_sessions)] == ([0] if where == "run" else [])


@pytest.mark.parametrize("bad", BAD_TIMES, ids=str)
def test_a_time_that_is_none(face: Face, db, bad):
    clock = Now(bad)
    agent = face.agent(db, model=ScriptedModel([reply("x")] * 2), host_env=HostEnv(Ids("a", "b", "c", "d"), clock))
    with pytest.raises(SessionConfiguration, match="'clock'") as refused:
        face.do(lambda: agent.session("/w"))
    assert refused.value.field == "clock"
    clock.ms = 1
    session = face.do(lambda: agent.session("/w"))
    clock.ms = bad
    for act in (lambda: session.send("Go."), lambda: session.emit({"type": "x"})):
        with pytest.raises(SessionConfiguration, match="'clock'"):
            face.do(act)
    clock.ms = 2
    assert face.do(lambda: session.send("Go.")).text == "x"


def test_a_clock_that_fails_while_a_tool_runs_does_not_hang_the_turn(face: Face, db):
    clock, times = Now(1), [None, 3]

    @tool
    def stops_it() -> str:
        """Stop the clock, once."""
        clock.ms = times.pop(0)
        return "stopped"

    model = ScriptedModel([reply("", [call("stops_it")]), reply("x"), reply("y")])
    agent = face.agent(db, model=model, tools=[stops_it], host_env=HostEnv(Ids(*"abcdef"), clock))
    session = face.do(lambda: agent.session("/w"))
    with pytest.raises(SessionConfiguration, match="'clock'"):
        face.do(lambda: session.send("Go."))
    clock.ms = 2
    with pytest.raises(RunInterrupted):
        face.do(lambda: session.send("Go on."))
    assert face.do(lambda: session.send("Go on.", on_interrupted="resume")).status == "completed"


def finishes(body: Any) -> Any:
    """What ``body`` raised, on a thread that may be left behind: it would keep a core busy for ever."""
    raised: list[BaseException] = []

    def catch() -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it goes on for ever"
    return raised[0] if raised else None


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("what", ["session", "send", "resume"])
def test_ids_that_repeat_themselves_are_told_and_end(db, name, what):
    def body() -> None:
        face = Face(name)
        script: list[Any] = [ValueError("no"), reply("x")] if what == "resume" else [reply("x")] * 3
        agent = face.agent(db, model=ScriptedModel(script), host_env=HostEnv(Ids("same"), FixedClock(1)))
        session = face.do(lambda: agent.session("/w"))
        try:
            if what == "session":
                face.do(lambda: agent.session("/w"))
            elif what == "send":
                assert face.do(lambda: session.send("Go.")).run_id == "run-same"
                face.do(lambda: session.send("Go."))
            else:
                with pytest.raises(RunFailed, match="no"):
                    face.do(lambda: session.send("Go."))
                face.do(lambda: session.resume_run("run-same"))
        finally:
            face.leave()

    error = finishes(body)
    assert isinstance(error, SessionConfiguration), error
    assert (error.field, "same" in str(error)) == ("id_generator", True)


def test_ids_that_the_file_holds_are_skipped_however_many_there_are(face: Face, db):
    """A replay's generator starts from 0 again (§11)."""
    last = ""
    for _ in range(2):
        agent = face.agent(db, model=ScriptedModel([reply("x")] * 150), host_env=HostEnv(SequentialIdGenerator("r")))
        session = face.do(partial(agent.session, "/w", SessionOptions(retention_limits={"max_runs_retained": 1})))
        for _ in range(120):
            last = face.do(partial(session.send, "Go.")).run_id
        face.close()
    assert last == "run-r-240"
