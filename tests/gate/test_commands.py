"""Verify commands and verifiers that are real (§5): their reports, their limits, and that a group dies as a group."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import thence
from thence import Agent, RunFailed, SessionOptions, VerificationContext, VerificationReport
from thence.host.children import MAX_OUTPUT_BYTES, Child, Output
from thence.testing import ScriptedModel

from ..kit import Gate, World, in_thread, stored, until
from .kit import TOOLS, closed, is_gone, let_go, read_pid, wait_until_gone, writes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX system")

LONG = 300
"""Seconds that a command sleeps which nobody will wait for."""

CHILD = f'trap "" TERM HUP INT; echo $$ > child; sleep {LONG}'
GROUP = f"echo $$ > leader; sh -c '{CHILD}' & sleep {LONG}"
"""A shell that starts a stubborn child, and waits."""


async def reported(session: Any) -> dict[str, Any]:
    """The last report of a session, and whether it passed."""
    found = [stored(fact) for fact in await session.facts() if fact.kind == "verification.reported"]
    return {"passed": found[-1]["passed"], **found[-1]["report"]}


async def run(world: World, **options: Any) -> tuple[Any, Any]:
    """A turn that wrote "x"; the session, and the gate's error if it was closed."""
    session = await world.session(writes("x"), TOOLS, **options)
    try:
        await session.send("go")
    except thence.GateClosed as error:
        return session, error
    return session, None


@pytest.mark.parametrize(
    ("command", "report", "why"),
    [
        (["true"], {"exit_code": 0, "output": ""}, None),
        ("true", {"exit_code": 0, "output": ""}, None),
        ("cat file; pwd | sed 's|.*/||'", {"exit_code": 0, "output": "xwork\n"}, None),
        ("echo out; echo err >&2; exit 3", {"exit_code": 3, "output": "out\nerr\n"}, "exited with 3"),
        (["sh", "-c", "kill -9 $$"], {"exit_code": -9, "output": ""}, "exited with -9"),
        (["printf", "%s", "$HOME; *"], {"exit_code": 0, "output": "$HOME; *"}, None),
        ("printf '\\377\\000a'", {"exit_code": 0, "output": "\ufffd\0a"}, None),
        ("cat", {"exit_code": 0, "output": ""}, None),
        ("read x", {"exit_code": 1, "output": ""}, "exited with 1"),
    ],
)
async def test_what_a_command_came_to(world: World, command: Any, report: dict[str, Any], why: str | None):
    session, error = await run(world, verify_commands=[command])
    passed = why is None
    assert await reported(session) == {
        "passed": passed, "commands": [{"command": command, "passed": passed, **report}],
    }  # fmt: skip
    if why is not None:
        shown = command if isinstance(command, str) else " ".join(command)
        assert f'the verification failed ("{shown}" {why})' in str(error)


async def test_a_command_that_cannot_be_run_failed(world: World):
    session, error = await run(world, verify_commands=[["no-such-program-anywhere", "x"]])
    [said] = (await reported(session))["commands"]
    assert said["error"].startswith("FileNotFoundError: ") and "exit_code" not in said
    assert '"no-such-program-anywhere x" could not be run: FileNotFoundError' in str(error)


async def test_without_its_folder_nothing_can_be_verified(world: World):
    session = await world.session(writes("x"), TOOLS, verify_commands=["rm -r ../work", "true"])
    await closed(session.send("go"))
    assert (await reported(session))["commands"][-1]["error"] == "the workspace is no folder"


async def test_the_first_that_fails_ends_it(world: World):
    session, _ = await run(world, verify_commands=["true", "false", "touch third"], verifier=lambda context: 1 / 0)
    report = await reported(session)
    assert [one["command"] for one in report["commands"]] == ["true", "false"] and "verifier" not in report
    assert not (world.folder / "work" / "third").exists()


async def test_output_is_kept_in_bounds_head_and_tail(world: World):
    program = "import sys; sys.stdout.write('HEAD' + 'x' * 3_000_000 + 'TAIL')"
    session, error = await run(world, verify_commands=[[sys.executable, "-c", program]])
    assert error is None
    [said] = (await reported(session))["commands"]
    output = said["output"]
    assert output.startswith("HEADx") and output.endswith("xTAIL")
    dropped = 3_000_008 - MAX_OUTPUT_BYTES
    assert f"\n[... {dropped} bytes not kept ...]\n" in output and len(output) < MAX_OUTPUT_BYTES + 100


