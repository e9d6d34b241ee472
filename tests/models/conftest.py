"""One collector for both faces of a model, and a server that answers what a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from thence.chat import Reply, Request


async def _acollect(model: Any, request: Request) -> list[Any]:
    try:
        return [item async for item in model.astream(request)]
    finally:
        if hasattr(model, "aclose"):
            await model.aclose()


def _collect(model: Any, request: Request) -> list[Any]:
    try:
        return list(model.stream(request))
    finally:
        if hasattr(model, "close"):
            model.close()


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[[Any, Request], list[Any]]:
    """``ask(model, request)``: all items of one answer, by either face; the connections are released after."""
    if request.param == "sync":
        return _collect
    return lambda model, asked: asyncio.run(_acollect(model, asked))


@dataclass
class Wire:
    """A loopback server: ``answers`` (status, headers, body) are taken in order; ``bodies`` and ``headers`` came."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def streams(self, *chunks: Any, done: bool = True) -> None:
        """Answer the next request with these chunks (JSON values or raw text) as server-sent events."""
        lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
        body = "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])])
        self.answers.append((200, {"content-type": "text/event-stream"}, body.encode()))

    def fails(self, status: int, error: Any, **headers: str) -> None:
        """Answer the next request with an error object; ``retry_after`` is sent as ``retry-after``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append(
            (status, {"content-type": "application/json", **sent}, json.dumps({"error": error}).encode())
        )


@pytest.fixture
def wire() -> Iterator[Wire]:
    state = Wire()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            state.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            status, headers, body = state.answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield state
        server.shutdown()


def chunk(*, text: str | None = None, finish: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    """One chunk in the dialect of Chat Completions."""
    if text is not None:
        delta["content"] = text
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta or finish else []
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-1",
        "choices": choices,
        "usage": usage,
    }


@pytest.fixture(name="chunk")
def _chunk() -> Callable[..., dict[str, Any]]:
    return chunk


def last_reply(items: list[Any]) -> Reply:
    """The last item, which must be the only reply."""
    assert [isinstance(item, Reply) for item in items] == [False] * (len(items) - 1) + [True]
    reply: Reply = items[-1]
    return reply


@pytest.fixture(name="last_reply")
def _last_reply() -> Callable[[list[Any]], Reply]:
    return last_reply
