"""Processes that are stopped, neither alive nor dead: inside a transaction, inside a read (C4, C6, F09)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from thence.store import checkpoint

from .kit import Judge
from .kit_crew import Worker

Crew = Callable[..., Worker]

ZOMBIE = """
from thence.store import writer

agent = Agent(db)
session = agent.session("/nowhere", SessionOptions(session_id="zombie"))
real = writer.perform

def perform(*given):
    answer = real(*given)
    say(stopped="inside a transaction")
    os.kill(os.getpid(), signal.SIGSTOP)
    return answer

writer.perform = perform
session.emit({"type": "note", "payload": {}})
say(woken="committed")
hear()
"""

OTHER = """
from thence.store import connect

# what a statement waits for another process: not the half minute that it is
connect.connect.__kwdefaults__["busy_timeout_s"] = 0.5

class Model:
    name = "model"
    def stream(self, request):
        yield Reply("done")

with Agent(db, model=Model()) as agent:
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    session.send("first")
    say(ready=True)
    while (task := hear()) != "leave":
        began = time.monotonic()
        try:
            said = session.send("again").text if task == "send" else len(session.facts())
        except ThenceError as error:
            said = [type(error).__name__, error.code, error.retryable]
        except BaseException as error:
            said = repr(error)
        say(said=said, seconds=time.monotonic() - began)
"""


def wait_until_stopped(worker: Worker) -> None:
    state = Path(f"/proc/{worker.process.pid}/stat")
    while state.read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.002)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGCONT])
def test_c4_a_process_stopped_inside_a_transaction(crew: Crew, tmp_path: Path, ending: signal.Signals) -> None:
    """Others read as ever, and are told within their bounded wait that they cannot write; then they can."""
    other = crew(OTHER, "other")
    assert other.hear() == {"ready": True}
    zombie = crew(ZOMBIE, "zombie")
    assert zombie.hear() == {"stopped": "inside a transaction"}
    wait_until_stopped(zombie)

    other.tell("read")
    said = other.hear()
    assert said["said"] == 4 and said["seconds"] < 1, said
    other.tell("send")
    said = other.hear()
    assert said["said"] == ["StoreError", "STORE_ERROR", True], said
    assert said["seconds"] < 15

    zombie.kill(ending)
    if ending == signal.SIGKILL:
        zombie.process.wait()
    else:
        assert zombie.hear() == {"woken": "committed"}
    other.tell("send")
    assert other.hear()["said"] == "done"
    other.tell("leave")
    other.process.wait(30)
    zombie.end()
    with Judge(tmp_path / "a.db") as judge:
        assert judge.complaints() == []
        assert judge.rows("SELECT facts FROM sessions WHERE session_id = 's'") == [(7,)]
        kept = judge.rows("SELECT (SELECT count(*) FROM event WHERE type = 'note') + (SELECT count(*) FROM inbox)")
        assert kept == [(int(ending == signal.SIGCONT),)]


READER = """
import sqlite3
plain = sqlite3.connect(db, isolation_level=None)
plain.execute("PRAGMA query_only=ON")
plain.execute("BEGIN")
plain.execute("SELECT count(*) FROM fact").fetchone()
say(reading=True)
time.sleep(3600)
"""

APPENDER = """
from thence.store import checkpoint
checkpoint.SOFT_BYTES, checkpoint.HARD_BYTES, checkpoint.WARN_BYTES = map(int, args)

class Model:
    name = "model"
    def stream(self, request):
        yield Reply("x" * 50_000)

import logging
warnings = []
class Keep(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("thence.store").addHandler(Keep())

with Agent(db, model=Model(), durability="process") as agent:
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    session.send("first")
    say(ready=True)
    while (task := hear()) != "leave":
        sizes = []
        for _ in range(int(task)):
            session.send("y" * 50_000)
            sizes.append(os.stat(db + "-wal").st_size)
        say(largest=max(sizes), smallest=min(sizes), warnings=warnings, made=agent._core.store.stats().checkpoints)
"""


def pin_and_release(crew: Crew, db: Path, pinned_turns: int, later_turns: int, *thresholds: int) -> None:
    """A reader holds an old snapshot while turns are written, and dies; then the WAL is cut by the next checkpoint."""
    appender = crew(APPENDER, "appender", *thresholds)
    assert appender.hear() == {"ready": True}
    reader = crew(READER, "reader")
    assert reader.hear() == {"reading": True}
    reader.kill(signal.SIGSTOP)
    wait_until_stopped(reader)

    appender.tell(str(pinned_turns))
    pinned = appender.hear()
    assert pinned["largest"] > 6 * 2**20, "the reader was to pin the -wal"
    assert len(pinned["warnings"]) == 1 and "MiB" in pinned["warnings"][0], pinned["warnings"]

    reader.kill()
    reader.process.wait()
    appender.tell(str(later_turns))
    after = appender.hear()
    assert after["made"] > pinned["made"]
    assert after["smallest"] <= 4 * 2**20, after
    appender.tell("leave")
    appender.process.wait(60)
    assert not Path(f"{db}-wal").exists(), "the last one to close folds it in"
    with Judge(db) as judge:
        assert judge.complaints() == []
        assert judge.rows("SELECT facts FROM sessions") == [(1 + 3 * (1 + pinned_turns + later_turns),)]


def test_f09_a_stopped_reader_pins_the_wal_until_it_dies(crew: Crew, tmp_path: Path) -> None:
    """A WAL of 8 MiB; the thresholds are small in proportion."""
    mib = 2**20
    pin_and_release(crew, tmp_path / "a.db", 60, 12, mib // 2, 2 * mib, 4 * mib)


@pytest.mark.slow
def test_f09_a_stopped_reader_with_the_thresholds_as_they_are(crew: Crew, tmp_path: Path) -> None:
    """A WAL of 80 MiB. What was held back is folded in once 4 MiB more are written."""
    thresholds = (checkpoint.SOFT_BYTES, checkpoint.HARD_BYTES, checkpoint.WARN_BYTES)
    pin_and_release(crew, tmp_path / "a.db", 700, 60, *thresholds)
