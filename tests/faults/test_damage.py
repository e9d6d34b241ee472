"""Files that were damaged: what is read is right or refused, never wrong and never silently less (D5, D6, E05)."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, Session, SessionOptions, StoreError, ThenceError

from . import kit_scenario
from .kit import Judge, run_child

Measured = Callable[..., None]
Seen = dict[str, Any]

NAMES = ("s0", "s1", "s2")
HANG_S = 60.0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed file with three sessions, resumed runs and blobs."""
    folder = tmp_path_factory.mktemp("sound")
    life = Path(kit_scenario.__file__)
    done = run_child("", "sync", folder / "a.db", folder / "marks", "process", 3, code_of=life)
    assert done.returncode == 0, done.stderr
    assert not (folder / "a.db-wal").exists()
    return folder / "a.db"


def chains_of(session: Session) -> list[Any]:
    """What of each fact the hash chain covers (§4)."""
    return [[f.seq, f.kind, f.key, f.cause, f.text, f.prev_hash, f.hash] for f in session.facts()]


def histories_of(session: Session) -> list[str]:
    return [repr(message) for message in session.history()]


def look(db: Path) -> Seen:
    """All that the library reads of a file, by what it was asked; an error where it refuses."""
    seen: Seen = {}

    def ask(what: str, body: Callable[[], Any]) -> Any:
        try:
            seen[what] = body()
        except ThenceError as error:
            seen[what] = error
        return seen[what]

    agent = ask("open", lambda: Agent(db))
    if isinstance(agent, ThenceError):
        return seen
    del seen["open"]
    with agent:
        ask("sessions", lambda: [one.session_id for one in agent.list_sessions()])
        for name in NAMES:
            session = ask(f"{name} open", partial(agent.resume_session, name))
            if isinstance(session, ThenceError):
                continue
            seen[f"{name} open"] = session.session_id
            ask(f"{name} facts", partial(chains_of, session))
            ask(f"{name} history", partial(histories_of, session))
            runs = ask(f"{name} runs", session.runs)
            ask(f"{name} channel", session.events)
            ask(f"{name} traces", session.trace_events)
            for run in runs[-1:] if isinstance(runs, list) else []:
                ask(f"{name} events", partial(session.run_events, run.id))
    return seen


def look_in_time(db: Path) -> Seen | str:
    """The same, or what kept it from answering."""
    found: list[Seen | str] = []

    def body() -> None:
        try:
            found.append(look(db))
        except BaseException as error:  # whatever comes is what the test is about
            found.append(f"a bare {error!r}")

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(HANG_S)
    return found[0] if found else "it hangs"


def wrong(seen: Seen | str, right: Seen) -> list[str]:
    """Answers that a damaged file must not give."""
    if isinstance(seen, str):
        return [seen]
    found: list[str] = []
    for what, value in seen.items():
        if isinstance(value, ThenceError):
            if value.code == "SESSION_NOT_FOUND":
                found.append(f"{what}: {value}")
        elif what.endswith(("facts", "history", "open")) and value != right[what]:
            kind = "fewer" if isinstance(value, list) and value == right[what][: len(value)] else "changed"
            found.append(f"{what}: {kind} than it was, without a word")
    listed = seen.get("sessions")
    if isinstance(listed, list) and len(listed) != len(right["sessions"]):
        found.append(f"sessions: {len(listed)} of {len(right['sessions'])}")
    return found


def flip_bits(sound: Path, quick: Path, number: int, seed: int, measured: Measured) -> None:
    """``number`` files, each with one bit turned."""
    right = look(sound)
    assert not [what for what, value in right.items() if isinstance(value, ThenceError)]
    data, rng = sound.read_bytes(), random.Random(seed)
    db, told, found = quick / "b.db", Counter[str](), list[str]()
    for _ in range(number):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        for old in quick.iterdir():
            old.unlink()
        db.write_bytes(damaged)
        seen = look_in_time(db)
        refusals = [] if isinstance(seen, str) else [v.code for v in seen.values() if isinstance(v, ThenceError)]
        told[refusals[0] if refusals else "nothing"] += 1
        found += [f"byte {at} bit {bit} (page {at // 4096 + 1}): {one}" for one in wrong(seen, right)]
    measured(flips=number, told=dict(told), wrong=len(found))
    assert not found, "\n".join(found[:8])


