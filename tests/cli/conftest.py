"""A file with content, the real command line in a process of its own, and a provider on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import thence
from thence import Agent, SessionOptions, workspace_tools
from thence.testing import ScriptedModel, call, fixed_env, reply

from ..nursery import Process, start

UNSET = ("NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
ENGINE = Path(thence.__file__).resolve().parents[1]


@dataclass
class Shell:
    """Runs ``python -m thence`` in a folder."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[Process] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in UNSET}
        return {**kept, "PYTHONPATH": str(ENGINE), **self.env}

    def start(self, *words: str, program: Sequence[str] = ("-m", "thence"), **more: Any) -> Process:
        process = start(
            [*program, *words],
            cwd=self.folder,
            env=self.environment(),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )
        self.started.append(process)
        return process

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.wait(), out, err)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait()


@dataclass
class Filled:
    """A closed file: session ``t-0`` with two runs, one of them with calls, in a folder with one file."""

    path: Path
    session_id: str = "t-0"
    run_id: str = "run-t-1"
    failed_run_id: str = "run-t-2"


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("Buy milk.\nCall Ann.\n")
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    model = ScriptedModel(
        [
            reply(calls=[call("read", {"path": "notes.txt"}), call("read", {"path": "no.txt"})], usage=usage),
            reply("It says: buy milk.", usage=usage),
            reply("Not usage-counted."),
        ]
    )
    path = tmp_path / "thence.db"
    with Agent(path, model=model, tools=workspace_tools(), host_env=fixed_env("t")) as agent:
        session = agent.session(workspace, SessionOptions(tenant_id="acme", max_parallel_tools=1))
        session.send("Read the notes.")
        session.send("And now?")
    return Filled(path)


@dataclass
class Provider:
    """An OpenAI-compatible server. ``answers`` are taken in order; a text is an answer, None hangs after two words."""

    url: str = ""
    answers: list[Any] = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def env(self) -> dict[str, str]:
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "none", "THENCE_MODEL": "openai:m"}


def _lines(answer: Any) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]}

    if isinstance(answer, dict):
        function = {"name": answer["call"], "arguments": json.dumps(answer["args"])}
        yield chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
        yield chunk({}, "tool_calls")
        return
    for word in ("Two words" if answer is None else answer).split(" "):
        yield chunk({"content": word + " "})
    if answer is not None:
        yield chunk({}, "stop")


@pytest.fixture
def provider() -> Iterator[Provider]:
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer = state.answers.pop(0)
            if isinstance(answer, int):
                self.send_response(answer)
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for line in _lines(answer):
                self.wfile.write(f"data: {json.dumps(line)}\n\n".encode())
                self.wfile.flush()
            if answer is None:
                state.hanging.set()
                state.released.wait(60)
            else:
                self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield state
        state.released.set()
        server.shutdown()


@pytest.fixture
def live(shell: Shell, provider: Provider) -> Iterator[Process]:
    """A run that hangs in the middle of an answer, in a process of its own; session ``busy``."""
    provider.answers = [None, None]
    shell.env.update(provider.env())
    process = shell.start("run", "-s", "busy", "Hello there.")
    assert provider.hanging.wait(30)
    assert process.stdout is not None
    assert process.stdout.read(10) == "Two words "
    yield process
    provider.released.set()


@pytest.fixture
def listing() -> Callable[[Path], dict[str, tuple[int, int, int]]]:
    """What is in a folder: names with size, time of change and inode."""

    def look(folder: Path) -> dict[str, tuple[int, int, int]]:
        found = {entry.name: entry.stat() for entry in folder.iterdir()}
        return {name: (status.st_size, status.st_mtime_ns, status.st_ino) for name, status in found.items()}

    return look
