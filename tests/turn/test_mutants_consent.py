"""What the host and people have a say in before a call runs, one word of a rule at a time (§5, §6, §7, §10)."""

from __future__ import annotations

from typing import Any

import pytest

from thence.budget import GuardDecision
from thence.canonical import Json
from thence.consent import ask_consent, stage_answers, stage_wait, told
from thence.effects import AskGuard, Commit, Now, Read
from thence.facts import (
    Answered,
    Asked,
    Call,
    Data,
    Denied,
    NewFact,
    Returned,
    Text,
    WaitAnswered,
    WaitKind,
    WaitOpened,
)
from thence.ledger import Ledger, Setup
from thence.limits import Limits
from thence.log import Log
from thence.permissions import PermissionPolicy
from thence.plan import Op
from thence.steps import Traits
from thence.waits import Answer, digest_of_call
from thence.writes import RunIds

CALL, OTHER = Call("c", "pay", {"n": 1}), Call("c", "pay", {"n": 2})
KEYS = ("t1-r1-c0", "t1-r1-c1")
MINE = digest_of_call(CALL)
RUN = {"outcome": "run"}
TRAITS = {
    "pay": Traits("once"),
    "odd": Traits(),
    "read": Traits("read", workspace=True),
    "edit": Traits("idempotent", repeatable=True, workspace=True),
}


class Desk:
    """Two open calls, and what the log has of waits about them. ``told``: the commits and questions to the guard."""

    def __init__(self, call: Call = CALL, policy: PermissionPolicy | None = None, guard: Any = None) -> None:
        setup = Setup("m", "i", {}, (), TRAITS, Limits(), permissions=policy)
        self.ledger = Ledger(RunIds(2, "s", 8, "r", "me", 3, 5), Log(8, 2), setup, self)
        answer = Answered("", (call, OTHER))
        self.ledger.log.add([NewFact("t1-user", None, Asked((Text("hi"),))), NewFact("t1-r1", "infer:t1-r1", answer)])
        self.guard, self.told = guard, list[str]()
        self.ops, self.answers = list[Op](), list[Answer]()

    def wait(
        self, kind: WaitKind, subject: str = KEYS[0], digest: str = MINE, about: dict[str, Json] | None = None,
        wait_id: str = "",
    ) -> Desk:  # fmt: skip
        number = len(self.ledger.log.state.waits)
        wait = WaitOpened(wait_id or f"w{number}", kind, subject, digest, None, about or {})
        self.ledger.log.add([NewFact(f"w{number}", None, wait)])
        return self

    def hear(self, value: Json, expired: bool = False) -> Desk:
        wait = self.ledger.log.state.waits[-1]
        self.ledger.log.add([NewFact("a", None, WaitAnswered(wait.wait_id, value, "ann", expired))])
        return self

    def ask(self, starts: int = 0) -> Any:
        call, ledger = self.ledger.log.state.open[0], self.ledger
        known = told(ledger.log.state, call, ledger.setup.traits, starts=starts)
        return known if known is not None else self.drive(ask_consent(ledger, call))

    def is_hooked(self, event_type: str) -> bool:
        return False

    def is_guarded(self) -> bool:
        return self.guard is not None

    def has_pieces(self, step: str) -> bool:
        return True

    def drive(self, flow: Any) -> Any:
        answer: Any = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._answer(effect)

    def _answer(self, effect: Any) -> Any:
        match effect:
            case Now():
                return 1000
            case AskGuard():
                self.told.append(f"{effect.method} {effect.argument}")
                return self.guard
            case Read():
                return self.answers
            case Commit():
                self.told.append("commit")
                self.ops += effect.plan.ops
        return None

    def rows(self, statement: str) -> list[Any]:
        return [row for op in self.ops if op.statement == statement for row in op.rows]


ASKS = PermissionPolicy(ask=["pay"])
NO: dict[str, Json] = {"approved": False, "reason": "too dear"}


