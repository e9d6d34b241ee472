"""Same inputs, same environment: facts equal byte for byte, and the closed file too (§11, K05, T2-T4)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import pytest

import thence
from thence import Agent, HostEnvConfig, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from ..kit import World, check_session
from .replay_kit import MS, Guard, Where, aplay, digest, dump, look, play, script, write

WHERE = pytest.mark.parametrize("where", ["agent", "session"])


@WHERE
def test_the_scenario_does_what_it_should(tmp_path: Path, where: Where):
    """A replay test of an empty file would prove nothing."""
    play(tmp_path / "a.db", where)
    with Agent(tmp_path / "a.db") as agent:
        [info] = agent.list_sessions()
        assert info.session_id == "replay-0" and info.created_ms == MS
        session = agent.resume_session("replay-0", SessionOptions(budget_guard=Guard()))
        runs = session.runs()
        assert [run.id for run in runs] == ["run-replay-3", "run-replay-4", "run-replay-5"]
        assert "failed" in {run.status for run in runs} and {run.created_ms for run in runs} == {MS}
        assert {fact.kind for fact in session.facts()} == {
            "run.configured", "user.message", "model.turn", "tool.result", "turn.ended",
        }  # fmt: skip
        assert len(session.facts()) > 20 and len(session.trace_events()) == 7


@WHERE
def test_three_runs_and_both_faces_give_the_same_dump(tmp_path: Path, where: Where):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        play(tmp_path / name / "x.db", where)
    asyncio.run(aplay(tmp_path / "async.db", where))
    texts = {dump(tmp_path / name / "x.db") for name in "abc"}
    assert len(texts) == 1 and len(next(iter(texts))) > 5000
    assert dump(tmp_path / "async.db") in texts


CHILD = """
import sys
sys.path[:0] = sys.argv[3:5]
from tests.turn.replay_kit import digest, play
from pathlib import Path
play(Path(sys.argv[1]), "agent")
sys.stdout.write(digest(Path(sys.argv[1])))
"""

ENVIRONMENTS = [
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "3", "TZ": "America/St_Johns", "HOME": "/nonexistent", "COLUMNS": "7"},
]


def test_T2_T4_neither_hash_seed_nor_time_zone_nor_folder_changes_a_byte(tmp_path: Path):
    root = Path(__file__).resolve().parents[2]
    engine = Path(thence.__file__).resolve().parents[1]
    children = []
    for number, environment in enumerate(ENVIRONMENTS):
        folder = tmp_path / f"cwd {number}"
        folder.mkdir()
        arguments = [str(tmp_path / f"{number}.db"), "", str(engine), str(root)]
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", CHILD, *arguments],
                env={**os.environ, **environment},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = set()
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        found.add(out)
    play(tmp_path / "here.db", "agent")
    assert found == {digest(tmp_path / "here.db")}


async def test_with_parallel_tools_of_random_speed_the_facts_are_equal(world: World):
    """Only the facts: events and traces may tell who was faster (§11)."""
    heads = set()
    for seed in range(4):
        chance = random.Random(seed)
        speeds = [chance.random() * 0.03 for _ in range(10)]

        async def wait_and_square(n: int, speeds: list[float]) -> int:
            await asyncio.sleep(speeds[n])
            return n * n

        # a parameter that a partial fixes stays the host's: the model does not see it
        fetch = tool(effect="read", name="fetch")(partial(wait_and_square, speeds=speeds))
        calls = [call("fetch", {"n": n}) for n in range(10)]
        agent = await world.agent(
            [reply(calls=calls), reply(calls=calls[:5]), reply("done")], db=f"{seed}.db", tools=[fetch],
            host_env=HostEnvConfig("replay", MS),
        )  # fmt: skip
        session = await agent.session("/w", SessionOptions(max_parallel_tools=8))
        await session.send("go")
        facts = await check_session(session)
        heads.add((len(facts), facts[-1].hash))
    assert len(heads) == 1


def test_equal_conversations_have_equal_head_hashes_whatever_the_ids(tmp_path: Path):
    """No clock reading and no random id inside a payload (§4)."""
    heads = []
    for number in range(2):
        with Agent(tmp_path / f"{number}.db", model=ScriptedModel(script()), tools=[look, write]) as agent:
            session = agent.session(f"/w{number}", SessionOptions(tenant_id=str(number)))
            session.send("first")
            heads.append(session.facts()[-1].hash)
    assert heads[0] == heads[1]


def test_K05_twenty_turns_draw_no_stored_id_and_no_stored_time_from_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Under a fixed environment nothing stored comes from the world (§11): the sources lie from here on, each with a
    value of its own, and the closed file holds none of them."""
    fixed, lies = HostEnvConfig("replay", MS), uuid.UUID("deadbeef-dead-4eef-8ead-beefdeadbeef")
    monkeypatch.setattr(time, "time", lambda: 4_444_444_444.0)
    monkeypatch.setattr(time, "time_ns", lambda: 4_444_444_444_000_000_000)
    monkeypatch.setattr(uuid, "uuid4", lambda: lies)
    monkeypatch.setattr(random, "random", lambda: 0.4444444444)
    answers = [r for n in range(20) for r in (reply(calls=[call("look", {"n": n})]), reply(f"turn {n}"))]
    with Agent(tmp_path / "a.db", model=ScriptedModel(answers), tools=[look]) as agent:
        session = agent.session("/w", SessionOptions(host_env=fixed))
        for n in range(20):
            session.send(f"question {n}")
        assert len(session.facts()) == 1 + 20 * 5
    text = dump(tmp_path / "a.db")
    assert "4444444444" not in text and "deadbeef" not in text
    assert "replay-0" in text and str(MS) in text