@pytest.mark.parametrize("piece", [1, 3, 1000, 100_000])
@pytest.mark.parametrize("size", [0, 9, 10, 11, 4096])
def test_head_and_tail_whatever_the_pieces(piece: int, size: int):
    data = bytes(97 + n % 26 for n in range(size))
    output = Output(10)
    for start in range(0, size, piece):
        output.write(data[start : start + piece])
    whole = data.decode()
    cut = f"{whole[:5]}\n[... {size - 10} bytes not kept ...]\n{whole[-5:]}"
    assert output.text() == (whole if size <= 10 else cut)


async def test_a_time_out_kills_the_whole_group(world: World):
    session, error = await run(world, verify_commands=["echo begun; " + GROUP], verify_timeout_ms=2000)
    [said] = (await reported(session))["commands"]
    assert (said["timed_out"], said["passed"], said["output"]) == (True, False, "begun\n")
    assert "timed out" in str(error)
    for name in ("leader", "child"):
        wait_until_gone(read_pid(world.folder / "work" / name))


@pytest.mark.parametrize("how", ["cancel", "interrupt", "close"])
async def test_a_stop_kills_the_whole_group(world: World, how: str):
    session = await world.session(writes("x"), TOOLS, verify_commands=[GROUP])
    await session.spawn_run_with_id("r", "go")
    pids = [await in_thread(read_pid, world.folder / "work" / name) for name in ("leader", "child")]
    assert not any(is_gone(pid) for pid in pids)
    started = time.monotonic()
    await getattr(session, how)()
    if how != "close":
        await let_go(session)
    assert time.monotonic() - started < LONG / 10
    for pid in pids:
        wait_until_gone(pid)


async def test_what_a_command_leaves_behind_is_killed_and_not_waited_for(world: World):
    started = time.monotonic()
    session, error = await run(world, verify_commands=[f"sleep {LONG} & echo $! > left; echo done"])
    assert error is None and time.monotonic() - started < LONG / 10
    assert (await reported(session))["commands"][0]["output"] == "done\n"
    wait_until_gone(read_pid(world.folder / "work" / "left"))


def test_a_command_that_was_killed_before_it_started_never_starts(tmp_path: Path):
    child = Child(["touch", str(tmp_path / "made")], tmp_path)
    child.kill()
    assert child.run().code < 0 and not (tmp_path / "made").exists()


def test_an_interpreter_that_exits_takes_its_commands_along(tmp_path: Path):
    code = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from thence.host.children import Child\n"
        f"child = Child({GROUP!r}, Path(sys.argv[1]))\n"
        "threading.Thread(target=child.run, daemon=True).start()\n"
        "while not (Path(sys.argv[1]) / 'child').exists(): time.sleep(0.01)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(thence.__file__).resolve().parents[1])}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, timeout=60, check=False)
    assert done.returncode == 0
    for name in ("leader", "child"):
        wait_until_gone(read_pid(tmp_path / name))


def test_commands_do_not_hold_the_terminal_or_our_group(tmp_path: Path):
    child = Child("ps -o sid= -p $$; echo $$", tmp_path)
    session, leader = child.run().output.split()
    assert session == leader != str(os.getsid(0))


