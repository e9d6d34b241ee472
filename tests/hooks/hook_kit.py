"""What the tests of hooks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thence import Hook, HookContext
from thence.testing import call, reply

from ..kit import Both

TYPES = ("pre_tool_use", "post_tool_use", "pre_llm", "post_llm", "session_start", "session_end", "run_end")
GATES = ("pre_tool_use", "pre_llm")
BLOCKED = "Error: blocked by a hook: "


class Told:
    """A handler that remembers what it was told and answers with ``answer``, or with what that returns."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.contexts: list[HookContext] = []

    def __call__(self, context: HookContext) -> Any:
        self.contexts.append(context)
        return self.answer(context) if callable(self.answer) else self.answer

    async def later(self, context: HookContext) -> Any:
        """The same as an async handler."""
        return self(context)

    @property
    def types(self) -> list[str]:
        return [context.event_type for context in self.contexts]

    @property
    def keys(self) -> list[str | None]:
        return [context.call_key for context in self.contexts]


class Acts:
    """A tool that remembers with what it ran."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def tool(self) -> Callable[..., Any]:
        def act(n: int = 0, note: str = "") -> str:
            self.ran.append(n)
            return f"did {n}{note}"

        return act


def one_round(*numbers: int) -> list[Any]:
    """A script: one answer with a call of ``act`` for each number, then words."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    calls = [call("act", {"n": n}) for n in numbers or (1,)]
    return [reply("looking", calls=calls, usage=usage), reply("ok", usage=usage)]


def all_types(handler: Callable[[HookContext], object], **more: Any) -> list[Hook]:
    return [Hook(kind, handler, **more) for kind in TYPES]


async def register(session: Both, *args: Any, **named: Any) -> str:
    hook_id: str = await session.register_hook(*args, **named)
    return hook_id
