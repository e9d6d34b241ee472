"""One transcript operation a session, across all processes (§1, §8): C05, C07, C08, D01, D02."""

from __future__ import annotations

import json

import pytest

from .kit import Plain, verify

RIVAL = """
def slow(request):
    time.sleep(0.15)
    return reply("Done.")

import itertools
agent = Agent(db, model=ScriptedModel(itertools.repeat(slow)))
session = agent.session(".", options(session_id="s"))
say("ready")
while (turn := hear()):
    while not os.path.exists(turn): pass
    try:
        say(json.dumps(["won", session.send("Go.").status, agent._core.store.owner]))
    except SessionBusy as busy:
        say(json.dumps(["busy", str(busy), busy.holder, busy.code, busy.retryable, busy.run_id]))
    except BaseException as error:
        say(json.dumps(["error", repr(error)]))
agent.close()
"""


def rounds(spawn, tmp_path, count: int) -> None:
    rivals = [spawn(RIVAL), spawn(RIVAL)]
    for rival in rivals:
        rival.expect("ready")
    named = 0
    for turn in range(count):
        go = tmp_path / f"go{turn}"
        for rival in rivals:
            rival.tell(str(go))
        go.touch()
        said = [json.loads(rival.line()) for rival in rivals]
        assert sorted(one[0] for one in said) == ["busy", "won"], said
        won = next(one for one in said if one[0] == "won")
        busy = next(one for one in said if one[0] == "busy")
        assert won[1] == "completed"
        assert busy[1] == "Session 's' already has an active operation"
        assert busy[3:5] == ["SESSION_BUSY", True]
        named += busy[2] == won[2]
    for rival in rivals:
        rival.tell()
        rival.finish()
    assert named == count, f"{count - named} of {count} refusals did not name the holder"


def after_rounds(db, count: int) -> None:
    verify(db)
    eyes = Plain(db)
    assert eyes.one("SELECT count(*) FROM facts WHERE kind = 'turn.ended'") == count
    assert eyes.one("SELECT count(*) FROM facts WHERE kind = 'user.message'") == count
    assert eyes.one("SELECT owner FROM sessions") is None
    assert eyes.one("SELECT count(*) FROM owner") == 0
    eyes.close()


def test_c05_of_two_processes_one_wins_and_the_other_hears_who_holds(spawn, tmp_path, db):
    """C05; the lease of the case is our kernel-held ownership."""
    rounds(spawn, tmp_path, 20)
    after_rounds(db, 20)


@pytest.mark.slow
def test_c05_a_hundred_times(spawn, tmp_path, db):
    rounds(spawn, tmp_path, 100)
    after_rounds(db, 100)


def test_a_held_session_is_busy_elsewhere_and_free_afterwards(spawn, tmp_path):
    go = tmp_path / "go"
    holder = spawn(
        """
@tool
def hold(context: ToolContext) -> str:
    say("holding")
    while not os.path.exists(args[0]): time.sleep(0.01)
    return "x"
with Agent(db, model=ScriptedModel([reply("", [call("hold")]), reply("Done.")]), tools=[hold]) as agent:
    say(agent._core.store.owner)
    say(agent.session(".", options(session_id="s")).send("Go.").status)
    hear()
""",
        go,
    )
    owner = holder.line()
    holder.expect("holding")
    other = spawn("""
with Agent(db, model=ScriptedModel([reply("Mine.")])) as agent:
    session = agent.resume_session("s")
    try: session.send("Go.")
    except SessionBusy as busy: say(json.dumps([busy.holder, str(busy)]))
    async def asynchronously():
        async with AsyncAgent(db, model=ScriptedModel([reply("no")])) as a:
            s = await a.resume_session("s")
            try: await s.send("Go.")
            except SessionBusy as busy: say(json.dumps([busy.holder, str(busy)]))
    asyncio.run(asynchronously())
    # reading needs no turn of one's own
    say(len(session.facts()) > 0, session.current_run().state, agent.list_sessions()[0].busy)
    hear()
    say(session.send("Go.").text)
""")
    for _ in range(2):
        assert json.loads(other.line()) == [owner, "Session 's' already has an active operation"]
    other.expect("True executing True")
    go.touch()
    holder.expect("completed")
    # the other process still lives and has its agent open: the session is free all the same
    other.tell()
    other.expect("Mine.")
    other.finish()
    holder.tell()
    holder.finish()