def test_a_command_reads_nothing_of_our_input(tmp_path: Path):
    code = "from pathlib import Path; from thence.host.children import Child; print(Child(['cat'], Path('.')).run())"
    env = {**os.environ, "PYTHONPATH": str(Path(thence.__file__).resolve().parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.read() == "Exit(code=0, output='')\n"  # our end stays open
    process.communicate(timeout=60)


def test_ctrl_c_reaches_the_run_and_not_the_command(tmp_path: Path):
    """The command is killed because the run was interrupted; the run can be resumed."""
    (tmp_path / "work").mkdir()
    code = (
        "import sys\n"
        "from thence import *\n"
        "from thence.testing import *\n"
        "from tests.gate.kit import TOOLS, writes\n"
        "agent = Agent(sys.argv[1] + '/a.db', model=ScriptedModel(writes('x')), tools=TOOLS)\n"
        f"options = SessionOptions(session_id='s', verify_commands=[{GROUP!r}])\n"
        "try: agent.session(sys.argv[1] + '/work', options).send('go')\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{Path(thence.__file__).resolve().parents[1]}{os.pathsep}{root}"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    pids = [read_pid(tmp_path / "work" / name) for name in ("leader", "child")]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    for pid in pids:
        wait_until_gone(pid)
    with Agent(tmp_path / "a.db", tools=TOOLS) as agent:
        session = agent.resume_session("s", SessionOptions(verify_commands=["true"]))
        [found] = session.runs()
        assert (found.status, found.state) == ("verifying", "interrupted")
        assert session.resume_run(found.id).status == "completed"


# ------------------------------------------------------------------ verifiers


class Judge:
    def __init__(self, said: Any) -> None:
        self.said = said

    def __call__(self, context: VerificationContext) -> Any:
        return self.said


class AsyncJudge(Judge):
    async def __call__(self, context: VerificationContext) -> Any:
        return self.said


class Late(Exception):
    def __str__(self) -> str:
        raise ValueError


async def approve(context: VerificationContext, said: Any = True) -> Any:
    return said


NONE = "a verifier returns a bool or a VerificationReport, not {}"


@pytest.mark.parametrize(
    ("verifier", "report"),
    [
        (Judge(True), {"passed": True}),
        (AsyncJudge(True), {"passed": True}),
        (approve, {"passed": True}),
        (functools.partial(approve, said=False), {"passed": False}),
        (Judge(VerificationReport(True, {"score": 2**70})), {"passed": True, "report": {"score": 2**70}}),
        (AsyncJudge(VerificationReport(False, "no")), {"passed": False, "report": "no"}),
        (Judge(VerificationReport(True)), {"passed": True}),
        (Judge(VerificationReport(True, {"b", "a"})), {"passed": True, "report": ["a", "b"]}),
        (Judge(VerificationReport(True, float("nan"))), {"passed": False, "error": "its report has no JSON form"}),
        (Judge(VerificationReport(1)), {"passed": False, "error": "'passed' must be a bool, not int"}),  # type: ignore[arg-type]
        (Judge(None), {"passed": False, "error": NONE.format("NoneType")}),
        (Judge(1), {"passed": False, "error": NONE.format("int")}),
        (Judge("yes"), {"passed": False, "error": NONE.format("str")}),
        (Judge, {"passed": False, "error": NONE.format("Judge")}),
    ],
)
async def test_what_a_verifier_says(world: World, verifier: Any, report: dict[str, Any]):
    session, error = await run(world, verifier=verifier)
    assert await reported(session) == {"passed": report["passed"], "verifier": report}
    assert (error is None) is report["passed"]
    if "error" in report:
        assert f"the verification failed (the verifier says no: {report['error']})" in str(error)


@pytest.mark.parametrize("raised", [ValueError("bad"), KeyboardInterrupt("bad"), SystemExit("bad"), Late()])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_verifier_that_raises_has_not_passed_it(world: World, raised: BaseException, asynchronous: bool):
    def plain(context: VerificationContext) -> bool:
        raise raised

    async def coroutine(context: VerificationContext) -> bool:
        raise raised

    session, error = await run(world, verifier=coroutine if asynchronous else plain)
    name = type(raised).__name__
    said = name if isinstance(raised, Late) else f"{name}: bad"
    assert (await reported(session))["verifier"] == {"passed": False, "error": said}
    assert error is not None


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_verifier_that_hangs_is_told_and_left(world: World, asynchronous: bool):
    gate = Gate()
    told: list[bool] = []

    def plain(context: VerificationContext) -> bool:
        gate.wait()
        told.append(context.cancelled)
        return True

    async def coroutine(context: VerificationContext) -> bool:
        try:
            await gate.await_()
        finally:
            told.append(context.cancelled)
        return True

    session, error = await run(world, verifier=coroutine if asynchronous else plain, verify_timeout_ms=100)
    assert (await reported(session))["verifier"] == {"passed": False, "error": "timed out after 100 ms"}
    assert "timed out after 100 ms" in str(error)
    gate.open()
    await until(lambda: told == [True])


def test_a_verifier_cannot_use_its_own_session(tmp_path: Path):
    sessions: list[Any] = []

    def verifier(context: VerificationContext) -> bool:
        with pytest.raises(thence.SessionBusy):
            sessions[0].send("again")
        with pytest.raises(thence.SessionBusy):
            sessions[0].waive(context.digest, "by myself")
        return True

    with Agent(None, model=ScriptedModel(writes("x")), tools=TOOLS) as agent:
        sessions.append(agent.session(tmp_path, SessionOptions(verifier=verifier)))
        assert sessions[0].send("go").status == "completed"


async def test_with_no_model_a_waiting_turn_can_still_be_verified(world: World):
    session, error = await run(world, verify_commands=["false"])
    agent = await world.agent(model=None, tools=TOOLS)
    other = await agent.resume_session(session.session_id, SessionOptions(verify_commands=["true"]))
    assert (await other.resume_run(error.run_id)).status == "completed"


async def test_a_killed_run_time_limit_is_no_report(world: World):
    session = await world.session(writes("x"), TOOLS, verify_commands=[GROUP], max_execution_time_ms=2000)
    with pytest.raises(RunFailed) as error:
        await session.send("go")
    assert error.value.code == "EXECUTION_TIMEOUT"
    assert not [fact for fact in await session.facts() if fact.kind == "verification.reported"]
    for name in ("leader", "child"):
        wait_until_gone(read_pid(world.folder / "work" / name))
