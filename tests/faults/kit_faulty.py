"""A process in which one system call fails at a time (`inject.c`), over and over, each time on a new file.

``kit_faulty.py FOLDER KIND ERROR HOW STRIDE``: fails the 1st, 2nd, 3rd, then every STRIDE-th call of KIND until the
life is over before the fault comes. HOW is ``once`` or ``on`` (from then on). Prints one JSON line a fault: what was
raised, what is wrong afterwards. ``kit_faulty.py FOLDER once``: one life, for those who make calls fail from outside.
``kit_faulty.py FOLDER descriptors``: lives that run out of file descriptors, with one more to spare each time.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"write": 1, "sync": 2, "truncate": 3, "open": 4, "read": 5}

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.faults.kit_recovery import violations
    from tests.faults.kit_scenario import Planner, make_tools
else:
    from .kit_recovery import violations
    from .kit_scenario import Planner, make_tools

from thence import Agent, SessionOptions, ThenceError  # noqa: E402 - only now does the path hold the tests
from thence.store import checkpoint  # noqa: E402

Arm = Callable[[int], None]


def life(db: Path, marks: list[dict[str, Any]], agents: list[Agent]) -> None:
    """A file is made, a session lives in it, the file is closed; all of it while something fails."""

    def mark(what: str, **more: Any) -> None:
        marks.append({"what": what, **more})

    agent = Agent(db, model=Planner(mark), tools=make_tools(mark))
    agents.append(agent)
    session = agent.session("/nowhere", SessionOptions(session_id="s"))
    mark("session", session="s")
    session.emit({"type": "note", "payload": {"n": "s 1"}})
    mark("emit", session="s", payload="s 1")
    for prompt in ("s:poke|peek,peek|bulk", "s:fire|poke,prod"):
        result = session.send(prompt)
        mark("sent", session="s", run=result.run_id, text=result.text, facts=len(session.facts()))
    agent.close()


def again(agents: list[Agent]) -> str:
    """What the same objects say once nothing fails any more."""
    for agent in agents:
        session = agent.session("/nowhere", SessionOptions(session_id="s"))
        session.emit({"type": "note", "payload": {"n": "again"}})
        return "works"
    return "never opened"


def typed(body: Callable[[], Any]) -> tuple[str, str]:
    """(what came of it, what is wrong with that)."""
    try:
        return str(body()), ""
    except ThenceError as error:
        return error.code, "" if str(error) else "an error without a text"
    except BaseException as error:
        return repr(error), f"a bare {error!r}"


def one_fault(folder: Path, arm: Arm, number: int) -> dict[str, Any]:
    """Live once while the ``number``-th call fails; look; go on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    marks: list[dict[str, Any]] = []
    agents: list[Agent] = []
    began = time.monotonic()
    arm(number)
    said, bare = typed(lambda: life(folder / "a.db", marks, agents))
    took = time.monotonic() - began
    arm(0)
    closed = not agents or agents[0].is_closed
    later, bare_later = ("closed", "") if closed else typed(lambda: again(agents))
    _, bare_close = typed(lambda: list(map(Agent.close, agents)))
    wrong = [one for one in (bare, bare_later, bare_close) if one] + violations(folder, marks)
    return {"at": number, "said": said, "again": later, "seconds": round(took, 2), "wrong": wrong}


def every_fault(folder: Path, kind: str, error: str, how: str, stride: int) -> None:
    """One JSON line a fault, until there are no more."""
    shim = ctypes.CDLL(None)
    shim.fault_seen.restype = ctypes.c_long
    seen = 0

    def arm(number: int) -> None:
        nonlocal seen
        if not number:
            seen = shim.fault_seen()
        shim.fault_arm(KINDS[kind] if number else 0, number, getattr(errno, error), int(how == "on"))

    number = 1
    while True:
        print(json.dumps(one_fault(folder, arm, number)), flush=True)
        if seen < number:
            return
        number += 1 if number < 3 else stride


def out_of_descriptors(folder: Path) -> None:
    """Lives with 0, 1, 2, ... descriptors to spare, until that is enough."""
    one_fault(folder, lambda number: None, 0)  # whatever is imported at first use is imported now
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = -1

    def arm(number: int) -> None:
        limit = max(map(int, os.listdir("/proc/self/fd"))) + number if number else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    while True:
        spare += 1
        found = one_fault(folder, arm, spare + 1)
        print(json.dumps(found), flush=True)
        if found["said"] == "None":
            return


def one_life(folder: Path) -> None:
    """Live once and say what came of it; the marks go along, for who judges."""
    marks: list[dict[str, Any]] = []
    said, bare = typed(lambda: life(folder / "a.db", marks, []))
    print(json.dumps({"said": said, "wrong": [bare] if bare else [], "marks": marks}), flush=True)


if __name__ == "__main__":
    checkpoint.SOFT_BYTES, checkpoint.HARD_BYTES = 100_000, 300_000
    where, what, *rest = sys.argv[1:]
    if what == "once":
        one_life(Path(where))
    elif what == "descriptors":
        out_of_descriptors(Path(where))
    else:
        every_fault(Path(where), what, rest[0], rest[1], int(rest[2]))