def test_c07_no_claim_is_left_after_twenty_ends_and_five_failures(spawn, plain, db):
    code = """
def fails(request): raise ValueError("no")
script = [reply("ok"), reply("ok"), reply("ok"), reply("ok"), fails] * 5
with Agent(db, model=ScriptedModel(script)) as agent:
    ends = []
    for number in range(25):
        session = agent.session(".", options(session_id=f"s{number}"))
        try: ends.append(session.send("Go.").status)
        except RunFailed as error: ends.append(error.code)
    say(json.dumps(ends))
    say(sum(info.busy for info in agent.list_sessions()))
    hear()
"""
    child = spawn(code)
    ends = json.loads(child.line())
    assert len(ends) == 25
    assert ends.count("completed") == 20
    child.expect("0")
    eyes = plain()
    assert eyes.one("SELECT count(*) FROM sessions WHERE owner IS NOT NULL") == 0
    eyes.close()
    child.tell()
    child.finish()
    assert not [entry.name for entry in db.parent.iterdir() if "-owner-" in entry.name]


MAKER = """
opened = None
while (word := hear()):
    path, go, name = json.loads(word)
    while not os.path.exists(go): time.sleep(0.0005)
    try:
        agent = Agent(path, model=ScriptedModel([reply("Hi.")]))
        session = agent.session("/w", options(session_id=name, tenant_id="t"))
        said = session.session_id
        if args[0] == "send":
            said = agent.session("/w", options(session_id=f"{name}-{os.getpid()}")).send("Go.").text
        agent.close()
        say(json.dumps(["ok", said]))
    except BaseException as error:
        say(json.dumps(["error", repr(error)]))
"""


def barrier(makers, path, go, name) -> list[list[str]]:
    for maker in makers:
        maker.tell(json.dumps([str(path), str(go), name]))
    go.touch()
    return [json.loads(maker.line()) for maker in makers]


def test_d02_eight_processes_open_a_file_that_does_not_exist(spawn, tmp_path):
    makers = [spawn(MAKER, "send") for _ in range(8)]
    for turn in range(20):
        folder = tmp_path / f"d{turn}"
        folder.mkdir()
        said = barrier(makers, folder / "new.db", tmp_path / f"go{turn}", "s")
        assert said == [["ok", "Hi."]] * 8
        facts = verify(folder / "new.db")
        assert len(facts) == 9
        assert sorted(facts.values()) == [0] + [4] * 8
    for maker in makers:
        maker.tell()
        maker.finish()


def test_c08_eight_processes_create_one_session_at_once(spawn, tmp_path, db):
    """C08: one creates, the others open what is there; never a raw integrity error, never a half row."""
    makers = [spawn(MAKER, "open") for _ in range(8)]
    for turn in range(50):
        said = barrier(makers, db, tmp_path / f"go{turn}", f"s{turn}")
        assert said == [["ok", f"s{turn}"]] * 8
    for maker in makers:
        maker.tell()
        maker.finish()
    eyes = Plain(db)
    assert eyes.one("SELECT count(*) FROM sessions") == 50
    assert eyes.one("SELECT count(*) FROM sessions WHERE tenant_id = 't' AND workspace = '/w'") == 50
    assert eyes.one("SELECT count(*) FROM session s JOIN session_option o USING(session_pk)") == 50
    assert eyes.one("SELECT count(*) FROM branch") == 50
    assert eyes.one("SELECT count(*) FROM file") == 1
    eyes.close()


APPENDER = """
import itertools
agent = Agent(db, model=ScriptedModel(itertools.repeat(reply("Done."))), durability=args[2])
session = agent.session(".", options(session_id=args[0]))
errors = 0
for number in range(int(args[1])):
    try: session.send(f"Message {number}.")
    except BaseException as error:
        errors += 1
        print(repr(error), file=sys.stderr)
agent.close()
say(errors)
"""


def appends(spawn, db, turns: int) -> None:
    children = [spawn(APPENDER, f"s{number}", turns, "power") for number in range(8)]
    for child in children:
        assert child.finish(timeout_s=110) == ["0"], child.errors
    assert verify(db) == {f"s{number}": 1 + 3 * turns for number in range(8)}


def test_d01_eight_processes_write_and_nobody_hears_that_it_is_locked(spawn, db):
    appends(spawn, db, 12)


@pytest.mark.slow
def test_d01_eight_times_two_hundred_facts(spawn, db):
    appends(spawn, db, 67)
