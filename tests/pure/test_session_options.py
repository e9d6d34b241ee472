"""SessionOptions as a value: unset is known, copies are independent, and a type checker knows every option (§2)."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from thence import Agent, AsyncAgent, Hook, SessionOptions
from thence.limits import Limits
from thence.testing import ScriptedModel


class Counts:
    """A host's object that nothing can copy."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def check_before_llm(self, session_id: str, tokens: int) -> None: ...


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda options: pickle.loads(pickle.dumps(options))]


@pytest.mark.parametrize("make", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_a_copy_is_independent_and_knows_what_was_set(make: Callable[[Any], Any]):
    template = SessionOptions(max_tool_rounds=50, retention_limits={"max_runs_retained": 3})
    alice, bob = make(template), make(template)
    alice.tenant_id, bob.tenant_id = "alice", "bob"
    del bob.retention_limits
    assert (alice.tenant_id, bob.tenant_id, template.tenant_id) == ("alice", "bob", None)
    assert template.given() == {"max_tool_rounds": 50, "retention_limits": {"max_runs_retained": 3}}
    # 50 is the default, set explicitly: it is known to be set.
    assert alice.given() == {**template.given(), "tenant_id": "alice"}
    assert bob.given() == {"max_tool_rounds": 50, "tenant_id": "bob"}


def test_a_deep_copy_shares_the_hosts_objects_and_nothing_else():
    caps = {"max_runs_retained": 3}
    guard, model, hook = Counts(), ScriptedModel(), Hook("run_end", Counts().check_before_llm)  # type: ignore[arg-type]
    options = SessionOptions(budget_guard=guard, model=model, hooks=[hook], retention_limits=caps)
    other = copy.deepcopy(options)
    assert (other.budget_guard, other.model) == (guard, model)
    assert other.hooks == [hook] and other.hooks is not options.hooks
    assert other.retention_limits == caps and other.retention_limits is not caps
    assert copy.copy(options).hooks is options.hooks


def test_reading_an_unset_option_gives_its_default_and_sets_nothing():
    options = SessionOptions()
    for field in fields(Limits):
        assert getattr(options, field.name) == field.default
    assert (options.on_interrupted, options.completion_gate, options.budget_guard_isolation) == (
        "raise", "auto", "thread",
    )  # fmt: skip
    assert options.given() == {}
    assert set(SessionOptions.__annotations__) >= {field.name for field in fields(Limits)}


def test_a_type_checker_knows_the_options():
    """The check is that of the static lane: an ignore that nothing needs fails it."""
    options = SessionOptions(tenant_id="t")
    options.max_tool_rounds = 5
    rounds: int = options.max_tool_rounds
    options.max_tool_rounds = "5"  # type: ignore[assignment]
    options.budget_guard_isolation = "fork"  # type: ignore[assignment]
    SessionOptions(verify_commands=5)  # type: ignore[arg-type]
    SessionOptions(host_env=5)  # type: ignore[arg-type]
    assert rounds == 5
    with pytest.raises(AttributeError, match="max_tool_rounds"):
        options.max_rounds = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="max_tool_rounds"):
        _ = options.max_rounds  # type: ignore[attr-defined]


async def test_what_is_no_options_is_refused_by_name_on_every_way_in(tmp_path: Any):
    bad: Any = {"tenant_id": "x"}
    with Agent(tmp_path / "a.db") as agent:
        for call in (lambda: agent.session(".", bad), lambda: agent.resume_session("s", bad)):
            with pytest.raises(TypeError, match="SessionOptions, not dict"):
                call()
    async with AsyncAgent(tmp_path / "a.db") as other:
        with pytest.raises(TypeError, match="SessionOptions, not dict"):
            await other.resume_session("s", bad)


def test_resuming_leaves_the_callers_options_as_they_are(tmp_path: Any):
    with Agent(tmp_path / "a.db") as agent:
        agent.session(".", SessionOptions(session_id="s"))
        options = SessionOptions(tenant_id="t")
        assert agent.resume_session("s", options).tenant_id == "t"
    assert options.given() == {"tenant_id": "t"}
