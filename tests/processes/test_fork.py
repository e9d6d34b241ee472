"""E11: a forked child may not use what its parent has open, and cannot harm it (§8)."""

from __future__ import annotations

import json
import sys

import pytest

from .kit import verify

pytestmark = pytest.mark.skipif(not hasattr(sys, "getswitchinterval") or sys.platform == "win32", reason="needs fork")

QUIET = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"


ATTEMPTS = {
    "reads": ["session.facts()", "session.runs()", "session.history()", "agent.list_sessions()", "session.events()"],
    "small writes": [
        "agent.session('.', options(session_id='child'))",
        "session.emit({'type': 'x', 'payload': {}})",
        "session.set_retention({'max_runs_retained': 1})",
        "session.cancel()",
        "session.interrupt('x')",
    ],
    "send": ["session.send('Child.')"],
    "stream": ["list(session.stream('Child.'))"],
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_e11_children_are_refused_and_the_parent_goes_on(spawn, db, what):
    """Three children, each tries, closes and leaves as usual; the parent then goes on ten times."""
    parent = spawn(
        QUIET
        + """
import itertools
agent = Agent(db, model=ScriptedModel(itertools.repeat(reply("Done."))))
session = agent.session(".", options(session_id="s"))
session.send("Before.")
attempts = json.loads(args[0])
for number in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(3)  # a child that hangs is killed by it, and its exit code says so
        refused = 0
        for attempt in attempts:
            try: eval(attempt)
            except ThenceError as error: refused += error.code == "STORE_ERROR"
            except BaseException as error: print(attempt, repr(error), file=sys.stderr)
        session.close()
        agent.close()
        sys.exit(refused)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
say(json.dumps([session.send(f"After {n}.").status for n in range(10)]))
say(len(session.facts()))
agent.close()
""",
        json.dumps(ATTEMPTS[what]),
    )
    children = [parent.line() for _ in range(3)]
    assert json.loads(parent.line()) == ["completed"] * 10
    parent.expect(str(1 + 11 * 3))
    parent.finish()
    assert verify(db) == {"s": 34}
    assert children == [str(len(ATTEMPTS[what]))] * 3, parent.errors


def test_e11_the_async_face(spawn, db):
    parent = spawn(
        QUIET
        + """
import itertools
async def child(session):
    refused = 0
    for attempt in (lambda: session.send("Child."), lambda: session.facts(), lambda: session.runs()):
        try: await attempt()
        except ThenceError: refused += 1
    return refused
async def main():
    async with AsyncAgent(db, model=ScriptedModel(itertools.repeat(reply("Done.")))) as agent:
        session = await agent.session(".", options(session_id="s"))
        await session.send("Before.")
        sys.stdout.flush()
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                signal.alarm(3)
                # the parent's loop is no use in a child: it makes one of its own, in a fresh thread
                box = []
                thread = threading.Thread(target=lambda: box.append(asyncio.run(child(session))))
                thread.start(); thread.join()
                os._exit(box[0] if box else 99)
            say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        say(json.dumps([(await session.send(f"After {n}.")).status for n in range(10)]))
asyncio.run(main())
"""
    )
    for _ in range(3):
        parent.expect("3")
    assert json.loads(parent.line()) == ["completed"] * 10
    parent.finish()
    assert verify(db) == {"s": 34}


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)", "return 'in the child'"])
def test_e11_a_tool_that_forks(spawn, db, leave):
    """The child of a tool may leave as it likes, or even go on as if it were the run: the file is the parent's."""
    parent = spawn(
        QUIET
        + f"""
@tool
def forks() -> str:
    pid = os.fork()
    if pid == 0:
        signal.alarm(2)
        try: session.facts()
        except ThenceError: {leave}
        os._exit(1)
    said = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return str(said)
agent = Agent(db, model=ScriptedModel([reply("", [call("forks")]), reply("Done."), reply("Again.")]), tools=[forks])
session = agent.session(".", options(session_id="s"))
say(session.send("Go.").text)
say(json.dumps([m.text for m in session.history() if m.role == "tool"]))
say(session.send("Go on.").text)
agent.close()
"""
    )
    parent.expect("Done.")
    (said,) = json.loads(parent.line())
    if leave == "os._exit(0)":
        assert said == "0"
    parent.expect("Again.")
    parent.finish()
    assert verify(db) == {"s": 9}


def test_e11_a_child_opens_the_file_for_itself(spawn, db):
    """What the child may do: open another agent. A living child does not keep its parent's session either."""
    parent = spawn(
        QUIET
        + """
agent = Agent(db, model=ScriptedModel([reply("Parent.")] * 3))
session = agent.session(".", options(session_id="p"))
session.send("Go.")
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    with Agent(db, model=ScriptedModel([reply("Child.")])) as own:
        text = own.session(".", options(session_id="c")).send("Go.").text
    say(text)
    os.read(read, 1)
    os._exit(0)
say(pid)
hear()
os._exit(0)
"""
    )
    child_pid, text = sorted([parent.line(), parent.line()])
    assert text == "Child."
    # the parent dies; its forked child lives on, and must not look like the parent
    parent.tell()
    parent.process.wait(30)
    other = spawn(
        """
with Agent(db, model=ScriptedModel([reply("Mine.")])) as agent:
    say(json.dumps([info.busy for info in agent.list_sessions()]))
    say(agent.resume_session("p").send("Go.").text)
os.kill(int(args[0]), signal.SIGKILL)
""",
        child_pid,
    )
    assert json.loads(other.line()) == [False, False]
    other.expect("Mine.")
    other.finish()
    assert verify(db) == {"p": 7, "c": 4}


def test_e11_a_multiprocessing_worker_and_a_subprocess_are_harmless(spawn, db):
    parent = spawn(
        QUIET
        + """
import multiprocessing, subprocess
def work(number): return number * number
if True:
    agent = Agent(db, model=ScriptedModel([reply("A."), reply("B.")]))
    session = agent.session(".", options(session_id="s"))
    session.send("Go.")
    with multiprocessing.get_context("fork").Pool(2) as pool: say(pool.map(work, range(4)))
    subprocess.run(["true"], check=True)
    say(session.send("Go.").text)
    agent.close()
"""
    )
    parent.expect("[0, 1, 4, 9]")
    parent.expect("B.")
    parent.finish()
    assert verify(db) == {"s": 7}
