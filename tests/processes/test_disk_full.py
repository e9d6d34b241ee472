"""No space left while running: a typed error, reads that work, and going on once there is space (§1, §8)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from thence import Agent, AsyncAgent, DiskFull, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from .kit import verify


def can_mount() -> bool:
    """Whether a child may have a small file system of its own."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def limit(agent: Agent | AsyncAgent, pages: int) -> None:
    """Let the file grow to so many pages and no further; 0 lifts it. There is no public way to fill a disk."""
    store = agent._core.store
    writer = store._writer  # type: ignore[attr-defined]
    (now,) = writer.connection.execute("PRAGMA page_count").fetchone()
    target = 1_000_000_000 if pages == 0 else now + pages
    writer.connection.execute(f"PRAGMA max_page_count={target}")


def test_disk_full_in_the_sync_face(db):
    ran: list[str] = []

    @tool
    def big(n: int) -> str:
        """Big."""
        ran.append(str(n))
        return "y" * 20_000

    script = [reply("", [call("big", {"n": n})]) for n in range(50)]
    agent = Agent(db, model=ScriptedModel([reply("First."), *script, *[reply("Later.")] * 9]), tools=[big])
    session = agent.session(".", SessionOptions(session_id="s"))
    session.send("Before.")
    kept = len(session.facts())
    limit(agent, 40)
    with pytest.raises(DiskFull) as full:
        session.send("Go.")
    assert full.value.code == "DISK_FULL"
    assert full.value.retryable
    assert str(db) in str(full.value)
    # reads work, what was acknowledged is there, each further write says the same
    facts = session.facts()
    assert len(facts) > kept
    assert session.runs()[0].result_text == "First."
    assert ran
    with pytest.raises(DiskFull):
        session.emit({"type": "x", "payload": {"text": "z" * 400_000}})
    limit(agent, 0)
    # the same objects go on
    session.emit({"type": "x", "payload": {"text": "z" * 400_000}})
    assert session.send("Go on.", on_interrupted="settle").status == "completed"
    assert [fact.hash for fact in session.facts()][: len(facts)] == [fact.hash for fact in facts]
    agent.close()
    verify(db)


async def test_disk_full_in_the_async_face(db):
    agent = AsyncAgent(db, model=ScriptedModel([reply("First."), reply("z" * 2_000_000), reply("Later.")]))
    session = await agent.session(".", SessionOptions(session_id="s"))
    await session.send("Before.")
    limit(agent, 30)
    with pytest.raises(DiskFull):
        await session.send("Go.")
    assert (await session.facts())[-1].kind in ("user.message", "model.turn")
    limit(agent, 0)
    assert (await session.send("Go on.", on_interrupted="settle")).text == "Later."
    await agent.close()
    verify(db)


def test_no_space_for_the_first_write(tmp_path):
    agent = Agent(tmp_path / "a.db", model=ScriptedModel([reply("x")]))
    limit(agent, 1)
    session = None
    with pytest.raises(DiskFull):
        for number in range(5000):
            session = agent.session(".", SessionOptions(session_id=f"s{number}" + "x" * 500))
    assert session is not None
    assert agent.list_sessions()
    agent.close()


TMPFS = """
import errno, shutil
import thence.host.drive
folder = os.path.dirname(db)
filler = os.path.join(folder, "filler")

def fill():
    with open(filler, "wb", buffering=0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError as error: assert error.errno == errno.ENOSPC

@tool
def work(n: int) -> str:
    if n == 2: fill()
    return "y" * 30_000

script = [reply("", [call("work", {"n": n})]) for n in range(4)]
agent = Agent(db, model=ScriptedModel([reply("First."), *script, *[reply("Later.")] * 9]), tools=[work])
session = agent.session(".", options(session_id="s"))
session.send("Before.")
try: say(session.send("Go.").status)
except StoreError as error: say(json.dumps([error.code, error.retryable]))
facts = [fact.hash for fact in session.facts()]
say(len(facts), [run.result_text for run in session.runs()][0])
times = []
for _ in range(5):
    began = time.monotonic()
    try: session.emit({"type": "x", "payload": {"text": "z" * 10_000}}); say("written")
    except StoreError as error: times.append([error.code, time.monotonic() - began])
say(json.dumps(times))
try: Agent(os.path.join(folder, "other.db")); say("made")
except StoreError as error: say(error.code)
os.unlink(filler)
session.emit({"type": "x", "payload": {"text": "z" * 10_000}})
say(session.send("Go on.", on_interrupted="settle").status)
say([fact.hash for fact in session.facts()][:len(facts)] == facts)
agent.close()
shutil.copy(db, args[0])
"""


@pytest.mark.skipif(not can_mount(), reason="needs root and unshare, to have a small file system")
def test_disk_full_on_a_real_file_system(spawn, tmp_path):
    """F10 in the small: 6 MB of tmpfs, filled by somebody else in the middle of a run."""
    small = tmp_path / "small"
    small.mkdir()
    copy = tmp_path / "copy.db"
    under = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=6m tmpfs "{small}" && exec "$@"', "sh"]
    child = spawn(TMPFS, copy, path=small / "a.db", under=under)
    assert json.loads(child.line()) == ["DISK_FULL", True]
    count, first = child.line().split()
    assert first == "First."
    assert int(count) > 4
    refused = json.loads(child.line())
    assert [code for code, _ in refused] == ["DISK_FULL"] * 5
    assert max(seconds for _, seconds in refused) < 5
    # a new file cannot be made either, and that is said by a typed error too
    assert child.line() in ("DISK_FULL", "STORE_ERROR", "FILE_REFUSED")
    child.expect("completed")
    child.expect("True")
    child.finish()
    verify(copy)


RLIMIT = """
import resource
agent = Agent(db, model=ScriptedModel([reply("First."), reply("z" * 3_000_000), *[reply("Later.")] * 9]))
session = agent.session(".", options(session_id="s"))
session.send("Before.")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
try: say(session.send("Go.").status)
except StoreError as error: say(json.dumps([error.code, isinstance(error, RuntimeError)]))
facts = [fact.hash for fact in session.facts()]
say(len(facts))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
say(session.send("Go on.", on_interrupted="settle").status)
say([fact.hash for fact in session.facts()][:len(facts)] == facts)
agent.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_file_that_may_not_grow(spawn, db):
    """A limit on file size is no full disk to SQLite but an I/O error: typed all the same, and got over."""
    child = spawn(RLIMIT)
    code, typed = json.loads(child.line())
    assert code in ("DISK_FULL", "STORE_ERROR")
    assert typed
    assert int(child.line()) >= 4
    child.expect("completed")
    child.expect("True")
    child.finish()
    verify(db)
