"""Random legal logs: a walk over the table of §4 and §5, made here anew so that the fold is not asked what is legal."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from thence import Usage
from thence.canonical import Json
from thence.facts import (
    Answered,
    Asked,
    Call,
    Configured,
    Data,
    Denied,
    Ended,
    NewFact,
    Note,
    Payload,
    Reported,
    Returned,
    Text,
    WaitAnswered,
    WaitKind,
    WaitOpened,
    Waived,
)
from thence.fold import fold

NAMES = ("read", "write", "poll")
ABOUT_CALLS: tuple[WaitKind, ...] = ("confirmation", "question", "deferred", "unknown_outcome", "budget_hold", "child")
ANSWERS: tuple[Json, ...] = (True, None, "text", {"approved": False, "reason": "no"})


@dataclass
class Walk:
    """A log that grows by one legal fact at a time."""

    random: Random
    facts: list[NewFact] = field(default_factory=list)
    phase: str = "idle"
    turn: int = 0
    request: int = 0
    more: int = 0
    configs: int = 0
    steers: int = 0
    said: int = 0
    open: list[str] = field(default_factory=list)
    capped: bool = False
    waits: dict[str, str] = field(default_factory=dict)
    """Waits that are not answered, and what each is about."""
    asked: int = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def put(self, key: str, payload: Payload) -> None:
        self.facts.append(NewFact(key, None if isinstance(payload, Asked) else f"step:{key}", payload))

    def step(self) -> None:
        """Append one fact that may come here."""
        if self.chance(0.03):
            self.put(f"note-{len(self.facts)}", Note("note.x", {"n": len(self.facts)}))
        elif self.phase != "calls" and self.chance(0.08):
            self.configs += 1
            self.put(f"t{self.turn}-config{self.configs}", Configured("m", str(self.configs), {}, {}, "0" * 64))
        elif self.phase in ("infer", "calls") and self.chance(0.12):
            self._wait()
        else:
            getattr(self, f"_{self.phase}")()

    def _wait(self) -> None:
        """Ask the world, or hear it. Whoever must not wait any longer (a cancel) may go on without an answer."""
        by = self.random.choice((None, "ann"))
        if self.waits and self.chance(0.6):
            wait_id = self.random.choice(sorted(self.waits))
            del self.waits[wait_id]
            self.put(f"{wait_id}-answer", WaitAnswered(wait_id, self.random.choice(ANSWERS), by, self.chance(0.2)))
            return
        self.asked += 1
        called = self.phase == "calls"
        subject = self.random.choice(self.open) if called else f"t{self.turn}-r{self.request + 1}"
        kind = self.random.choice(ABOUT_CALLS) if called else "budget_hold"
        wait_id = f"{subject}-w{self.asked}"
        self.waits[wait_id] = subject
        deadline, about = self.random.choice((None, 9)), self.random.choice(({}, {"question": "why?"}))
        self.put(wait_id, WaitOpened(wait_id, kind, subject, "0" * 64, deadline, about))

    def _idle(self) -> None:
        self.turn, self.request, self.more, self.capped, self.phase = self.turn + 1, 0, 0, False, "infer"
        self.put(f"t{self.turn}-user", Asked((Text(f"question {self.turn}"),)))

    def _infer(self) -> None:
        if self.chance(0.06):
            self._end()
        elif self.chance(0.05) and not self.capped:
            self._steer()
        else:
            self.request += 1
            count = self.random.choice((0, 0, 1, 1, 2, 3))
            calls = tuple(self._call(position) for position in range(count))
            self.open = [f"t{self.turn}-r{self.request}-c{position}" for position in range(count)]
            usage = Usage(1, 2, 3) if self.chance(0.7) else None
            text = self.random.choice(("", "text", "half"))
            stop = self.random.choice(("stop", "length", "tool_calls"))
            self.phase = "calls" if count else "answered"
            self.waits.clear()
            self.put(f"t{self.turn}-r{self.request}", Answered(text, calls, usage, stop, "m"))

    def _call(self, position: int) -> Call:
        name = self.random.choice(NAMES)
        if self.chance(0.15):
            return Call(f"c{position}", name, None, "{", "arguments are not JSON")
        return Call(f"c{position}", name, {"n": self.random.randrange(3)})

    def _calls(self) -> None:
        key = self.open.pop(0)
        self.waits = {wait_id: subject for wait_id, subject in self.waits.items() if subject != key}
        payload: Payload
        if self.capped or self.chance(0.06):
            scope = "round_cap" if self.capped or self.chance(0.3) else "guard"
            self.capped = self.capped or scope == "round_cap"
            payload = Denied(key, scope, "r", "why")  # type: ignore[arg-type]
        else:
            payload = Returned(
                key, self.chance(0.7), (self.random.choice((Text("out"), Data({"n": 1}))),), self._metadata()
            )
        if not self.open:
            self.phase = "answered" if self.capped else "infer"
        self.put(key, payload)

    def _metadata(self) -> dict:
        metadata: dict = self.random.choice((
                {}, {"effect": "read"}, {"effect": "once"}, {"repeatable": True}, {"workspace": True},
                {"effect": "once", "workspace": True}, {"changed_paths": ["b", "a"]},
            )
        )  # fmt: skip
        refused = self.random.choice((None, None, None, "malformed_arguments", "duplicate_tool_call", "unknown_tool"))
        if refused:
            metadata = {"refused": refused}
            if self.chance(0.1):
                metadata["fatal"] = {"code": "X", "message": "too often"}
        return metadata

    def _answered(self) -> None:
        if self.chance(0.2):
            self._gate()
        elif self.chance(0.7):
            self._end()
        elif self.chance(0.2) and not self.capped:
            self._steer()
        else:
            self.more += 1
            self.phase = "infer"
            self.put(f"t{self.turn}-more{self.more}", Asked((Text("Continue."),), "continuation"))

    def _gate(self) -> None:
        """A report or a waiver, of the changes there are or of others."""
        self.said += 1
        digest = self.random.choice((fold(self.facts).gate.changes, "d" * 64))
        payload = Waived(digest, "why") if self.chance(0.3) else Reported(digest, self.chance(0.5), {"n": self.said})
        self.put(f"t{self.turn}-gate{self.said}", payload)

    def _steer(self) -> None:
        self.steers += 1
        self.phase = "infer"
        self.put(f"t{self.turn}-steer{self.steers}", Asked((Text("rather so"),), "steer", f"q{self.steers}"))

    def _end(self) -> None:
        self.phase = "idle"
        self.waits.clear()
        self.put(f"t{self.turn}-end", Ended(self.random.choice(("completed", "failed", "cancelled"))))

    def finish(self) -> None:
        """Go on until the turn has ended."""
        while self.phase != "idle":
            if self.phase == "infer":
                self._end()
            else:
                self.step()


@st.composite
def legal_logs(draw: st.DrawFn, *, settled: bool = False, most: int = 60) -> list[NewFact]:
    """A legal log; ``settled``: its last turn has ended."""
    walk = Walk(Random(draw(st.integers(0, 2**32))))
    for _ in range(draw(st.integers(0, most))):
        walk.step()
    if settled:
        walk.finish()
    return walk.facts
