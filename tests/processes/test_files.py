"""The files beside a session: their modes (L06), what hostile ids make of them (L01, L02), and losing them (§8)."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess

import pytest

from thence import Agent, AsyncAgent, FileReplaced, SessionOptions, StoreError, ThenceError, tool
from thence.testing import ScriptedModel, call, reply

from .kit import Plain, has_strace, verify

STRACE = pytest.mark.skipif(not has_strace(), reason="needs strace")

TURN = """
os.umask(int(args[0], 8))
@tool
def look() -> str:
    say(json.dumps(sorted([name, os.stat(os.path.join(folder, name)).st_mode & 0o777] for name in os.listdir(folder))))
    return "x"
folder = os.path.dirname(db)
with Agent(db, model=ScriptedModel([reply("", [call("look")]), reply("Done.")]), tools=[look]) as agent:
    session = agent.session(".", options(session_id="s"))
    session.send("x" * 300_000)
"""


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_l06_every_file_is_for_its_owner_only(spawn, db, umask):
    child = spawn(TURN, umask)
    found = json.loads(child.line())
    child.finish()
    names = {name for name, _ in found}
    assert {db.name, f"{db.name}-wal", f"{db.name}-shm"} <= names
    assert [mode for _, mode in found] == [0o600] * len(found), found
    for entry in db.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry


CREATED = re.compile(r'\b(?:open|openat|creat)\((?:AT_FDCWD, )?"([^"]*)", [^)]*O_CREAT[^)]*?(?:, (0\d+))?\)')
OTHERS = re.compile(r'\b(?:mkdir|mkdirat|symlink|symlinkat|link|linkat|rename|renameat2?|mknod|mknodat)\(.*"')


def created(log) -> list[tuple[str, str]]:
    """Path and mode of every file that was asked to be made."""
    found = [match.groups() for line in log.read_text().splitlines() for match in CREATED.finditer(line)]
    return [(path, mode) for path, mode in found if not path.startswith(("/dev/", "/proc/"))]


@STRACE
def test_l06_from_the_first_instant(spawn, db, tmp_path):
    log = tmp_path / "trace"
    child = spawn(TURN, "000", under=["strace", "-f", "-qq", "-o", str(log), "-e", "trace=open,openat,creat"])
    child.line()
    child.finish()
    made = [(path, mode) for path, mode in created(log) if path.startswith(str(db.parent))]
    assert any(path == str(db) for path, _ in made)
    assert any(path.endswith("-wal") for path, _ in made)
    assert {mode for _, mode in made} == {"0600"}, made


HOSTILE_PATHS = [
    "../../../pwn", "/etc/x", "a/b/c", "..", ".", "~/x", "-rf", "a\\b", "$(touch pwn)", "%2e%2e%2fx", "con", "x.db",
]  # fmt: skip

LIFE = """
names = json.loads(args[0])
@tool
def echo(text: str, context: ToolContext) -> str: return text + context.session_id
for name in names:
    script = [reply(name, [call("echo", {"text": name})]), reply(name)]
    with Agent(db, model=ScriptedModel(script), tools=[echo]) as agent:
        session = agent.session(".", options(session_id=name, tenant_id=name, principal=name))
        run = session.send(name)
        session.emit({"type": name, "payload": {name: name}})
        assert agent.resume_session(name).run_events(run.run_id)
        assert [i.session_id for i in agent.list_sessions(tenant_id=name)] == [name]
        list(session.tail(run.run_id))
