"""What `resume_run` refuses: three clear errors, and nothing changed (§7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from thence import Agent, SessionError, SessionOptions, StoreError, ThenceError

from .hand import by_hand
from .kit import Again, Eyes, calls, done, dump, head, last_run, resume, run_rows

SCRIPT = [calls("look:1", "add:2"), calls("add:3"), done("All is done.")]


def kept(db: Path) -> list[str]:
    """The whole file but for the sessions' rows: a claim that was given back has moved a fence."""
    return [line for line in dump(db) if not line.startswith('INSERT INTO "session" ')]


def refused(face: str, db: Path, run_id: str, session: str = "s") -> ThenceError:
    """The error of a resume that must change nothing, and must leave the session free."""
    before, runs = kept(db), run_rows(db)
    after = resume(face, db, run_id, SCRIPT, session=session)
    assert isinstance(after.error, ThenceError), after
    assert after.nothing_called
    assert kept(db) == before and run_rows(db) == runs
    with Eyes(db) as eyes:
        assert eyes.one("SELECT owner FROM session WHERE session_id = ?", session) is None
    return after.error


@pytest.mark.parametrize("at", [8, 19, 0])
def test_another_sessions_run(face: str, db: Path, at: int) -> None:
    """Whether it is open, has a checkpoint, or is settled."""
    by_hand(db, SCRIPT, at=at)
    run_id = last_run(db)
    assert run_id is not None
    with Agent(db, model=Again([done("Mine.")]), durability="process") as agent:
        agent.session("/w", SessionOptions(session_id="other")).send("Go.")
    error = refused(face, db, run_id, "other")
    assert isinstance(error, SessionError)
    assert error.code == "SESSION_ERROR" and run_id in str(error) and "session 's'" in str(error)
    if at:
        assert resume(face, db, run_id, SCRIPT).error is None


def test_a_checkpoint_of_a_future_version(face: str, db: Path, quick: Path) -> None:
    by_hand(db, SCRIPT, at=19)
    run_id = last_run(db) or ""
    with Eyes(db) as eyes:
        (now,) = eyes.rows("SELECT schema_version FROM checkpoint")[0]
        eyes.db.execute("UPDATE checkpoint SET schema_version = ?", (now + 41,))
    error = refused(face, db, run_id)
    assert isinstance(error, SessionError)
    assert f"schema version {now + 41}" in str(error) and f"at most {now}" in str(error)
    # an earlier one is no obstacle, and after a refusal the run is still there to be resumed
    with Eyes(db) as eyes:
        eyes.db.execute("UPDATE checkpoint SET schema_version = ?, fence = (SELECT fence FROM session)", (now,))
    assert resume(face, db, run_id, SCRIPT).error is None
    by_hand(quick / "undisturbed.db", SCRIPT)
    assert head(db) == head(quick / "undisturbed.db")


def patch(db: Path, old: bytes, new: bytes, *, only: int = 1) -> None:
    """Change bytes of a closed file where they stand."""
    assert len(old) == len(new)
    data = db.read_bytes()
    assert data.count(old) == only, data.count(old)
    db.write_bytes(data.replace(old, new))


DAMAGE = {
    "another text": (b'"text":"Please go."', b'"text":"Please no."'),
    "no JSON": (b'{"origin":"host"', b'{"origin":"host '),
    "no UTF-8": (b"Please go.", b"Please \xff\xfe."),
    "another kind": (b"user.message", b"user.massage"),
    "another key": (b"t1-user", b"t1-uzer"),
}


@pytest.mark.parametrize("what", list(DAMAGE))
def test_a_damaged_fact(face: str, db: Path, what: str) -> None:
    """Never folded as if it were good, never "not found": the chain says what was stored."""
    by_hand(db, SCRIPT, at=19, prompt="Please go.")
    run_id = last_run(db) or ""
    old, new = DAMAGE[what]
    data = db.read_bytes()
    patch(db, old, new, only=data.count(old))
    before = db.read_bytes()
    after = resume(face, db, run_id, SCRIPT, read=False)
    assert isinstance(after.error, StoreError | SessionError), after.error
    assert after.nothing_called
    said = str(after.error)
    assert "damaged" in said or ("Could not decode to UTF-8" in said and str(db) in said), said
    assert "no loop checkpoint" not in str(after.error)
    for page in (b"t1-r1-c0", b"fact", new):
        assert db.read_bytes().count(page) == before.count(page)
    with Eyes(db) as eyes:
        assert eyes.one("SELECT count(*) FROM run") == eyes.one("SELECT count(*) FROM branch") == 1


def test_a_damaged_landing(face: str, db: Path) -> None:
    """A result that cannot be read is an error; its call is not run again as if there were none."""
    by_hand(db, [calls("look:1", "add:2", "add:3"), done()], at=10)
    run_id = last_run(db) or ""
    with Eyes(db) as eyes:
        assert eyes.rows("SELECT state FROM inflight WHERE result IS NOT NULL") == [("landed",)]
        eyes.db.execute("""UPDATE inflight SET result = '{"no": "result"}' WHERE result IS NOT NULL""")
    error = refused(face, db, run_id)
    assert isinstance(error, StoreError | SessionError)
    assert "damaged" in str(error), str(error)


def test_a_cut_log(face: str, db: Path) -> None:
    """The head says where the log must end: facts that are missing there are missed."""
    by_hand(db, SCRIPT, at=19)
    run_id = last_run(db) or ""
    data = db.read_bytes()
    with Eyes(db) as eyes:
        hashed = eyes.one("SELECT head_hash FROM branch")
    assert data.count(hashed) >= 2
    # the fact's own hash is another one now; the head still has the old one
    where = data.index(hashed)
    damaged = bytearray(data)
    damaged[where] ^= 1
    db.write_bytes(bytes(damaged))
    after = resume(face, db, run_id, SCRIPT, read=False)
    assert isinstance(after.error, StoreError) and after.nothing_called
    assert "damaged" in str(after.error), str(after.error)


def test_a_run_that_is_no_string(face: str, db: Path) -> None:
    """Bad arguments are refused before anything is looked at."""
    by_hand(db, SCRIPT, at=19)
    before = dump(db)
    with Agent(db, model=Again(SCRIPT), durability="process") as agent:
        session = agent.resume_session("s")
        for bad in ("", "  ", "a\0b"):
            with pytest.raises(ValueError):
                session.resume_run(bad)
            with pytest.raises(ValueError):
                session.resume_run("run", run_id=bad)
        for odd in (None, 7, b"run"):
            with pytest.raises(TypeError):
                session.resume_run(odd)  # type: ignore[arg-type]
    assert dump(db) == before
