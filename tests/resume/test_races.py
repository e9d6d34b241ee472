"""Many processes that resume at once (§7, §8): one wins, nothing runs twice, no claim is left. B11, C05, C07, C08."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thence import Agent, RunFailed

from ..processes.kit import verify
from .hand import by_hand
from .kit import Again, Eyes, Tools, calls, done, head, last_run, resume

SCRIPT = [calls("add:1", "add:2"), done("All is done.")]

RIVAL = """
class Model:
    name = "again"
    def stream(self, request):
        number = sum(m.role == "assistant" for m in request.messages)
        said = reply("", [call("add", {"n": 1}), call("add", {"n": 2})]) if number % 2 == 0 else reply("All is done.")
        yield from said.deltas
        yield said.reply

@tool
def add(n: int, context: ToolContext) -> str:
    with open(args[0], "a") as file: file.write(f"{context.session_id} {context.call_key}\\n")
    time.sleep(0.02)
    return f"add {n}"

agent = Agent(db, model=Model(), tools=[add], durability="process")
say("ready")
while (line := hear()):
    go, how = json.loads(line)
    while not os.path.exists(go): pass
    try:
        if how == "recover":
            said = [[one.session_id, one.error and one.error.code] for one in agent.recover()]
        else:
            session = agent.resume_session("s")
            said = ["replayed" if session.resume_run(how).replayed else "won"]
    except ThenceError as error: said = [error.code]
    except BaseException as error: said = ["error", repr(error)]
    say(json.dumps(said))
agent.close()
"""


def race(spawn, db: Path, quick: Path, rounds: int) -> None:
    ran = quick / "ran"
    rivals = [spawn(RIVAL, ran) for _ in range(8)]
    for rival in rivals:
        rival.expect("ready")
    script = [calls("add:1", "add:2"), done("All is done.")] * (rounds + 1)
    for turn in range(rounds):
        by_hand(db, script, prompt=f"Question {turn}.", at=8)
        ran.write_text("")
        go = quick / f"go{turn}"
        for rival in rivals:
            rival.tell(json.dumps([str(go), last_run(db)]))
        go.touch()
        said = sorted(json.loads(rival.line())[0] for rival in rivals)
        assert said.count("won") == 1, said
        assert set(said) <= {"won", "replayed", "SESSION_BUSY"}, said
        assert len(ran.read_text().splitlines()) == len(set(ran.read_text().splitlines())) == 2
    for rival in rivals:
        rival.tell()
        rival.finish()
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM facts WHERE kind = 'turn.ended'") == rounds
        assert eyes.one("SELECT count(*) FROM run") == 2 * rounds or eyes.one("SELECT count(*) FROM run") == 64
    verify(db)


def test_c05_eight_processes_resume_one_run(spawn, db: Path, quick: Path) -> None:
    """C05 and C5: one wins, the others are told SessionBusy, or get the recorded outcome once it is there."""
    race(spawn, db, quick, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_c05_eight_processes_two_hundred_rounds(spawn, db: Path, quick: Path) -> None:
    race(spawn, db, quick, 200)


def recover_all(spawn, db: Path, quick: Path, count: int) -> None:
    for number in range(count):
        by_hand(db, SCRIPT, at=8, session=f"s{number}")
    ran = quick / "ran"
    ran.touch()
    rivals = [spawn(RIVAL, ran) for _ in range(4)]
    for rival in rivals:
        rival.expect("ready")
    for rival in rivals:
        rival.tell(json.dumps([str(quick / "go"), "recover"]))
    (quick / "go").touch()
    said = [json.loads(rival.line(100)) for rival in rivals]
    for rival in rivals:
        rival.tell()
        rival.finish()
    lines = ran.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 2 * count, "a call ran twice"
    assert {code for one in said for _, code in one} <= {None, "SESSION_BUSY"}
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run WHERE status = 'completed'") == count
        assert eyes.one("SELECT count(*) FROM run") == 2 * count


def test_b11_four_processes_resume_all(spawn, db: Path, quick: Path) -> None:
    """B11, 24 runs: executions as many as calls, doubles 0."""
    recover_all(spawn, db, quick, 24)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_b11_two_hundred_runs(spawn, db: Path, quick: Path) -> None:
    recover_all(spawn, db, quick, 200)


def test_c07_no_claim_is_left_after_resumes_that_end_and_that_fail(db: Path) -> None:
    """C07: 20 resumes that end and 5 that fail: 0 owned sessions, 0 owner files, 0 rows of processes."""
    for number in range(25):
        by_hand(db, SCRIPT, at=8, session=f"s{number}")
    with Agent(db, model=Again(SCRIPT), tools=Tools().all(), durability="process") as agent:
        for number in range(25):
            agent._core.model = Again([SCRIPT[0], ValueError("no") if number % 5 == 0 else SCRIPT[1]])
            session = agent.resume_session(f"s{number}")
            try:
                session.resume_run(last_run(db, f"s{number}") or "")
            except RunFailed:
                assert number % 5 == 0
        assert not any(info.busy for info in agent.list_sessions())
        with Eyes(db) as eyes:
            assert eyes.one("SELECT count(*) FROM session WHERE owner IS NOT NULL") == 0
    assert not [entry.name for entry in db.parent.iterdir() if "-owner-" in entry.name]


def test_c08_a_session_is_made_once_with_its_run(spawn, db: Path, quick: Path) -> None:
    """C08, by eight processes that resume what is not there: one session each round, no half row, a typed error."""
    code = RIVAL.replace('agent.resume_session("s")', 'agent.session("/w", options(session_id=how))')
    rivals = [spawn(code, quick / "ran") for _ in range(8)]
    for rival in rivals:
        rival.expect("ready")
    for turn in range(5):
        for rival in rivals:
            rival.tell(json.dumps([str(quick / f"go{turn}"), f"s{turn}"]))
        (quick / f"go{turn}").touch()
        said = {json.loads(rival.line())[0] for rival in rivals}
        assert said <= {"SESSION_ERROR", "SESSION_BUSY"}, said
    for rival in rivals:
        rival.tell()
        rival.finish()
    with Eyes(db) as eyes:
        for table in ("session", "branch", "session_option", "stream"):
            assert eyes.one(f"SELECT count(*) FROM {table}") == 5
        assert eyes.one("SELECT count(*) FROM session WHERE owner IS NOT NULL") == 0
    assert head(db, "s0") == "00" * 32 and resume("sync", db, "x", session="s0").error is not None