def test_K05_the_sources_are_not_even_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """20 turns, 0 calls of the wall clock, of uuid, and of random ids."""
    asked: list[str] = []

    def source(name: str):
        def ask(*args: object) -> None:
            asked.append(name)
            raise AssertionError(f"{name} was asked")

        return ask

    with Agent(
        tmp_path / "a.db", model=ScriptedModel([reply(calls=[call("look", {"n": 1})]), reply("ok")] * 20), tools=[look]
    ) as agent:
        session = agent.session("/w", SessionOptions(host_env=HostEnvConfig("replay", MS)))
        with monkeypatch.context() as patch:
            for module, name in ((time, "time"), (time, "time_ns"), (uuid, "uuid4"), (uuid, "uuid1"), (os, "urandom")):
                patch.setattr(module, name, source(f"{module.__name__}.{name}"))
            for name in ("random", "randint", "uniform", "getrandbits"):
                patch.setattr(random, name, source(f"random.{name}"))
            for n in range(20):
                session.send(f"question {n}")
    assert asked == []


@pytest.mark.parametrize(("config", "sequential", "fixed"), [
    (HostEnvConfig("p", None), True, False), (HostEnvConfig(None, MS), False, True), (HostEnvConfig(), False, False),
])  # fmt: skip
def test_each_half_is_independent(tmp_path: Path, config: HostEnvConfig, sequential: bool, fixed: bool):
    with Agent(tmp_path / "a.db", model=ScriptedModel([reply("ok")]), host_env=config) as agent:
        session = agent.session("/w")
        run = session.run_snapshot(session.send("go").run_id)
        assert run is not None
        assert ((session.session_id, run.id) == ("p-0", "run-p-1")) is sequential
        assert (run.created_ms == MS) is fixed


def test_an_id_the_file_already_holds_is_skipped(tmp_path: Path):
    """A replay's generator starts from 0 again in every process."""
    seen: list[tuple[str, str]] = []
    for _ in range(3):
        env = HostEnvConfig("replay", MS)
        with Agent(tmp_path / "a.db", model=ScriptedModel([reply("ok")]), host_env=env) as agent:
            session = agent.session("/w")
            seen.append((session.session_id, session.send("go").run_id))
    assert seen[0] == ("replay-0", "run-replay-1")
    assert len({session_id for session_id, _ in seen}) == len({run_id for _, run_id in seen}) == 3
