"""One id, asked for by many threads and processes at once (§7): exactly one run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from thence import Agent

from .kit import Again, Tools, calls, done, options, resume, run_rows

SCRIPT = [calls("add:1"), done("All is done.")]


def test_two_hundred_threads_ask_for_one_run(db: Path) -> None:
    tools, model = Tools(), Again(SCRIPT)
    said: list[tuple[bool, str]] = []
    errors: list[BaseException] = []
    with Agent(db, model=model, tools=tools.all(), durability="process") as agent:
        sessions = [agent.session("/w", options()) for _ in range(200)]
        barrier = threading.Barrier(200)

        def ask(number: int) -> None:
            try:
                barrier.wait(60)
                spawned = sessions[number].spawn_run_with_id("mine", "Go.")
                said.append((spawned.replayed, spawned.wait().text))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(tools.ran) == 1 and len(run_rows(db)) == 1
    strange = [repr(error) for error in errors if getattr(error, "code", "") != "SESSION_BUSY"]
    assert strange == []
    assert said.count((False, "All is done.")) == 1
    assert set(said) <= {(False, "All is done."), (True, "All is done.")}


SPAWNER = """
@tool
def add(n: int) -> str:
    with open(args[0], "a") as file: file.write(f"{os.getpid()}\\n")
    return str(n)

class Model:
    name = "again"
    def stream(self, request):
        last = request.messages[-1]
        said = reply("", [call("add", {"n": 1})]) if last.role == "user" else reply("Done.")
        yield from said.deltas
        yield said.reply

agent = Agent(db, model=Model(), tools=[add], durability="process")
say("ready")
while (line := hear()):
    name, go, how = json.loads(line)
    while not os.path.exists(go): pass
    for attempt in range(2000):
        try:
            session = agent.session("/w", options(session_id=name))
            if how == "spawn":
                spawned = session.spawn_run_with_id(f"run-{name}", "Go.")
                said = [spawned.replayed, spawned.wait().text]
            else:
                result = session.send("Go.", run_id=f"run-{name}")
                said = [result.replayed, result.text]
            break
        except SessionBusy: time.sleep(0.002)
        except BaseException as error: said = ["error", repr(error)]; break
    say(json.dumps(said))
agent.close()
"""


@pytest.mark.parametrize("how", ["spawn", "send"])
def test_eight_processes_spawn_one_id(spawn, db: Path, quick: Path, how: str) -> None:
    """At a barrier: exactly one run each round, everybody gets its answer. Whoever comes between the claim and the
    run's row is told SessionBusy, and asks again."""
    ran = quick / "ran"
    ran.touch()
    children = [spawn(SPAWNER, ran) for _ in range(8)]
    for child in children:
        child.expect("ready")
    rounds = 6
    for turn in range(rounds):
        go = quick / f"go{turn}"
        for child in children:
            child.tell(json.dumps([f"s{turn}", str(go), how]))
        go.touch()
        said = [json.loads(child.line()) for child in children]
        assert sorted(said) == [[False, "Done."]] + [[True, "Done."]] * 7
    for child in children:
        child.tell()
        child.finish()
    assert len(ran.read_text().splitlines()) == rounds
    assert len(run_rows(db)) == rounds


def test_a_spawned_run_of_another_process_is_waited_for(spawn, db: Path, quick: Path) -> None:
    """The same id, asked for while its run lives elsewhere: its end is what everybody gets."""
    gate = quick / "gate"
    held = "\n    say('in')\n    while not os.path.exists(args[1]): time.sleep(0.01)\n    return str(n)"
    code = SPAWNER.replace("return str(n)", held)
    child = spawn(code, quick / "ran", gate)
    child.expect("ready")
    go = quick / "go"
    go.touch()
    child.tell(json.dumps(["s", str(go), "spawn"]))
    child.expect("in")
    with Agent(db, model=Again([]), durability="process") as agent:
        session = agent.resume_session("s")
        spawned = session.spawn_run_with_id("run-s", "Go.")
        assert (spawned.replayed, spawned.run.state) == (True, "executing")
        got: list[str] = []
        waiting = threading.Thread(target=lambda: got.append(spawned.wait().text))
        waiting.start()
        gate.touch()
        waiting.join(30)
        assert got == ["Done."]
    assert json.loads(child.line()) == [False, "Done."]
    child.tell()
    child.finish()
    assert resume("sync", db, "run-s", []).nothing_called
