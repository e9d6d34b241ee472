"""A model that can be asked again, for answers and for summaries; sizes as a provider counts them; logs with
compactions in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from thence import Fact, ToolContext, tool
from thence.chat import Delta, Message, Reply, Request, Usage
from thence.compacted import Compacted, Trigger
from thence.compacting import Compactor
from thence.compaction import Cut
from thence.errors import ModelError
from thence.facts import Answered, NewFact
from thence.ledger import Ledger, Nobody, Setup
from thence.limits import Limits
from thence.log import Log
from thence.models.scripted import ScriptedReply
from thence.pages import StoredFact
from thence.state import Phase, State
from thence.testing import call, reply
from thence.writes import Head, RunIds, append

from ..kit import stored

IDS = RunIds(1, "s", 1, "run-1", "me", 1, 1)
SETUP = Setup("m", "", {}, (), {}, Limits())
HEAD = "[Summary of the conversation so far]\n"
OVERFLOW = ModelError("context_overflow", "maximum context length is 9 tokens", retryable=False)


def is_summary_request(request: Request) -> bool:
    return request.instructions.startswith("You compact the transcript")


def size(request: Request) -> int:
    """Bytes of what a request says, counted anew: texts, arguments, instructions; its tools aside."""
    found = len(request.instructions.encode())
    for message in request.messages:
        found += len(message.text.encode())
        found += sum(len(one.arguments.encode()) for one in getattr(message, "calls", ()))
    return found


class Long:
    """Answers by what the conversation says, so that whoever asks the same again is told the same.

    A turn whose user says ``work N`` makes N calls of ``look``, one a round. ``faults``: raised instead, by how many
    requests of that kind there were (from 1). ``summary``: what a summary request is told.
    """

    name = "long"

    def __init__(self, summary: Any = None, faults: dict[int, Any] | None = None) -> None:
        self.requests: list[Request] = []
        self.summaries: list[Request] = []
        self.summary = summary
        self.faults = faults or {}

    @property
    def asked(self) -> int:
        """Requests of both kinds."""
        return len(self.requests) + len(self.summaries)

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        if is_summary_request(request):
            self.summaries.append(request)
            said = self.summary(request) if callable(self.summary) else self.summary
            if isinstance(said, BaseException):
                raise said
            answer: Any = said or reply("What was done so far.", usage={"prompt_tokens": 50, "completion_tokens": 4})
        else:
            self.requests.append(request)
            fault = self.faults.pop(len(self.requests), None)
            if fault is not None:
                raise fault
            answer = self.answer(request)
        made: ScriptedReply = answer
        for delta in made.deltas:
            assert not isinstance(delta, BaseException)
            yield delta
        yield made.reply

    def answer(self, request: Request) -> Any:
        messages = request.messages
        asked = max(i for i, m in enumerate(messages) if m.role == "user" and not m.text.startswith(HEAD))
        words = messages[asked].text.split()
        rounds = int(words[1]) if words[0] == "work" else 0
        last = messages[-1]
        done = 1 + int(last.text.split()[1]) if last.role == "tool" else 0
        if done < rounds:
            return reply(f"step {done}", calls=[call("look", {"n": done})], usage=USAGE)
        return reply(f"done {words[0]}", usage=USAGE)


USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


class Looks:
    """A tool with long results. ``ran``: call keys; ``on`` is called with each, while it runs."""

    def __init__(self, length: int = 600) -> None:
        self.ran: list[str] = []
        self.on: Callable[[str], Any] = lambda key: None
        self.length = length

    def tool(self) -> Any:
        @tool(effect="read")
        def look(n: int, context: ToolContext) -> str:
            self.ran.append(context.call_key)
            self.on(context.call_key)
            return f"saw {n} " + "x" * self.length

        return look


class Counting:
    """A budget guard that counts, and denies what ``deny`` says: by number of the check, from 1."""

    def __init__(self, *deny: int, word: str = "deny") -> None:
        self.checked: list[int] = []
        self.recorded: list[dict[str, int]] = []
        self.deny, self.word = set(deny), word

    def check_before_llm(self, session_id: str, tokens: int) -> Any:
        self.checked.append(tokens)
        denied = {"decision": self.word, "resource": "money", "reason": "none left"}
        return denied if len(self.checked) in self.deny else None

    def record_after_llm(self, session_id: str, usage: dict[str, int]) -> None:
        self.recorded.append(usage)


def compactions(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """The payloads of a log's compactions."""
    return [stored(fact) for fact in facts if fact.kind == "compaction.done"]


# ---------------------------------------------------------------- pure logs
def may_compact(state: State) -> bool:
    return state.phase in (Phase.IDLE, Phase.INFER) and all(wait.answer is not None for wait in state.waits)


def compact(log: Log, tail: int, trigger: Trigger = "threshold", usage: Usage | None = None) -> NewFact:
    """Put a compaction into a log in memory, as a turn does; what stays begins at the message ``tail``."""
    transcript = log.transcript
    kept = transcript.index(transcript.asked) if transcript.asked else tail
    cut = Cut((), tail, kept if kept < tail else None, 64, 1000)
    key = f"t{log.state.turn}-compact{log.state.compactions + 1}"
    answer = Answered("A summary.", usage=usage, model="m")
    fact = NewFact(key, f"compact:{key}", Compactor(Ledger(IDS, log, SETUP, Nobody()))._fact(key, trigger, cut, answer))
    log.add((fact,))
    return fact


def borders(log: Log) -> list[int]:
    """Where a tail may begin: never between a call and its result, and never so that only a summary is summarised."""
    messages = log.transcript.snapshot()
    first = 2 if log.transcript.starts_with_summary else 0
    return [i for i in range(first, len(messages) + 1) if i == len(messages) or messages[i].role != "tool"]


def with_compactions(facts: Sequence[NewFact], seed: int, chance: float = 0.3) -> tuple[list[NewFact], Log]:
    """A legal log with compactions wherever one may come, by chance; and the log in memory that it grew in."""
    random, log, found = Random(seed), Log(1, 1), list[NewFact]()
    for fact in facts:
        log.add((fact,))
        found.append(fact)
        if may_compact(log.state) and borders(log) and random.random() < chance:
            trigger: Any = random.choice(("threshold", "hook", "overflow", "request"))
            found.append(compact(log, random.choice(borders(log)), trigger, random.choice((None, Usage(7, 2, 9)))))
    return found, log


def stored_facts(facts: Sequence[NewFact]) -> tuple[list[StoredFact], Head, dict[str, bytes]]:
    """The facts as a page of the file would give them."""
    ops, head, _ = append(IDS, Head(), facts, 0)
    blobs = {row["sha256"]: row["bytes"] for op in ops if op.statement == "blob_add" for row in op.rows}
    names = ("seq", "kind", "key", "cause", "run_id", "prev_hash", "hash", "payload")
    rows: list[Any] = [tuple(row[name] for name in names) for row in ops[-1].rows] if facts else []
    return rows, head, blobs  # type: ignore[return-value]


def newest(facts: Sequence[NewFact]) -> tuple[int, Compacted] | None:
    """Seq and value of the newest compaction."""
    for seq in range(len(facts), 0, -1):
        payload = facts[seq - 1].payload
        if isinstance(payload, Compacted):
            return seq, payload
    return None


def shown(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """(role, beginning of the text) of messages."""
    return [(message.role, message.text[:30]) for message in messages]
