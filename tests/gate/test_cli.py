"""``show`` and ``waive`` of a run that the gate stopped, and sessions that had a verifier (§13)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from thence import Agent, GateClosed, SessionOptions
from thence.cli.app import cli
from thence.testing import ScriptedModel

from .kit import TOOLS, writes, written

ALLOWS = SimpleNamespace(check_before_llm=None)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # no model is asked
    return lambda *words: CliRunner().invoke(cli, words, prog_name="thence")


def hold(path: Path, **options: Any) -> str:
    """A file with one session ``s`` whose run the gate stopped; the run's id."""
    with Agent(path, model=ScriptedModel(writes("x")), tools=TOOLS) as agent:
        session = agent.session(path.parent, SessionOptions(session_id="s", **options))
        try:
            session.send("go")
        except GateClosed as error:
            assert error.run_id is not None
            return error.run_id
    raise AssertionError("the gate was open")


def test_show_tells_the_digest_the_report_and_what_to_do(tmp_path: Path, invoke: Callable[..., Result]):
    run = hold(tmp_path / "thence.db", verify_commands=["echo one", "echo two; exit 3"])
    shown = invoke("show", run)
    assert shown.exit_code == 0
    assert written("x") in shown.output.replace("\n", "")
    for line in ("$ echo one", "one", "[exit 0]", "$ echo two; exit 3", "two", "[exit 3]"):
        assert line in shown.output.splitlines()
    assert f"session.resume_run('{run}')" in shown.output and f"waive {run} --reason TEXT" in shown.output
    value = json.loads(invoke("show", run, "--json").output)
    assert value["verification"]["digest"] == written("x") and value["verification"]["passed"] is False
    assert value["verification"]["report"]["commands"][1]["exit_code"] == 3


def test_show_finds_a_report_that_is_a_blob(tmp_path: Path, invoke: Callable[..., Result]):
    command = "head -c 16000 /dev/zero | tr '\\0' x"
    run = hold(tmp_path / "thence.db", verify_commands=[*[command] * 5, "exit 9"])
    assert "[exit 9]" in invoke("show", run).output
    assert json.loads(invoke("show", run, "--json").output)["verification"]["report"]["commands"][5]["exit_code"] == 9


def test_a_run_without_a_report_shows_its_digest_only(tmp_path: Path, invoke: Callable[..., Result]):
    run = hold(tmp_path / "thence.db", completion_gate=True)
    assert "verification:" not in invoke("show", run).output
    assert "verification" not in json.loads(invoke("show", run, "--json").output)


def test_waive_and_resume(tmp_path: Path, invoke: Callable[..., Result]):
    run = hold(tmp_path / "thence.db", completion_gate=True, budget_guard=ALLOWS, verifier=lambda context: False)
    done = invoke("waive", run, "--reason", "looked at it", "--json")
    assert (done.exit_code, json.loads(done.output)) == (
        0, {"run_id": run, "session_id": "s", "digest": written("x"), "reason": "looked at it"},
    )  # fmt: skip
    assert f"waived {written('x')}" in invoke("waive", run, "--reason", "again").output
    with Agent(tmp_path / "thence.db", tools=TOOLS) as agent:
        given = SessionOptions(budget_guard=ALLOWS, verifier=lambda context: False)
        session = agent.resume_session("s", given)
        assert session.resume_run(run).status == "completed"
        assert [fact.kind for fact in session.facts()][-2:] == ["gate.waived", "turn.ended"]
    late = invoke("waive", run, "--reason", "x")
    assert late.exit_code == 1 and "does not wait at the completion gate (superseded)" in late.stderr
    facts = invoke("facts", "s").output
    assert f"failed: changes {written('x')[:12]}" in facts and f"changes {written('x')[:12]}: looked at it" in facts


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["waive", "nope", "--reason", "x"], 3, "Run not found: nope"),
        (["waive", "RUN"], 2, "--reason"),
        (["waive", "RUN", "--reason", " "], 2, "must not be empty"),
    ],
)
def test_a_waiver_that_is_refused(
    tmp_path: Path, invoke: Callable[..., Result], words: list[str], code: int, said: str
):
    run = hold(tmp_path / "thence.db", completion_gate=True)
    done = invoke(*(run if word == "RUN" else word for word in words))
    assert done.exit_code == code and said in done.stderr


def test_a_run_that_ended_well_has_nothing_to_waive(tmp_path: Path, invoke: Callable[..., Result]):
    with Agent(tmp_path / "thence.db", model=ScriptedModel(writes("x")), tools=TOOLS) as agent:
        result = agent.session(tmp_path, SessionOptions(session_id="s")).send("go")
    done = invoke("waive", result.run_id, "--reason", "x")
    assert done.exit_code == 1 and "nothing to waive" in done.stderr


def test_a_session_that_had_a_verifier_goes_on_with_unguarded_only(tmp_path: Path, invoke: Callable[..., Result]):
    run = hold(tmp_path / "thence.db", verifier=lambda context: False)
    refused = invoke("resume", run, "--reconfigured", "-m", "openai:none")
    assert refused.exit_code == 2 and "'verifier'" in refused.stderr and "--unguarded" in refused.stderr
    done = invoke("resume", run, "--reconfigured", "-m", "openai:none", "--unguarded")
    assert done.exit_code == 0, done.stderr
    with Agent(tmp_path / "thence.db") as agent:
        session = agent.resume_session("s", SessionOptions(verifier=lambda context: False))
        kinds = [fact.kind for fact in session.facts()]
        assert kinds.count("verification.reported") == 1 and kinds[-1] == "turn.ended"


def test_a_run_that_the_gate_stops_says_how_to_waive_it(tmp_path: Path, invoke: Callable[..., Result]):
    run = hold(tmp_path / "thence.db", verify_commands=["false"])
    done = invoke("resume", run, "--reconfigured", "-m", "openai:none")
    assert done.exit_code == 1 and "completion gate: workspace changes" in done.stderr
    assert "or waive it:" in done.stderr and "--reason TEXT" in done.stderr
