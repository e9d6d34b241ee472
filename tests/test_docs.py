"""The documentation does what it says: README's code runs in order, its SQL and its commands exist."""

from __future__ import annotations

import inspect
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import thence
import thence.testing

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def run_readme(folder: Path) -> str:
    return run_program("\n".join(blocks("python")), folder)


def run_program(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "engine")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_python_runs_as_one_program_and_its_sql_finds_what_it_left(tmp_path: Path) -> None:
    assert run_readme(tmp_path).splitlines() == [
        "About 134,000.",
        "Hello again.",
        "parked ['pay']",
        "The invoice is paid.",
    ]
    with sqlite3.connect(tmp_path / "agents.db") as db:
        for statement in "".join(blocks("sql")).split(";")[:-1]:
            assert db.execute(statement).fetchall()
        insert = re.search(r"`(INSERT INTO event_in.*?)`", README)
        run_id = db.execute("SELECT run_id FROM runs").fetchone()[0]
        assert insert
        db.execute(insert.group(1).replace("run-…", run_id))
        assert db.execute("SELECT count(*) FROM events WHERE type = 'note'").fetchone() == (1,)


REPLAYED = """
import sqlite3
from thence import Agent, HostEnvConfig, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply


@tool(effect="read")
def look(number: int) -> int:
    return number


def play(name, **options):
    env = HostEnvConfig("replay", 1_700_000_000_000)
    script = [reply(calls=[call("look", {"number": n}) for n in range(8)]), reply("Done.")]
    with Agent(name, model=ScriptedModel(script), tools=[look], host_env=env) as agent:
        session = agent.session("/w", SessionOptions(**options))
        session.send("Look.")
        facts = session.facts()
    with sqlite3.connect(name) as db:
        return facts, list(db.iterdump())


assert play("a.db")[0] == play("b.db")[0]
assert play("c.db", max_parallel_tools=1) == play("d.db", max_parallel_tools=1)
"""


def test_what_is_said_of_replays_is_so(tmp_path: Path) -> None:
    """Facts are equal, and with one tool at a time the dump is; nobody promises an equal file."""
    run_program(REPLAYED, tmp_path)
    import thence.host.env

    for page in (README, thence.host.env.__doc__ or ""):
        assert not re.search(r"equal\s+files?\b", page)
        assert "max_parallel_tools=1" in page and "iterdump()" in page
    assert "replayable byte for byte" not in README


def test_the_first_example_is_ten_lines_at_most() -> None:
    lines = blocks("python")[0].splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith(("from", "import"))]) <= 10


def test_the_readmes_commands_exist() -> None:
    for command in " ".join(blocks("sh")).split("python3 ")[1:]:
        assert (ROOT / command.split()[0]).is_file()


def test_every_cli_command_is_named_in_the_readme_and_nothing_else() -> None:
    click = pytest.importorskip("click")
    from thence.cli.app import cli

    assert isinstance(cli, click.Group)
    section = README.split("## On the command line")[1].split("## ")[0]
    named = set(re.findall(r"`([a-z]+)[^`]*`", section.replace("`thence ", "`")))
    assert set(cli.commands) <= named


PAGES = ("README.md", "CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/DECISIONS.md", "schema/README.md")


@pytest.mark.parametrize("page", PAGES)
def test_files_and_folders_that_the_docs_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in re.findall(r"`((?:docs|schema|engine|tests|tools|benchmarks)/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{page} names {name}"


def test_contributing_names_every_folder_of_tests_and_no_other() -> None:
    section = CONTRIBUTING.split("**A test.**")[1].split("**")[0]
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert set(re.findall(r"`(\w+)/`", section)) == folders
    for name in re.findall(r"`(\w+)/`", CONTRIBUTING.split("## How to add")[0]):
        assert any((ROOT / above / name).is_dir() for above in (".", "engine/thence")), f"CONTRIBUTING.md names {name}/"


def test_contributing_says_of_the_lanes_what_they_do() -> None:
    """A later -m takes the place of the one in pyproject.toml."""
    assert "`-m slow` adds" not in CONTRIBUTING and "`-m slow` runs instead" in CONTRIBUTING
    assert '"-m", "not slow and not real_model"' in (ROOT / "pyproject.toml").read_text()


def test_every_chapter_that_is_cited_is_explained() -> None:
    explained = set(re.findall(r"§(\d+) \w", CONTRIBUTING.split("## What § means")[1].split("## ")[0]))
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.md")]:
        cited = set(re.findall(r"§(\d+)", path.read_text()))
        assert cited <= explained, f"{path.name} cites {cited - explained}"


def test_no_page_and_no_message_names_a_command_that_is_not_there() -> None:
    from thence.cli.app import COMMANDS

    there = {command.name for command in COMMANDS}
    pages = [ROOT / page for page in PAGES] + [ROOT / "docs/DURABILITY.md", *(ROOT / "engine").rglob("*.py")]
    for path in pages:
        for name in re.findall(r"[`']thence ([a-z]+)\b", path.read_text()):
            assert name in there, f"{path.name} names 'thence {name}'"


def test_what_is_said_to_be_missing_is_missing() -> None:
    """Whoever adds one of these takes it out of the list."""
    section = README.split("## What is not there yet")[1].split("## ")[0]
    from thence.cli.app import COMMANDS

    there = {command.name for command in COMMANDS}
    missing = {
        **{name: name not in there for name in ("verify", "backup", "export", "replay")},
        "ReplayModel": not hasattr(thence, "ReplayModel") and not hasattr(thence.testing, "ReplayModel"),
        "output_type": "output_type" not in inspect.signature(thence.Session.send).parameters,
        "agent.scoped": not hasattr(thence.Agent, "scoped"),
        "guard_file": "guard_file" not in inspect.signature(thence.Agent).parameters,
    }
    named = set(re.findall(r"`([\w.]+)`", section))
    assert named == {name for name, is_missing in missing.items() if is_missing}


def test_the_readme_says_how_to_install_it_and_where_the_command_line_is() -> None:
    name = re.search(r'^name = "(\w+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert name and f"pip install './{name[1]}[openai]'" in README
    assert "`.venv/bin/thence`" in README


def test_architecture_walks_a_turn_through_at_most_five_files() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (\d) \| `([\w./]+)`", page, flags=re.M)
    assert 1 <= len(rows) <= 5
    assert all((ROOT / name).is_file() for _, name in rows)