say("done")
"""


@STRACE
def test_l02_hostile_ids_make_no_file_anywhere(spawn, db, tmp_path):
    log = tmp_path / "trace"
    calls = "trace=open,openat,creat,mkdir,mkdirat,symlink,symlinkat,link,linkat,rename,renameat,renameat2,mknod"
    child = spawn(
        LIFE, json.dumps(HOSTILE_PATHS), under=["strace", "-f", "-qq", "-s", "400", "-o", str(log), "-e", calls]
    )
    child.expect("done")
    child.finish()
    allowed = re.compile(re.escape(str(db)) + r"(-wal|-shm|-journal|-gate|-gate-next|-home|-owner-[\w-]+)?")
    made = [path for path, _ in created(log) if not path.endswith(".pyc") and "__pycache__" not in path]
    assert made
    assert [path for path in made if not allowed.fullmatch(path)] == []
    others = [line for line in log.read_text().splitlines() if OTHERS.search(line) and "__pycache__" not in line]
    assert others == []


def test_l02_nothing_is_beside_the_database_afterwards(spawn, db, tmp_path):
    child = spawn(LIFE, json.dumps(HOSTILE_PATHS))
    child.expect("done")
    child.finish()
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file() and not entry.name.startswith(db.name)] == []
    assert all(entry.parent == db.parent for entry in tmp_path.rglob("*") if entry.is_file())


SQLISH = [
    "'", '"', "''", "';--", "'; DROP TABLE fact;--", '"; DROP TABLE session;--', "x' OR '1'='1", "%", "_", "%%", "a_c",
    "*", "?", "??", ":session_id", "@x", "$x", "?1", "[a-z]", "{}", "[]", "null", "NULL", "None", "0", "00", "1", "-1",
    "1e3", "NaN", "true", "s", "S", "\u017f", "\u0131", "\u0130", "\u00df", "SS", "\u00e9", "e\u0301", "\ufb01",
    "\u212b", "\u00c5", "A\u030a", "\u202eevil", "\u200f", "\u200bx", "\ufeffx", "\U0001f642", "\U0001d54a", "\\",
    "\\x00", "${jndi:x}", "<script>", "&amp;", "..", "../..", " s", "s ", "a" * 100_000, "\u65e5\u672c", "\U0010ffff",
    "\\0", "\ufffe", "\ue000", "a\u2028b",
]  # fmt: skip


def test_l01_sixty_hostile_ids_and_tags_are_found_by_equality_only(db):
    """L01: as session id and as each tag; each is found by exact equality, once, and the tables are as before."""
    names = list(dict.fromkeys(SQLISH))
    assert len(names) >= 60
    before: set[str] = set()
    with Agent(db, model=ScriptedModel([reply("ok")] * len(names))) as agent:
        for name in names:
            options = SessionOptions(session_id=name)
            options.tenant_id = options.principal = options.agent_template_id = options.correlation_id = name
            session = agent.session(".", options)
            session.send(name)
            session.emit({"type": name[:100], "payload": {name: name}})  # a type has at most 200 bytes
            before = before or _objects(db)
        assert _objects(db) == before
        assert [info.session_id for info in agent.list_sessions()] == names
        for name in names:
            session = agent.resume_session(name)
            assert session.history()[0].text == name
            assert session.tenant_id == session.principal == session.agent_template_id == session.correlation_id == name
            (event,) = session.events()
            assert (event.type, event.payload) == (name[:100], {name: name})
            for tag in ("tenant_id", "principal", "agent_template_id", "correlation_id"):
                assert [info.session_id for info in agent.list_sessions(**{tag: name})] == [name]
            (run,) = session.runs()
            assert run.prompt == name
        for missing in ("s'", "%s%", "A" * 100_000, "none", "s\u017f"):
            assert agent.list_sessions(tenant_id=missing) == []
            with pytest.raises(ThenceError, match="Session not found"):
                agent.resume_session(missing)
    assert set(verify(db)) == set(names)


def _objects(db) -> set[str]:
    eyes = Plain(db)
    found = {name for (name,) in eyes.rows("SELECT name FROM sqlite_schema")}
    eyes.close()
    return found


def test_l01_hostile_run_ids_find_nothing(db):
    with Agent(db, model=ScriptedModel([reply("ok")])) as agent:
        session = agent.session(".", SessionOptions(session_id="s"))
        run = session.send("Go.").run_id
        for name in dict.fromkeys([*SQLISH, run + " ", run.upper(), run[:-1], run + "%", run[:-1] + "_"]):
            assert session.run_snapshot(name) is None, name
            assert session.run_events(name) == []
            assert session.run_event_page(name) is None
            assert session.cancel_run(name) is False
            with pytest.raises(ThenceError, match="not found"):
                list(session.tail(name))
        assert session.run_snapshot(run) is not None


@tool
def note(text: str) -> str:
    """Note."""
    return text


def lose(db, how: str) -> None:
    """Take the file away while an agent of this very process has it open, by name only."""
    if how == "moved":
        os.rename(db, db.with_name("elsewhere.db"))
    elif how == "deleted":
        os.unlink(db)
    elif how == "replaced":
        # another process makes another database, which then takes the place
        other = db.with_name("other.db")
        script = f"import sqlite3; c = sqlite3.connect({str(other)!r}); c.execute('CREATE TABLE t(x)'); c.commit()"
        subprocess.run(["python3", "-c", script], check=True)
        os.rename(other, db)
    elif how == "wal deleted":
        os.unlink(f"{db}-wal")
    elif how == "folder moved":
        os.rename(db.parent, db.parent.with_name("gone"))


LOSSES = ["moved", "deleted", "replaced", "wal deleted", "folder moved"]


@pytest.mark.parametrize("how", LOSSES)
def test_a_file_that_is_lost_while_open_acknowledges_nothing(db, how):
    agent = Agent(db, model=ScriptedModel([reply("One."), reply("Two."), reply("Three.")]))
    session = agent.session(".", SessionOptions(session_id="s"))
    session.send("Go.")
    lose(db, how)
    stranger = db.read_bytes() if how == "replaced" else b""
    for _ in range(2):
        with pytest.raises(FileReplaced, match=re.escape(db.name)) as lost:
            session.send("Is it there?")
        assert lost.value.code == "FILE_REPLACED"
    with pytest.raises(StoreError):
        session.emit({"type": "x", "payload": {}})
    with pytest.raises(StoreError):
        agent.session(".", SessionOptions(session_id="other"))
    agent.close()
    if how == "folder moved":
        assert verify(db.parent.with_name("gone") / db.name)["s"] >= 4
    if how == "replaced":
        # not one byte of ours went into somebody else's file (never open it beside our -wal to look)
        assert db.read_bytes() == stranger


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
async def test_a_lost_file_in_the_async_face(db, how):
    agent = AsyncAgent(db, model=ScriptedModel([reply("One."), reply("Two.")]))
    session = await agent.session(".", SessionOptions(session_id="s"))
    await session.send("Go.")
    lose(db, how)
    with pytest.raises(FileReplaced, match=re.escape(db.name)):
        await session.send("Is it there?")
    with pytest.raises(StoreError):
        await session.emit({"type": "x", "payload": {}})
    await agent.close()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_file_that_is_lost_in_the_middle_of_a_run(db, how):
    """The run fails with the reason; the tool that took the file away is not told that its result was kept."""

    @tool
    def loses() -> str:
        """Lose."""
        lose(db, how)
        return "lost"

    agent = Agent(db, model=ScriptedModel([reply("", [call("loses")]), reply("Done.")]), tools=[loses])
    session = agent.session(".", SessionOptions(session_id="s"))
    with pytest.raises(FileReplaced):
        session.send("Go.")
    agent.close()


def test_a_file_that_comes_back_can_be_opened_again(db):
    with Agent(db, model=ScriptedModel([reply("One."), reply("Two.")])) as agent:
        session = agent.session(".", SessionOptions(session_id="s"))
        session.send("Go.")
    verify(db)
    moved = db.with_name("moved.db")
    os.rename(db, moved)
    with Agent(moved, model=ScriptedModel([reply("Two.")])) as agent:
        assert agent.resume_session("s").send("Go on.").text == "Two."
    assert verify(moved) == {"s": 7}
