"""How a request is put to a model of 135 million parameters: short, and by example (§12). Pure.

Such a model imitates what stands just before the question. So every turn, real or worked example, is shown in the form
that is wanted next: as question and call when a call is due, as question, result and answer when text is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..canonical import Json, dumps
from ..chat import AssistantMessage, ChatCall, Message, Request, ToolMessage, ToolSpec, UserMessage
from .local_examples import most_like

CONTINUATION = "Continue."

_EXAMPLES = 2
_EARLIER_TURNS = 3
_EARLIER_BYTES = 600


@dataclass(slots=True)
class _Turn:
    question: str
    calls: list[ChatCall] = field(default_factory=list[ChatCall])
    results: list[str] = field(default_factory=list[str])
    answer: str = ""

    def shown(self, call_due: bool, limit_bytes: int) -> Iterator[Message]:
        question = _cut(self.question, limit_bytes)
        if call_due and self.calls:
            yield UserMessage(question)
            yield AssistantMessage("", (self.calls[0],))
            return
        share = limit_bytes // (len(self.results) or 1)
        yield UserMessage(question + "".join(f"\nResult: {_cut(result, share)}" for result in self.results))
        if self.answer:
            yield AssistantMessage(_cut(self.answer, limit_bytes))


def adapt(request: Request, *, budget_bytes: int, defaults: Mapping[str, Json]) -> Request:
    """``request`` as the local model gets it.

    While its last turn has no result, a call is due (if tools are offered); then text, without tools: left to itself
    the model never calls, and never stops calling. So it makes one call a turn. A question with tools is put on its
    own, after the examples: with earlier turns before it the model repeats those (right calls fell from 18 of 20 to
    14).

    Args:
        request: as the turn made it.
        budget_bytes: UTF-8 bytes for the question, as many again for the results of the current turn together, and a
            quarter of them for the instructions; what is longer is cut.
        defaults: model settings that give way to the request's own.
    """
    turns = _last_turns(request.messages, 1 + _EARLIER_TURNS)
    instructions = _cut(request.instructions, budget_bytes // 4)
    if not turns:
        return replace(request, instructions=instructions, tools=(), settings={**defaults, **request.settings})
    current = turns.pop()
    tools = tuple(_described_shortly(tool) for tool in request.tools)
    call_due = bool(tools) and not current.results and not current.answer
    shown = list(_examples(current.question, tools, call_due)) if tools else _earlier(turns)
    shown += current.shown(call_due, budget_bytes)
    if current.answer:
        shown.append(UserMessage(CONTINUATION))
    forced: dict[str, Json] = {"tool_choice": "required", "parallel_tool_calls": False} if call_due else {}
    return replace(
        request,
        instructions=instructions,
        messages=tuple(shown),
        tools=tools if call_due else (),
        output_schema=None if call_due else request.output_schema,
        settings={**defaults, **forced, **request.settings},
    )


def _last_turns(messages: Sequence[Message], count: int) -> list[_Turn]:
    """The newest turns, found from the end: a long history is not read."""
    start = len(messages)
    while start and count:
        start -= 1
        count -= _opens_turn(messages, start)
    turns: list[_Turn] = []
    for index in range(start, len(messages)):
        message = messages[index]
        if _opens_turn(messages, index):
            turns.append(_Turn(message.text))
        elif isinstance(message, ToolMessage):
            turns[-1].results.append(message.text)
        elif isinstance(message, AssistantMessage):
            turns[-1].calls += message.calls
            turns[-1].answer += message.text
    return turns


def _opens_turn(messages: Sequence[Message], index: int) -> bool:
    """Whether a turn begins here. A continuation belongs to the turn it continues; the first message always opens."""
    message = messages[index]
    return index == 0 or (isinstance(message, UserMessage) and message.text != CONTINUATION)


def _earlier(turns: Sequence[_Turn]) -> list[Message]:
    shown: list[Message] = []
    room = _EARLIER_BYTES
    for turn in reversed(turns):
        messages = list(turn.shown(False, _EARLIER_BYTES // 2))
        room -= sum(len(message.text.encode()) for message in messages)
        if room < 0:
            break
        shown = messages + shown
    return shown


def _examples(question: str, tools: Sequence[ToolSpec], call_due: bool) -> Iterator[Message]:
    for number, example in enumerate(most_like(question, tools, _EXAMPLES)):
        key = f"example-{number}"
        call = ChatCall(key, key, example.tool, dumps(example.arguments))
        turn = _Turn(example.question, [call], [example.result], example.answer)
        yield from turn.shown(call_due, _EARLIER_BYTES)


def _described_shortly(tool: ToolSpec) -> ToolSpec:
    return replace(tool, description=tool.description.strip().partition("\n")[0])


def _cut(text: str, limit_bytes: int) -> str:
    if len(text.encode()) <= limit_bytes:
        return text
    return text.encode()[:limit_bytes].decode(errors="ignore") + "\n... (cut)"
