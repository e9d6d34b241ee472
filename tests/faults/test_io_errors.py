"""System calls that fail: typed errors only, nothing half done, and going on once the cause is gone (P7, P9, P10)."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, DiskFull, SessionOptions
from thence.testing import ScriptedModel, reply

from . import kit_faulty
from .kit import Judge, compiled, needs_strace, run_child
from .kit_crew import Worker
from .kit_recovery import violations

Measured = Callable[..., None]
FAULTY = Path(kit_faulty.__file__)


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("inject.c", tmp_path_factory.mktemp("injector"))


def judge_faults(printed: str, errors: str, measured: Measured) -> None:
    """Nothing wrong after any fault, and no traceback on the way."""
    found: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
    measured(faults=len(found), said=dict(Counter(one["said"] for one in found)))
    assert "Traceback" not in errors, errors[-3000:]
    assert not [one for one in found if one["wrong"]], [one for one in found if one["wrong"]][:3]
    codes = {"None", "STORE_ERROR", "DISK_FULL", "FILE_REFUSED", "FILE_REPLACED", "RUN_INTERRUPTED"}
    assert {one["said"] for one in found} <= codes
    assert {one["again"] for one in found} <= {"works", "closed"}, "the same object does not go on"


def fail_each(injector: Path, quick: Path, measured: Measured, kind: str, error: str, how: str, stride: int) -> None:
    folder = quick / "data"
    env = {"LD_PRELOAD": str(injector), "FAULT_DIR": str(folder)}
    done = run_child("", folder, kind, error, how, stride, code_of=FAULTY, **env)
    assert done.returncode == 0, done.stderr[-3000:]
    judge_faults(done.stdout, done.stderr, measured)


@pytest.mark.parametrize(
    ("kind", "error", "how", "stride"),
    [
        ("write", "EIO", "once", 71),
        ("write", "ENOSPC", "on", 83),
        ("sync", "EIO", "once", 5),
        ("truncate", "EIO", "once", 2),
        ("open", "EMFILE", "once", 3),
        ("read", "EIO", "once", 61),
    ],
)
def test_p7_a_call_fails(
    injector: Path, quick: Path, measured: Measured, kind: str, error: str, how: str, stride: int
) -> None:
    fail_each(injector, quick, measured, kind, error, how, stride)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["once", "on"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EACCES", "EMFILE"])
@pytest.mark.parametrize("kind", ["write", "sync", "truncate", "open", "read"])
def test_p7_every_call_fails(injector: Path, quick: Path, measured: Measured, kind: str, error: str, how: str) -> None:
    fail_each(injector, quick, measured, kind, error, how, 3 if kind in ("write", "read") else 1)


def fail_from_outside(tmp_path: Path, syscall: str, error: str, number: int) -> str:
    """A whole process under strace, which fails its ``number``-th call on the database's files."""
    strace, folder = needs_strace(), tmp_path / f"{syscall}-{error}-{number}"
    folder.mkdir()
    paths = [word for suffix in ("", "-wal", "-shm", "-journal") for word in ("-P", str(folder / f"a.db{suffix}"))]
    inject = f"inject={syscall}:error={error}:when={number}"
    under = [strace, "-f", "-o", "/dev/null", *paths, "-e", f"trace={syscall}", "-e", inject]
    done = run_child("", folder, "once", code_of=FAULTY, under=under)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["wrong"] + violations(folder, found["marks"]) == [], (syscall, error, number)
    return str(found["said"])


@pytest.mark.parametrize(
    ("syscall", "error", "number", "said"),
    [("pwrite64", "EIO", 200, "STORE_ERROR"), ("fdatasync", "ENOSPC", 8, "DISK_FULL|STORE_ERROR")],
)
def test_p7_a_call_fails_under_strace(tmp_path: Path, syscall: str, error: str, number: int, said: str) -> None:
    """The same from outside the process, as a check of the shim."""
    assert fail_from_outside(tmp_path, syscall, error, number) in said.split("|")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("syscall", ["pwrite64", "fdatasync", "ftruncate", "openat"])
def test_p7_calls_fail_under_strace(tmp_path: Path, measured: Measured, syscall: str, error: str) -> None:
    step = 37 if syscall == "pwrite64" else 1
    said = Counter(fail_from_outside(tmp_path, syscall, error, 1 + step * number) for number in range(20))
    measured(**said)
    assert len(said) > 1 or syscall == "ftruncate"


