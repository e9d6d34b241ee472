"""The command line has no hooks to give: it refuses a session that had some, unless told otherwise (§2, §13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from thence import Agent, Hook, ModelError, RunFailed, SessionOptions
from thence.testing import ScriptedModel, reply

from ..turn.guard_kit import Guard
from .hook_kit import Told

click_testing = pytest.importorskip("click.testing")


@pytest.mark.parametrize("guarded", [False, True])
def test_run_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    from thence.cli.app import cli

    monkeypatch.setenv("THENCE_DB", str(tmp_path / "a.db"))
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel([reply("on")]))
    options = SessionOptions(session_id="s", hooks=[Hook("pre_llm", Told())])
    if guarded:
        options.budget_guard = Guard()
    failing = ScriptedModel([ModelError("400", "bad", retryable=False)])
    with Agent(tmp_path / "a.db", model=failing) as agent, pytest.raises(RunFailed) as failed:
        agent.session(tmp_path, options).send("go")

    def run(*words: str) -> tuple[int, str, str]:
        result = click_testing.CliRunner().invoke(cli, list(words), prog_name="thence")
        return result.exit_code, result.stdout, result.stderr

    run_id = str(failed.value.run_id)
    for words in (["resume", run_id, "--no-tools"], ["run", "more", "-s", "s"]):
        code, _, err = run(*words)
        assert code == 2 and "--unguarded" in err and ("'budget_guard'" if guarded else "'hooks'") in err
    assert run("resume", run_id, "--no-tools", "--unguarded")[:2] == (0, "on\n")
    assert run("run", "more", "-s", "s", "--unguarded")[:2] == (0, "on\n")


def test_unguarded_on_a_new_session_leaves_it_without_demands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thence.cli.app import cli

    monkeypatch.setenv("THENCE_DB", str(tmp_path / "a.db"))
    monkeypatch.setattr("thence.cli.running.resolve_model", lambda _: ScriptedModel([reply("on")] * 2))
    result = click_testing.CliRunner().invoke(cli, ["run", "x", "-s", "new", "--unguarded"], prog_name="thence")
    assert (result.exit_code, result.stdout) == (0, "on\n")
    with Agent(tmp_path / "a.db") as agent:
        agent.resume_session("new")
