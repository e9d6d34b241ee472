"""What the local model is shown: examples of the offered tools, the right form, and never too much (§12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thence.chat import AssistantMessage, ChatCall, Request, ToolMessage, ToolSpec, UserMessage
from thence.models.local_examples import most_like
from thence.models.local_prompt import adapt


def spec(name: str, description: str = "", required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


TEXT = {"type": "string"}
WORKSPACE = (
    spec("ls", "List a folder.\nArgs: path", path=TEXT),
    spec("read", "Read a file.", ("path",), path=TEXT, offset={"type": "integer"}),
    spec("glob", "Find files.", ("pattern",), pattern=TEXT),
    spec("grep", "Search files.", ("pattern",), pattern=TEXT, path=TEXT),
)
CALLED = AssistantMessage("", (ChatCall("t1-r1-c0", "c0", "read", '{"path":"a.txt"}'),))


def put(*messages: Any, tools: tuple[ToolSpec, ...] = WORKSPACE, budget_bytes: int = 3000, **settings: Any) -> Request:
    request = Request("", "be brief", messages, tools, settings)
    return adapt(request, budget_bytes=budget_bytes, defaults={"temperature": 0, "max_tokens": 9})


def result(text: str) -> ToolMessage:
    return ToolMessage("t1-r1-c0", "c0", "read", text, ok=True)


@pytest.mark.parametrize(
    ("question", "tool"),
    [
        ("What is in the folder docs?", "ls"),
        ("List the files in reports.", "ls"),
        ("What files are there?", "ls"),
        ("Read the file notes.txt.", "read"),
        ("What does the file plan.md say?", "read"),
        ("Which files mention 'invoice'?", "grep"),
        ("Search for the word 'budget'.", "grep"),
        ("Find all files named *.txt.", "glob"),
    ],
)
def test_the_last_example_is_of_the_kind_of_the_question(question: str, tool: str) -> None:
    examples = most_like(question, WORKSPACE, 2)
    assert [example.tool for example in examples] == [tool, tool]


def test_a_question_asks_for_a_call() -> None:
    shown = put(UserMessage("Read the file a.txt."))
    assert shown.settings == {
        "temperature": 0,
        "max_tokens": 9,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    assert [tool.description for tool in shown.tools] == [
        "List a folder.",
        "Read a file.",
        "Find files.",
        "Search files.",
    ]
    assert [message.role for message in shown.messages] == ["user", "assistant"] * 2 + ["user"]
    example = shown.messages[3]
    assert isinstance(example, AssistantMessage)
    assert [(call.name, json.loads(call.arguments)) for call in example.calls] == [("read", {"path": "todo.md"})]
    assert shown.messages[-1] == UserMessage("Read the file a.txt.")


def test_a_result_asks_for_text() -> None:
    shown = put(UserMessage("Read the file a.txt."), CALLED, result("Hello."))
    assert (shown.tools, shown.settings) == ((), {"temperature": 0, "max_tokens": 9})
    assert shown.messages[-3:] == (
        UserMessage("Read the file todo.md.\nResult: Buy milk.\nCall Ann."),
        AssistantMessage("It says: Buy milk. Call Ann."),
        UserMessage("Read the file a.txt.\nResult: Hello."),
    )


def test_going_on_asks_for_text_and_keeps_the_question() -> None:
    shown = put(UserMessage("Read a.txt."), CALLED, result("Hello."), AssistantMessage("It"), UserMessage("Continue."))
    assert shown.messages[-3:] == (
        UserMessage("Read a.txt.\nResult: Hello."),
        AssistantMessage("It"),
        UserMessage("Continue."),
    )
    assert not shown.tools


def test_a_user_may_say_continue() -> None:
    assert put(UserMessage("Continue.")).messages[-1] == UserMessage("Continue.")


def test_without_tools_earlier_turns_are_shown_newest_first() -> None:
    turns = [message for n in range(50) for message in (UserMessage(f"question {n}"), AssistantMessage("a" * 150))]
    shown = put(*turns, UserMessage("last"), tools=())
    assert [message.text for message in shown.messages[::2]] == ["question 47", "question 48", "question 49", "last"]
    long = put(UserMessage("q" * 900), AssistantMessage("a" * 900), UserMessage("last"), tools=())
    assert [message.text for message in long.messages] == ["last"]


def test_what_is_long_is_cut_to_the_budget() -> None:
    shown = put(UserMessage("é" * 9000), CALLED, result("x" * 40_000), result("y" * 40_000), budget_bytes=1000)
    text = shown.messages[-1].text
    assert len(text.encode()) < 2100
    assert text.count("... (cut)") == 3
    assert "xxx" in text
    assert "yyy" in text
    assert len(put(UserMessage("hi")).instructions) == len("be brief")


def test_the_hosts_settings_win() -> None:
    shown = put(UserMessage("hi"), temperature=1, tool_choice="auto")
    assert (shown.settings["temperature"], shown.settings["tool_choice"]) == (1, "auto")


def test_unknown_tools_get_an_example_that_fits_their_schema() -> None:
    tools = (
        spec("add", "Add two integers.", ("a", "b"), a={"type": "integer"}, b={"type": "integer"}),
        spec("paint", "Paint", ("colour", "on"), colour={"enum": ["red"]}, on={"type": "boolean"}, odd=True),
        spec("ping", ""),
        spec("read", "Read a page", ("url",), url=TEXT),
    )
    made = {example.tool: example.arguments for tool in tools for example in most_like("x", (tool,), 2)}
    assert made == {
        "add": {"a": 2, "b": 2},
        "paint": {"colour": "red", "on": True},
        "ping": {},
        "read": {"url": "Rome"},
    }


def test_nothing_asked_is_passed_on() -> None:
    assert put().messages == ()
