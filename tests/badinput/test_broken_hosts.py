"""Models, tools and guards that misbehave: typed errors, nothing lost, the session as good as before (§5, §6, §12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import ModelError, RunFailed, SessionOptions, StoreError, ThenceError, tool, transcript
from thence.chat import RawCall, Reply, TextDelta, ToolCallDelta, Usage
from thence.testing import ScriptedModel, call, reply

from .kit import NAN, Face


class Broken(ScriptedModel):
    """Plays ``items`` for one request, then goes on with a script."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__([reply("Recovered.")] * 5)
        self._items: list[Any] | None = items

    def _once(self) -> list[Any] | None:
        items, self._items = self._items, None
        return items

    def stream(self, request: Any) -> Any:
        items = self._once()
        if items is None:
            yield from super().stream(request)
            return
        for item in items:
            if isinstance(item, BaseException):
                raise item
            yield item

    async def astream(self, request: Any) -> Any:
        items = self._once()
        if items is None:
            async for item in super().astream(request):
                yield item
            return
        for item in items:
            if isinstance(item, BaseException):
                raise item
            yield item


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: dict[str, BaseException] = {
    "ValueError": ValueError("no such model"),
    "a lone surrogate in it": ValueError("a\ud800b"),
    "no words": Silent(),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "SystemExit": SystemExit(3),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration": StopIteration(),
    "MemoryError": MemoryError(),
    "RecursionError": RecursionError("deep"),
    "not retryable": ModelError("http_400", "bad request", retryable=False),
    "a plain ThenceError": ThenceError("odd"),
    "1 MB": ValueError("x" * 1_000_000),
}


def survives(face: Face, db: Any, model: Any, tools: Any = ()) -> ThenceError:
    """What the first send raised; the session then goes on in this process and in the next."""
    agent = face.agent(db, model=model, tools=tools)
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s", circuit_breaker_threshold=1)))
    with pytest.raises(ThenceError) as failed:
        face.do(lambda: session.send("Go."))
    str(failed.value).encode()
    assert failed.value.run_id is not None
    run = face.do(lambda: session.run_snapshot(failed.value.run_id))
    assert run is not None
    assert run.status == "failed"
    assert run.error_code == failed.value.code
    assert face.do(session.current_run) is None
    assert face.do(lambda: session.facts())[1].kind == "user.message"
    assert face.do(lambda: session.send("Go on.")).text == "Recovered."
    face.close()
    agent = face.agent(db, model=model, tools=tools)
    session = face.do(lambda: agent.resume_session("s"))
    assert [message.text for message in face.do(session.history) if message.role == "user"] == ["Go.", "Go on."]
    assert face.do(lambda: session.send("Again.")).text == "Recovered."
    return failed.value


@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("after", [[], [TextDelta("some")]], ids=["at once", "after a delta"])
def test_a_model_that_raises(face: Face, db, what, after):
    error = survives(face, db, Broken([*after, RAISED[what]]))
    if type(RAISED[what]) is not ThenceError:
        # a model may raise an error of ours with a code of its own; anything else is the model's failure
        assert isinstance(error, RunFailed)
        assert error.code == "LLM_ERROR"
    assert error.resumable