def test_d6_a_turned_bit_is_never_taken_for_good(sound: Path, quick: Path, measured: Measured) -> None:
    flip_bits(sound, quick, 300, 1, measured)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_d6_two_thousand_turned_bits(sound: Path, quick: Path, measured: Measured) -> None:
    flip_bits(sound, quick, 2000, 2, measured)


def root_page(db: Path, name: str) -> int:
    plain = sqlite3.connect(db)
    try:
        return int(plain.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()[0])
    finally:
        plain.close()


SLOW = pytest.mark.slow
TABLES = [
    "session",
    "fact",
    "ancestry",
    "session_option",
    *(pytest.param(name, marks=SLOW) for name in ("branch", "run_identity", "run", "trace", "event", "stream")),
]


@pytest.mark.parametrize("name", TABLES)
def test_e05_a_damaged_table_is_told(sound: Path, quick: Path, name: str) -> None:
    """Bits of the root page of a table or index, mostly where its rows are: no answer that is wrong, nobody missing."""
    right = look(sound)
    start = (root_page(sound, name) - 1) * 4096
    data, rng, found = sound.read_bytes(), random.Random(1), list[str]()
    for _ in range(30):
        at, bit = rng.choice([rng.randrange(100), 4095 - rng.randrange(240)]), rng.randrange(8)
        damaged = bytearray(data)
        damaged[start + at] ^= 1 << bit
        for old in quick.iterdir():
            old.unlink()
        (quick / "b.db").write_bytes(damaged)
        found += [f"byte {at} bit {bit}: {one}" for one in wrong(look_in_time(quick / "b.db"), right)]
    assert not found, "\n".join(found[:8])


def test_e05_a_damaged_index_is_no_missing_session(sound: Path, tmp_path: Path) -> None:
    """One bit of a key in the index of session ids: the lookup misses, the row is there."""
    db = tmp_path / "a.db"
    start = (root_page(sound, "sqlite_autoindex_session_1") - 1) * 4096
    data = bytearray(sound.read_bytes())
    at = data.index(b"s0", start, start + 4096)
    data[at + 1] ^= 8
    db.write_bytes(data)
    with Agent(db) as agent:
        for ask in (lambda: agent.resume_session("s0"), lambda: agent.session(".", SessionOptions(session_id="s0"))):
            with pytest.raises(StoreError, match="damaged"):
                ask()
        assert len(agent.list_sessions()) == 3


def damage(db: Path, sql: str, *values: object) -> None:
    """Change a row as no statement of ours would, with our triggers out of the way."""
    plain = sqlite3.connect(db, isolation_level=None)
    try:
        plain.execute("BEGIN IMMEDIATE")
        triggers = plain.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            plain.execute(f'DROP TRIGGER "{name}"')
        changed = plain.execute(sql, values).rowcount
        for _, text in triggers:
            plain.execute(text)
        plain.execute("COMMIT")
    finally:
        plain.close()
    assert changed == 1


@pytest.mark.parametrize(
    ("what", "sql"),
    [
        ("a fact in the middle is gone", "DELETE FROM fact WHERE key = 't2-r1' AND branch_pk = {branch}"),
        ("the last fact is gone", "DELETE FROM fact WHERE key = 't2-end' AND branch_pk = {branch}"),
        ("its branch is another session's", "UPDATE session SET live_branch = {other} WHERE session_id = 's0'"),
        ("its branch is nowhere", "UPDATE session SET live_branch = 99 WHERE session_id = 's0'"),
    ],
    ids=lambda one: one.replace(" ", "-") if one[0].islower() else "",
)
def test_d5_a_log_that_is_not_whole_is_refused(sound: Path, tmp_path: Path, what: str, sql: str) -> None:
    """The chain and the head say how the log goes on and where it ends: nothing else may be handed out (§4)."""
    db = tmp_path / "a.db"
    shutil.copy(sound, db)
    with Judge(db) as judge:
        by_session = dict(judge.rows("SELECT session_id, live_branch FROM session"))
        (branch,) = judge.rows(
            "SELECT branch_pk FROM branch WHERE session_pk = (SELECT session_pk FROM session WHERE session_id = 's0') "
            "ORDER BY branch_pk LIMIT 1"
        )[0]
    damage(db, sql.format(branch=branch, other=by_session["s1"]))
    with Agent(db) as agent:
        session = agent.resume_session("s0")
        for read in (session.facts, session.history):
            with pytest.raises(StoreError):
                read()
