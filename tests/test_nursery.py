"""A child of the nursery does what an interpreter of its own does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from .nursery import ENGINE, Forked, start

PROGRAMS = {
    "words": "import sys; print(sys.argv, sys.path[:2], __name__, sys.stdin.read())",
    "environment": "import os; print(os.environ['MARK'], 'HOME' in os.environ, os.getcwd())",
    "exit code": "import sys; sys.exit(3)",
    "exit message": "import sys; sys.exit('why')",
    "exception": "raise KeyError('x')",
    "killed": "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "kept in the buffer": "import os; print('lost'); os._exit(4)",
    "errors are told at once": "import os, sys; print('kept', file=sys.stderr); os._exit(4)",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "signals": "import signal; print([signal.getsignal(n) for n in (2, 13, 15, 17)])",
    "at the end": "import atexit, threading, time; atexit.register(print, 'bye')\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    "what main leaves": "class Left:\n    def __del__(self): print('gone')\nleft = Left()",
    "descriptors": "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4])",
    "group": "import os; print(os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0))",
    "temporary files": "import tempfile; print(tempfile.gettempdir())",
    "threads": "import threading as t; print(t.active_count(), t.main_thread() is t.current_thread())",
    "encoding": "import sys; files = (sys.stdin, sys.stdout, sys.stderr)\n"
    "print([(file.encoding, file.errors, file.line_buffering) for file in files])",
}


def ended(tmp_path: Path, program: str, own: bool, unbuffered: str) -> tuple[int, str, str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(ENGINE),
        "MARK": "é",
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": unbuffered,
    }
    env.pop("HOME", None)
    pipe = subprocess.PIPE
    words = ["-c", program, "a", "b c"]
    process = start(words, env=env, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, own=own)
    assert isinstance(process, Forked) is not own
    out, errors = process.communicate("heard", timeout=60)
    return process.wait(), out, errors.strip().rpartition("\n")[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_in_the_same_way(tmp_path: Path, name: str, unbuffered: str) -> None:
    forked = ended(tmp_path, PROGRAMS[name], False, unbuffered)
    assert forked == ended(tmp_path, PROGRAMS[name], True, unbuffered)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_it_is_asked_waited_for_and_killed(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ENGINE)}
    process = start(["-c", "import time; time.sleep(60)"], env=env, stdout=subprocess.PIPE)
    assert process.poll() is None
    for ask in (process.wait, lambda timeout: process.communicate(timeout=timeout)):
        with pytest.raises(subprocess.TimeoutExpired):
            ask(timeout=0.01)
    process.kill()
    assert process.wait(60) == process.poll() == -signal.SIGKILL
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_what_decides_at_the_start_of_an_interpreter_needs_one() -> None:
    for more in ({"PYTHONHASHSEED": "1"}, {"LD_PRELOAD": "x.so"}, {"LC_ALL": "C"}, {"PYTHONPATH": "/elsewhere"}):
        env = {**os.environ, "PYTHONPATH": str(ENGINE), **more}
        process = start(["-c", ""], env=env, stderr=subprocess.PIPE)
        assert isinstance(process, subprocess.Popen)
        process.communicate(timeout=60)
