"""``demo``: the script in its place, its SQL as pasted, and (lane real_model) the real thing."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess

import pytest


@pytest.fixture
def place(shell, tmp_path):
    """A shell in an empty folder; temporary files go beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    shell.folder = tmp_path / "here"
    shell.env["TMPDIR"] = str(tmp_path / "tmp")
    return shell


def check(place, out: str, session_id: str) -> None:
    facts = [json.loads(line) for line in place.ok("--db", "demo.db", "facts", session_id, "--nl").splitlines()]
    results = [fact["payload"]["parts"][0]["text"] for fact in facts if fact["kind"] == "tool.result"]
    assert len(results) == 3
    assert results[1] == "Pay the invoice.\nWater the roses.\n"
    # what the tools found is in the requests that followed, word for word
    shown = out.partition("The ends of its requests")[2]
    for line in "\n".join(results).splitlines():
        assert f"      {line}"[:80] in shown
    for question in ("What is in the folder docs?", "Read the file notes.txt.", "Which files mention 'invoice'?"):
        assert f"> {question}" in out
    ours = out.partition("Did what")[2].partition("Go on,")[0]
    assert max(map(len, ours.splitlines())) <= 80


def test_the_scripted_demo(place):
    done = place.run("demo", "--model", "scripted")
    assert (done.returncode, done.stderr) == (0, "")
    assert "NO MODEL, a script" in done.stdout and "demo.db (new" in done.stdout
    check(place, done.stdout, "demo-1")
    again = place.run("demo", "--model", "scripted")
    assert again.returncode == 0 and "was there: session demo-2 is added" in again.stdout
    check(place, again.stdout, "demo-2")


def test_its_sql_can_be_pasted(place):
    out = place.ok("demo", "--model", "scripted")
    pasted = re.findall(r'^sqlite3 demo\.db "\n(.*?)"$', out, re.MULTILINE | re.DOTALL)
    assert len(pasted) == 3
    connection = sqlite3.connect(place.folder / "demo.db")
    for sql in pasted:
        assert connection.execute(sql.replace("\\$", "$")).fetchall()
    connection.close()
    if shutil.which("sqlite3"):
        command = re.search(r'^sqlite3 demo\.db "\n.*?"$', out, re.MULTILINE | re.DOTALL)
        assert command is not None
        done = subprocess.run(["sh", "-c", command[0]], cwd=place.folder, capture_output=True, text=True, check=True)
        assert done.stdout.count("\n") >= 3


def test_a_foreign_file_is_refused(place):
    path = place.folder / "demo.db"
    path.write_bytes(b"something else " * 100)
    done = place.run("demo", "--model", "scripted")
    assert (done.returncode, path.read_bytes()) == (1, b"something else " * 100)
    assert "not a database" in done.stderr


def test_without_the_wheels_it_goes_on_with_the_script(place):
    (place.folder / "sitecustomize.py").write_text("import sys\nsys.modules['xllamacpp'] = None\n")
    place.env["PYTHONPATH"] = f"{place.folder}:{place.environment()['PYTHONPATH']}"
    done = place.run("demo")
    assert done.returncode == 0, done
    assert len(done.stderr.splitlines()) == 1 and "xllamacpp" in done.stderr
    assert "NO MODEL, a script" in done.stdout


def test_a_provider_can_be_named(place, provider):
    place.env.update(provider.env())
    calls = [("ls", {"path": "docs"}), ("read", {"path": "notes.txt"}), ("grep", {"pattern": "invoice"})]
    for name, args in calls:
        provider.answers += [{"call": name, "args": args}, "I see."]
    done = place.run("demo", "--model", "openai:m")
    assert (done.returncode, done.stderr) == (0, "")
    check(place, done.stdout, "demo-1")
    assert place.run("demo", "--model", "gpt").returncode == 2


@pytest.mark.real_model
def test_the_real_demo(place):
    done = place.run("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "135M" in done.stdout
    check(place, done.stdout, "demo-1")
