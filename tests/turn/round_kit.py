"""A round whose effects are answered by hand: a test sees each commit between two starts and two landings."""

from __future__ import annotations

from typing import Any

from thence.budget import GuardDecision
from thence.chat import ToolSpec
from thence.effects import AskGuard, AwaitTool, Commit, Landed, Now, Postponed, StartTool
from thence.facts import Answered, Asked, Call, NewFact, Returned, Text, WaitAnswered
from thence.inflight import InflightCall
from thence.ledger import Ledger, Setup
from thence.limits import Limits
from thence.log import Log
from thence.plan import Op
from thence.rounds import Rounds
from thence.steps import Park, Traits
from thence.writes import RunIds

END = "cleared cursor facts"
"""What the commit that settles a round does."""

TRAITS = {
    "read": Traits("read"), "look": Traits("read"), "once": Traits("once"), "odd": Traits(None),
}  # fmt: skip
SPECS = (ToolSpec("read", "Reads.", {"type": "object"}), ToolSpec("once", "", {}))


class Round:
    """One answer with ``calls``; ``told`` is what the flow asked for, with each commit as the names of its statements.

    ``lands``: the order in which running calls land (positions), else the order of their start.
    """

    def __init__(
        self,
        *calls: str,
        parallel: int = 8,
        lands: tuple[int, ...] = (),
        deny: str = "",
        postpone: dict[int, Postponed] | None = None,
    ) -> None:
        setup = Setup("m", "i", {}, SPECS, TRAITS, Limits(max_parallel_tools=parallel))
        self.ledger = Ledger(RunIds(2, "s", 8, "r", "me", 3, 5), Log(8, 2), setup, self)
        self.rounds = Rounds(self.ledger)
        self.ledger.log.head = type(self.ledger.log.head)(2, bytes(range(32, 64)))
        self.ledger.log.answer_hash = bytes(range(32))
        answer = Answered("", tuple(Call("c", name, {"n": n}) for n, name in enumerate(calls)))
        self.ledger.log.add([NewFact("t1-user", None, Asked((Text("hi"),))), NewFact("t1-r1", "infer:t1-r1", answer)])
        self.lands, self.deny, self.postpone = list(lands), deny, postpone or {}
        self.told: list[str] = []
        self.ops: list[Op] = []
        self.keys: list[str] = []
        self._running: list[int] = []

    def is_hooked(self, event_type: str) -> bool:
        return False

    def is_guarded(self) -> bool:
        return bool(self.deny)

    def has_pieces(self, step: str) -> bool:
        return True

    def drive(self, flow: Any, most: int = 200) -> Any:
        answer: Any = None
        for _ in range(most):
            try:
                effect = flow.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._answer(effect)
        raise AssertionError("the flow does not end")

    def run(self) -> Round:
        assert self.drive(self.rounds.settle_round()) is None
        self.drive(self.ledger.flush())
        return self

    def park(self) -> Round:
        """The round cannot go on before somebody has answered."""
        assert self.drive(self.rounds.settle_round()) == Park()
        self.drive(self.ledger.flush())
        return self

    def hear(self, wait_id: str, value: Any) -> Round:
        self.ledger.log.add([NewFact(f"{wait_id}-answer", None, WaitAnswered(wait_id, value))])
        self.told.clear()
        self.ops.clear()
        return self

    def _answer(self, effect: Any) -> Any:
        match effect:
            case Now():
                return 1000
            case AskGuard():
                return GuardDecision("deny" if effect.argument == self.deny else "allow", "tokens", "too much")
            case StartTool():
                self._running.append(effect.call.position)
                self.keys.append(effect.idempotency_key)
                self.told.append(f"start {effect.call.position}")
                return True
            case AwaitTool():
                assert self._running, "nothing runs"
                position = next((p for p in self.lands if p in self._running), self._running[0])
                self._running.remove(position)
                self.told.append(f"land {position}")
                if position in self.postpone:
                    return self.postpone[position]
                return Landed(Returned(f"t1-r1-c{position}", True, (Text("out"),)))
            case Commit():
                self.ops += effect.plan.ops
                names = {"fact_append": "facts", "inflight_start": "started", "inflight_land": "landed",
                         "inflight_clear": "cleared", "checkpoint_put": "cursor", "wait_open": "asked",
                         "inflight_restart": "restarted", "inflight_refuse": "refused"}  # fmt: skip
                found = [names[op.statement] for op in effect.plan.ops if op.statement in names]
                self.told.append(f"{'SYNC' if effect.plan.durable else 'write'} {' '.join(sorted(found))}")
        return None

    def rows(self, statement: str) -> list[Any]:
        return [row for op in self.ops if op.statement == statement for row in op.rows]


def landed(position: int, effect: str | None, result: bool) -> InflightCall:
    key, name = f"t1-r1-c{position}", "once" if effect == "once" else "read"
    kept = Returned(key, True, (Text("kept"),)) if result else None
    return InflightCall(key, name, effect, kept)
