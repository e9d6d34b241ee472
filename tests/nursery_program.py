"""The nursery itself: imports everything once, then forks a child for each order that comes. See nursery.py."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import types
import warnings
from typing import Any

# What a child of any test imports. What is missing here costs time only.
IMPORTED = (
    "ctypes",
    "openai.resources.chat.completions",
    "openai.types.chat",
    "portalocker",
    "pydantic",
    "sqlite_utils",
    "thence.testing",
    "thence.chat",
)


def import_all() -> None:
    """Import the package and what it imports late; what an environment does not have stays away."""
    import thence

    for name in (*thence.__all__,):
        getattr(thence, name)
    with warnings.catch_warnings(action="ignore"):
        for found in pkgutil.walk_packages(thence.__path__, "thence."):
            if not found.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(found.name)
        for name in IMPORTED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def nurse(control: socket.socket) -> dict[str, Any]:
    """Fork a child for each order and tell its pid and how it ended. Returns in a child, with its order."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    living: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), told], [], [])
        if told in ready:
            os.read(told, 4096)
            bury(living)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not message:
            raise SystemExit
        *standard, last = descriptors
        line = socket.socket(fileno=last)
        with line.makefile("rb") as lines:
            order: dict[str, Any] = json.loads(lines.readline())
        pid = os.fork()
        if pid == 0:
            begin(standard, order)
            return order
        for descriptor in standard:
            os.close(descriptor)
        living[pid] = line
        line.sendall(struct.pack("!i", pid))


def bury(living: dict[int, socket.socket]) -> None:
    """Tell of each child that has ended how it did."""
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        line = living.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody may care any more
            line.sendall(struct.pack("!i", status))
        line.close()


def begin(standard: list[int], order: dict[str, Any]) -> None:
    """Make this child what a new interpreter would be."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    if order["start_new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    tempfile.tempdir = None
    unbuffered = bool(order["env"].get("PYTHONUNBUFFERED"))
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        stream = standard_stream(name, number, unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def standard_stream(name: str, number: int, unbuffered: bool) -> io.TextIOWrapper:
    """What an interpreter makes of a descriptor at its start."""
    before = getattr(sys, name)  # only its buffering depends on what is behind it
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    if number == 0:
        return io.TextIOWrapper(io.BufferedReader(raw), before.encoding, before.errors, line_buffering=os.isatty(0))
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        before.encoding,
        before.errors,
        line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
        write_through=unbuffered,
    )


def live(order: dict[str, Any], path: list[str], kept: dict[str, Any]) -> None:
    """Run the program that was ordered, as the interpreter's command line would."""
    atexit.register(lambda: [sys.modules.pop(name, None) for name in kept])
    given: list[str] = order["words"]
    kind, program, *words = given if given[0].startswith("-") else ["", *given]
    here = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(program)))
    sys.path[:] = [here, *os.environ["PYTHONPATH"].split(os.pathsep), *path]
    sys.argv[:] = [program if kind == "" else kind, *words]
    if kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    own = {os.path.dirname(os.path.abspath(__file__)), *os.environ["PYTHONPATH"].split(os.pathsep)}
    import_all()
    kept: dict[str, Any] = {**sys.modules}
    for name in ("__main__", "builtins", "sys"):
        del kept[name]
    kept[""] = kept
    gc.collect()
    gc.freeze()
    live(nurse(socket.socket(fileno=int(sys.argv[1]))), [entry for entry in sys.path if entry not in own], kept)