WRONG: dict[str, list[Any]] = {
    "nothing at all": [],
    "deltas and no reply": [TextDelta("a"), TextDelta("b")],
    "a text": ["hello"],
    "None": [None],
    "a dict": [{"text": "hello"}],
    "a delta whose text is a number": [TextDelta(5)],  # type: ignore[arg-type]
    "a tool delta whose text is None": [ToolCallDelta(0, "take", None)],  # type: ignore[arg-type]
    "a reply whose text is a number": [Reply(text=5)],  # type: ignore[arg-type]
    "a reply whose text is None": [Reply(text=None)],  # type: ignore[arg-type]
    "a reply whose calls are texts": [Reply(calls=("take",))],  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_model_that_answers_nonsense(face: Face, db, what):
    error = survives(face, db, Broken(WRONG[what]))
    assert isinstance(error, RunFailed)
    assert error.code == "LLM_ERROR"


USAGES: dict[str, Any] = {
    "a text": "5",
    "a fraction": Usage(10, 2.5, 12.5),  # type: ignore[arg-type]
    "a whole number as a fraction": Usage(10.0, 2, 12),  # type: ignore[arg-type]
    "huge": Usage(10**30, 2, 10**30),
    "too much for sums": Usage(2**62, 2**62, 2**62),
    "negative": Usage(-1000, 2, -998),
    "NaN": Usage(NAN, 2, 3),  # type: ignore[arg-type]
    "a truth value": Usage(True, 2, 3),
    "cached tokens that are a text": Usage(1, 2, 3, "1"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", USAGES)
def test_a_usage_that_cannot_be_true_is_unknown_and_the_answer_counts(face: Face, db, what):
    """§4: `usage` or null. The answer was paid for: it is kept, with its calls, and the session goes on."""

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    recorded: list[Any] = []

    class Meter:
        def record_after_llm(self, session_id: str, usage: Any) -> None:
            recorded.append(usage)

    model = Broken([Reply("x", (RawCall("c", "look", "{}"),), USAGES[what], "tool_calls")])
    agent = face.agent(db, model=model, tools=[look])
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s", budget_guard=Meter())))
    result = face.do(lambda: session.send("Go."))
    assert (result.status, result.text, result.usage) == ("completed", "Recovered.", Usage())
    assert face.do(lambda: session.send("Go on.")).text == "Recovered."
    usage = face.do(session.usage)
    assert (usage.known, usage.unknown, usage.usage, recorded) == (0, 3, Usage(), [])
    face.close()
    agent = face.agent(db)
    session = face.do(lambda: agent.resume_session("s", SessionOptions(budget_guard=Meter())))
    assert [run.status for run in face.do(session.runs)] == ["completed"] * 2
    assert face.do(session.facts)[2].to_dict()["payload"]["usage"] is None


def test_what_SQLite_says_of_our_columns_is_no_message_to_a_caller(face: Face, db, monkeypatch):
    monkeypatch.setattr(transcript, "usable_usage", lambda usage: usage)
    agent = face.agent(db, model=Broken([Reply("x", usage=Usage(1, 2.5, 3))]))  # type: ignore[arg-type]
    session = face.do(lambda: agent.session("/w"))
    with pytest.raises(StoreError) as refused:
        face.do(lambda: session.send("Go."))
    assert (type(refused.value), refused.value.code) == (StoreError, "STORE_ERROR")
    assert refused.value.run_id is not None
    assert "column" not in str(refused.value)


def test_a_script_that_is_over(face: Face, db):
    agent = face.agent(db, model=ScriptedModel([reply("One.")]))
    session = face.do(lambda: agent.session("/w"))
    face.do(lambda: session.send("Go."))
    with pytest.raises(ThenceError, match="had 1 replies and was asked once more") as over:
        face.do(lambda: session.send("Go on."))
    assert over.value.code == "LLM_ERROR"


class Deaf:
    name = "deaf"


@pytest.mark.parametrize("model", [Deaf(), "x", 5])
def test_what_is_no_model_is_refused_when_it_is_given(face: Face, db, model):
    with pytest.raises((TypeError, ValueError, ThenceError), match="model"):
        face.agent(db, model=model)
    assert not db.exists()


TOOL_ERRORS: dict[str, BaseException] = {name: error for name, error in RAISED.items() if name != "StopIteration"}


@pytest.mark.parametrize("what", TOOL_ERRORS)
def test_a_tool_that_raises_is_a_failed_result(face: Face, db, what):
    error = TOOL_ERRORS[what]

    @tool
    def breaks() -> str:
        """Break."""
        raise error

    @tool
    async def abreaks() -> str:
        """Break."""
        raise error

    script = [reply("", [call("breaks"), call("abreaks")]), reply("Done.")]
    agent = face.agent(db, model=ScriptedModel(script), tools=[breaks, abreaks])
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s")))
    result = face.do(lambda: session.send("Go."))
    assert result.text == "Done."
    results = [message for message in face.do(session.history) if message.role == "tool"]
    assert [message.ok for message in results] == [False, False]
    for message in results:
        message.text.encode()
        assert message.text.startswith("Error: ")
        assert type(error).__name__ in message.text
        assert len(message.text.encode()) <= 32_768


class Guard:
    def __init__(self, what: Any) -> None:
        self._what = what

    def check_before_llm(self, session_id: str, estimated_tokens: int) -> Any:
        if isinstance(self._what, BaseException):
            raise self._what
        return self._what


ANSWERS: dict[str, tuple[Any, str]] = {
    "raises": (ValueError("x"), "budget_guard_callback"),
    "raises SystemExit": (SystemExit(1), "budget_guard_callback"),
    "raises KeyboardInterrupt": (KeyboardInterrupt(), "budget_guard_callback"),
    "True": (True, "budget_guard_error"),
    "a text": ("allow", "budget_guard_error"),
    "an unknown decision": ({"decision": "maybe"}, "budget_guard_error"),
    "no decision": ({"resource": "x"}, "budget_guard_error"),
    "NaN": ({"decision": "soft", "resource": "r", "consumed": float("nan"), "limit": 1}, "budget_guard_error"),
    "a resource that is a number": ({"decision": "deny", "resource": 5, "reason": "x"}, "budget_guard_error"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_guard_that_answers_nonsense_denies(face: Face, db, what):
    """§6: fail closed, with the resource that says what was wrong, and the session stays open."""
    answer, resource = ANSWERS[what]
    model = ScriptedModel([reply("Allowed.")])
    agent = face.agent(db, model=model)
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s", budget_guard=Guard(answer))))
    with pytest.raises(ThenceError, match=f"^Budget exhausted on '{resource}': .*check_before_llm") as denied:
        face.do(lambda: session.send("Go."))
    str(denied.value).encode()
    assert denied.value.code == "BUDGET_EXHAUSTED"
    assert model.requests == []
    session.set_budget_guard(None)
    assert face.do(lambda: session.send("Go.")).text == "Allowed."


def test_a_guard_whose_words_have_no_utf8_denies(face: Face, db):
    model = ScriptedModel([reply("Allowed.")])
    guard = Guard({"decision": "deny", "resource": "r", "reason": "a\ud800"})
    agent = face.agent(db, model=model)
    session = face.do(lambda: agent.session("/w", SessionOptions(session_id="s", budget_guard=guard)))
    with pytest.raises(ThenceError, match="Budget exhausted on ") as denied:
        face.do(lambda: session.send("Go."))
    str(denied.value).encode()
    assert model.requests == []
    (run,) = face.do(session.runs)
    assert (run.status, run.error_code) == ("failed", "BUDGET_EXHAUSTED")