def test_p10_out_of_file_descriptors(tmp_path: Path, measured: Measured) -> None:
    done = run_child("", tmp_path / "data", "descriptors", code_of=FAULTY)
    assert done.returncode == 0, done.stderr[-3000:]
    judge_faults(done.stdout, done.stderr, measured)
    assert len(done.stdout.splitlines()) > 4


CHECKPOINTS = """
import ctypes, errno, logging
from thence.store import checkpoint
checkpoint.SOFT_BYTES = 400_000
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
logging.getLogger("thence.store").addHandler(Keep())
logging.getLogger("thence.store").propagate = False
shim = ctypes.CDLL(None)
with Agent(db) as agent:
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    session.events()
    store = agent._core.store
    before = store.stats().checkpoints
    # nobody but the checkpoint opens anything from here on
    shim.fault_arm(4, int(args[0]), errno.EIO, 0)
    for number in range(400):
        session.emit({"type": "note", "payload": {"n": number}})
    say(failed=shim.fault_seen(), made=store.stats().checkpoints - before, complaints=len(complaints),
        last=complaints[-1:], wal=os.stat(db + "-wal").st_size)
"""


@pytest.mark.parametrize("number", [1, 2])
def test_a_checkpoint_that_failed_once_succeeds_later(
    injector: Path, tmp_path: Path, crew: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One error while it opens its files must not end checkpoints for the life of the process (F09), nor fill the
    log with one complaint a commit (E17)."""
    monkeypatch.setenv("LD_PRELOAD", str(injector))
    monkeypatch.setenv("FAULT_DIR", str(tmp_path))
    said = crew(CHECKPOINTS, "w", number).hear()
    assert said["failed"] >= number, "the fault never happened"
    assert said["made"] >= 3, said
    assert said["complaints"] <= 3, said


# -- no space


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for little."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        made = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes what room is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_p9_a_full_disk(tiny: Path) -> None:
    db = tiny / "a.db"
    with Agent(db, model=ScriptedModel([reply(text) for text in ("one", "two", "three")])) as agent:
        session = agent.session("/nowhere", SessionOptions(session_id="s"))
        assert session.send("first").text == "one"
        ballast = fill(tiny)
        before = session.facts()
        for _ in range(3):
            with pytest.raises(DiskFull) as refused:
                session.emit({"type": "note", "payload": {"text": "x" * 5000}})
            assert refused.value.retryable
            with pytest.raises(DiskFull):
                session.send("x" * 5000)
        assert session.facts() == before
        assert [run.status for run in session.runs()] == ["completed"]
        ballast.unlink()
        assert session.send("second").text == "two"
        session.emit({"type": "note", "payload": {"text": "x" * 5000}})
    with Judge(db) as judge:
        assert judge.complaints() == []


def test_p9_a_file_is_closed_on_a_full_disk(tiny: Path) -> None:
    """The checkpoint of the last close has no room for the pages at the file's end; the -wal still has them."""
    db = tiny / "a.db"
    agent = Agent(db, model=ScriptedModel([reply("one")]))
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    session.send("first")
    facts = session.facts()
    ballast = fill(tiny)
    agent.close()
    ballast.unlink()
    with Agent(db, model=ScriptedModel([reply("two")])) as agent:
        session = agent.resume_session("s")
        assert session.facts() == facts
        assert session.send("second").text == "two"


LIMITED = """
import resource
from thence.testing import ScriptedModel, reply

class Model:
    name = "model"
    def stream(self, request):
        yield Reply("done")

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with Agent(db, model=Model()) as agent:
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    session.send("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(db + "-wal").st_size + 9000, hard))
    codes, kept = [], 0
    for number in range(6):
        try:
            session.emit({"type": "note", "payload": {"text": "x" * 3000}})
            kept += 1
        except ThenceError as error:
            codes.append(error.code)
    facts = len(session.facts())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    say(codes=codes, kept=kept, facts=facts, text=session.send("second").text, events=len(session.events()))
"""


def test_p9_a_file_that_may_not_grow(crew: Callable[..., Worker]) -> None:
    said = crew(LIMITED, "w").hear()
    assert set(said["codes"]) <= {"STORE_ERROR", "DISK_FULL"} and len(said["codes"]) >= 3, said
    assert (said["facts"], said["text"]) == (4, "done")
    assert said["events"] == said["kept"], said