# ------------------------------------------------------------------ what comes of a call that had started
def test_a_call_that_may_run_again_is_still_asked_about():
    """§10: that it is to run says nothing about whether it may."""
    assert Desk(policy=PermissionPolicy(deny=["pay"])).wait("unknown_outcome").hear(RUN).ask(1).metadata == {
        "refused": "permission_denied"
    }
    wait = Desk(policy=ASKS).wait("unknown_outcome").hear(RUN).ask(1)
    assert (wait.kind, wait.wait_id) == ("confirmation", "t1-r1-c0-w2")
    guard = GuardDecision("deny", "tokens", "too much")
    assert Desk(guard=guard).wait("unknown_outcome").hear(RUN).ask(1) == Denied(KEYS[0], "guard", "tokens", "too much")


@pytest.mark.parametrize(
    ("kind", "subject", "answered"),
    [("unknown_outcome", KEYS[0], False), ("unknown_outcome", KEYS[1], True), ("confirmation", KEYS[0], True)],
)
def test_only_a_word_about_this_start_counts(kind: WaitKind, subject: str, answered: bool):
    """§7: neither a question that nobody has answered, nor a word about another call, nor a yes to something else."""
    desk = Desk().wait("unknown_outcome").hear(RUN).wait(kind, subject)
    if answered:
        desk.hear(RUN if kind == "unknown_outcome" else True)
    assert desk.ask(2).kind == "unknown_outcome"
    assert Desk().wait("unknown_outcome").hear(RUN).wait("unknown_outcome").hear(RUN).ask(2) is None
    question = "This call had started when its process died, and must not run twice. What came of it?"
    assert Desk().ask(1) == WaitOpened(f"{KEYS[0]}-w1", "unknown_outcome", KEYS[0], MINE, None, {"question": question})


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("pay", {"effect": "once"}),
        ("odd", {}),
        ("gone", {}),
        ("read", {"effect": "read"}),
        ("edit", {"effect": "idempotent", "repeatable": True, "workspace": True}),
    ],
)
def test_a_told_result_counts_like_one_that_the_tool_gave(name: str, metadata: dict[str, Json]):
    """§5: for the duplicate guard and the completion gate. A host that lacks the tool takes the word all the same."""
    call = Call("c", name, {"n": 1})
    given: tuple[tuple[Json, Any], ...] = (
        (None, Text("")),
        ("", Text("")),
        ("paid", Text("paid")),
        (0, Data(0)),
        ([], Data([])),
    )
    for value, part in given:
        told = Desk(call).wait("unknown_outcome").hear({"outcome": "done", "result": value}).ask(1)
        assert told == Returned(KEYS[0], True, (part,), {"answered": True, **metadata})
        assert Desk(call).wait("question").hear(value).ask() == told
        assert Desk(call).wait("deferred").hear(value).ask() == told
    assert Desk(call).wait("unknown_outcome").hear({"outcome": "done"}).ask(1).parts == (Text(""),)


def test_what_is_no_outcome_is_a_failure():
    """§10: an answer of another program is never a guess that it went well."""
    for value in (7, [RUN], {"outcome": "failed", "error": None}, {"outcome": "other"}):
        told = Desk().wait("unknown_outcome").hear(value).ask(1)
        assert (told.ok, told.parts) == (False, (Text("Error: it failed"),))
    late = Desk().wait("deferred").hear(None, expired=True).ask()
    assert (late.ok, late.parts) == (False, (Text("Error: nobody answered in time"),))


# ------------------------------------------------------------------ whose yes it was
def test_a_yes_is_for_this_call_with_these_arguments():
    """§10: not for another call, nor for arguments that a hook changed since, nor before somebody said it."""
    yes = Desk(policy=ASKS).wait("confirmation").hear(True)
    assert yes.ask() is None
    for desk in (
        Desk(policy=ASKS).wait("confirmation", KEYS[1]).hear(True),
        Desk(policy=ASKS).wait("confirmation", digest="before").hear(True),
        Desk(policy=ASKS).wait("confirmation"),
    ):
        wait = desk.ask()
        assert (wait.kind, wait.digest, wait.deadline_ms) == ("confirmation", MINE, None)
    mixed = Desk(policy=ASKS).wait("confirmation", digest="before").hear(True).wait("confirmation").hear(NO)
    assert mixed.ask().metadata == {"refused": "rejected"}


def test_a_policy_sees_a_call_without_arguments():
    policy = PermissionPolicy(deny=["pay(n=*)"])
    assert Desk(Call("c", "pay", {}), policy).ask() is None
    assert Desk(CALL, policy).ask().metadata == {"refused": "permission_denied"}


