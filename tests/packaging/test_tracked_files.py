"""Nothing in the repository ties it to one machine or names a registry's host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

MACHINE_PATH = re.compile(r"(?<![\w.~})$])(?:/(?:work|home|root|tmp)/|[A-Z]:\\Users\\)")
# In two parts, so that this file passes its own test.
HOSTS = re.compile("|".join(f"{name}[.]{top}" for name, top in [("pypi", "org"), ("pythonhosted", "org")]))
NPM_HOST = re.compile("npmjs" + "[.](?:org|com)|deb" + "[.]debian[.]org")


def complaints(name: str, text: str) -> list[str]:
    """What is wrong with one file: its name, the line and what was found there."""
    rules = [HOSTS, NPM_HOST] if name.startswith("tests/") else [HOSTS, NPM_HOST, MACHINE_PATH]
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [f"{name}:{number}: {match.group()}" for rule in rules if (match := rule.search(line))]
    return found


def test_tracked_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    files = {name: ROOT / name for name in names if name and (ROOT / name).is_file()}
    assert "pyproject.toml" in files
    found = [complaint for name, path in files.items() for complaint in complaints(name, path.read_text("latin-1"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cd " + "/work/" + "main",
        "see file://" + "/home/" + "somebody/notes",
        "open('" + "/tmp/" + "x.db')",
        "https://" + "pypi" + ".org/project/thence",
        "registry=https://registry." + "npmjs" + ".org",
    ],
)
def test_a_bad_line_is_seen(line: str) -> None:
    assert complaints("docs/x.md", f"fine\n{line}")[0].startswith("docs/x.md:2: ")


def test_good_lines_pass() -> None:
    text = "agent.session('/path/to/project')\n~/work/x\n$HOME/tmp/x\nengine/home/x\n./tmp/x\n${DIR}/tmp/x"
    assert not complaints("README.md", text)
    assert not complaints("tests/test_x.py", "open('/tmp/x')")
