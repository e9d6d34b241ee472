"""Every OpenAI-compatible server, through the official SDK (extra ``openai``; §12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..chat import Delta, Reply, Request
from ..errors import ModelError
from .completions import Accumulator, request_body
from .openai_arguments import check_arguments, find_key

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

C = TypeVar("C")

# Every body goes through the SDK's ``extra_body``, which sends plain JSON as it is and wins over the arguments that
# the SDK demands. As typed arguments it would walk the whole history against its type hints, on every request:
# measured, 476 ms instead of 4 for 3,000 messages.


class OpenAIModel:
    """A model behind the Chat Completions API: OpenAI, or any compatible server by its ``base_url`` (§12).

    Both faces. The SDK's own retries are off: attempts belong to the turn (§5). One instance may be used from many
    threads and event loops at once. For a limit on a whole attempt use the session option ``llm_api_timeout_ms``.

    Args:
        name: the provider's model name.
        base_url: default: ``OPENAI_BASE_URL`` of the environment, else OpenAI itself.
        api_key: default: ``OPENAI_API_KEY`` of the environment. White space around it is dropped. Never stored, never
            in errors or in ``repr``.
        connect_timeout_s: seconds to reach the server.
        read_timeout_s: longest silence before and between the pieces of an answer, in seconds.
        client_options: further keywords of the SDK's clients (``organization``, ``default_headers``, ...).

    Raises:
        TypeError, ValueError: at once: a refused argument, by name.
        ModelError: at once, ``configuration``: no API key or one that no HTTP header can carry, or the extra is not
            installed. From a stream, with ``retryable`` set: ``http_<status>``, ``timeout``, ``connection``,
            ``stream_broken``, ``stream_error``, ``truncated_stream``, ``context_overflow``, ``configuration``. Never an
            SDK's own error.
    """

    def __init__(
        self,
        name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **client_options: Any,
    ) -> None:
        check_arguments(name, base_url, api_key, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s)
        key = find_key(api_key)
        try:
            from .openai_faults import FAULTS, check_client_options, classify
        except ImportError as error:
            raise ModelError(
                "configuration", f"OpenAIModel needs the extra: pip install 'thence[openai]' ({error})", retryable=False
            ) from None
        check_client_options(client_options)
        self.name = name
        self._base_url = base_url
        self._key = key
        self._faults, self._classify = FAULTS, classify
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._client_options = client_options
        self._lock = threading.Lock()
        self._client: OpenAI | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, base_url={self._base_url!r})"

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        """Deltas, then one reply; blocks the calling thread."""
        answer, client = Accumulator(), self._sync_client()
        body = request_body(request, self.name)
        try:
            with client.chat.completions.create(model=self.name, messages=[], stream=True, extra_body=body) as chunks:
                for chunk in chunks:
                    yield from answer.feed(chunk)
        except self._faults as error:
            raise self._classify(error, self._key) from None
        yield answer.finish()

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Deltas, then one reply."""
        answer, client = Accumulator(), self._async_client()
        body = request_body(request, self.name)
        try:
            async with await client.chat.completions.create(
                model=self.name, messages=[], stream=True, extra_body=body
            ) as chunks:
                async for chunk in chunks:
                    for delta in answer.feed(chunk):
                        yield delta
        except self._faults as error:
            raise self._classify(error, self._key) from None
        yield answer.finish()

    def close(self) -> None:
        """Release the connections of the blocking face. A later use opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Release the connections of the running event loop, and those of the blocking face."""
        with self._lock:
            client = self._async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        self.close()

    def _sync_client(self) -> OpenAI:
        from openai import OpenAI

        with self._lock:
            if self._client is None:
                self._client = self._make(OpenAI)
            return self._client

    def _async_client(self) -> AsyncOpenAI:
        """The client of the running loop: an async connection pool works only on the loop that opened it."""
        from openai import AsyncOpenAI

        loop = asyncio.get_running_loop()
        with self._lock:
            for stale in [known for known in self._async_clients if known.is_closed()]:
                del self._async_clients[stale]
            if loop not in self._async_clients:
                self._async_clients[loop] = self._make(AsyncOpenAI)
            return self._async_clients[loop]

    def _make(self, client: Callable[..., C]) -> C:
        try:
            return client(**self._options())
        except self._faults as error:
            said = self._classify(error, self._key)
            raise ModelError("configuration", f"the SDK refused its options: {said}", retryable=False) from None

    def _options(self) -> dict[str, Any]:
        from openai import Timeout

        connect_s, read_s = self._timeouts_s
        return {
            **self._client_options,
            "base_url": self._base_url,
            "api_key": self._key,
            "max_retries": 0,
            "timeout": Timeout(connect=connect_s, read=read_s, write=read_s, pool=connect_s),
        }