def test_who_said_no_and_why_if_it_is_a_text():
    said: tuple[tuple[Json, str], ...] = ((NO, ": too dear"), ({"reason": 5}, ""), (False, ""))
    for value, text in said:
        told = Desk(policy=ASKS).wait("confirmation").hear(value).ask()
        assert told.parts == (Text(f"Error: rejected by ann{text}"),)


# ------------------------------------------------------------------ the budget
def test_what_was_staged_is_in_the_file_before_the_guard_is_asked():
    """§6: a guard that looks at the file sees the run as it is."""
    desk = Desk(guard=GuardDecision("allow"))
    desk.ledger.also(*[])
    desk.ledger.stage("w", None, WaitOpened("w", "question", KEYS[1], "d"))
    assert desk.ask() is None and desk.told == ["commit", "check_before_tool pay"]


def test_a_hold_that_was_answered_is_not_asked_again():
    about: dict[str, Json] = {"resource": "tokens", "question": "really?"}
    desk = Desk(guard=GuardDecision("deny", "x", "y")).wait("budget_hold", about=about).hear(True)
    assert desk.ask() is None and desk.told == []
    desk = Desk().wait("budget_hold", KEYS[1], about={"resource": "other"}).hear(True)
    assert desk.wait("budget_hold", about=about).hear(NO).ask() == Denied(
        KEYS[0], "guard", "tokens", "really?; too dear"
    )


@pytest.mark.parametrize(
    ("about", "value", "resource", "reason"),
    [
        ({}, False, "", ""),
        ({"resource": "tokens"}, NO, "tokens", "too dear"),
        ({"question": "really?"}, False, "", "really?"),
        ({"resource": 5, "question": 6}, False, "5", "6"),
    ],
)
def test_what_a_denied_hold_says(about: dict[str, Json], value: Json, resource: str, reason: str):
    assert Desk().wait("budget_hold", about=about).hear(value).ask() == Denied(KEYS[0], "guard", resource, reason)


def test_a_hold_is_about_what_the_guard_said():
    wait = Desk(guard=GuardDecision("hold", "tokens", "really?")).wait("confirmation", KEYS[1]).ask()
    assert wait == WaitOpened(
        "t1-r1-c0-w1", "budget_hold", KEYS[0], MINE, None, {"resource": "tokens", "question": "really?"}
    )


# ------------------------------------------------------------------ waits and answers as they are staged
def test_a_held_request_has_a_wait_without_a_call():
    desk = Desk()
    wait = WaitOpened("w", "budget_hold", KEYS[0], "d", None, {"resource": "tokens"})
    desk.drive(stage_wait(desk.ledger, wait, None))
    desk.drive(desk.ledger.flush())
    [row] = desk.rows("wait_open")
    assert (row["wait_id"], row["opened_ms"], row["payload"]) == ("w", 1000, '{"resource":"tokens"}')
    desk.drive(stage_wait(desk.ledger, WaitOpened("w2", "question", KEYS[0], "d"), desk.ledger.log.state.open[0]))
    desk.drive(desk.ledger.flush())
    assert desk.rows("wait_open")[1]["payload"] == '{"arguments":{"n":1},"tool":"pay"}'
    assert [row["cause"] for row in desk.rows("fact_append")] == [f"wait:{KEYS[0]}"] * 2


def test_an_answer_becomes_a_fact_once_and_its_row_is_closed():
    """§10: one that is a fact already, or is about nothing here, is closed and no more."""
    desk = Desk().wait("question", wait_id="old").hear(1).wait("question", KEYS[1], wait_id="new")
    desk.answers = [Answer(name, b"[2]", "bob", False) for name in ("old", "new", "none")]
    assert desk.drive(stage_answers(desk.ledger)) == ["new"]
    desk.drive(desk.ledger.flush())
    [fact] = desk.rows("fact_append")
    assert (fact["key"], fact["cause"], fact["kind"]) == ("new-answer", None, "wait.answered")
    assert [(row["wait_id"], row["now_ms"]) for row in desk.rows("wait_close")] == [
        ("old", 1000), ("new", 1000), ("none", 1000),
    ]  # fmt: skip
