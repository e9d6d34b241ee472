"""What goes wrong between the OpenAI SDK and a server, as one error type (§5, §12).

This module loads the SDK: import it inside functions only.
"""

from __future__ import annotations

import email.utils
import inspect
import json
import math
import re
import time
from collections.abc import Mapping
from typing import cast

import httpx2
import openai

from ..errors import ModelError

FAULTS: tuple[type[Exception], ...] = (
    openai.OpenAIError,
    httpx2.HTTPError,
    httpx2.StreamError,
    httpx2.InvalidURL,
    OSError,
    # The SDK does not validate chunks: a wrong shape shows as any of these, broken JSON as a ValueError.
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
)
"""What may come out of the SDK, its transport and its decoder, our reading of a chunk included."""

_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_OUT_OF_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_OVERFLOW = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_TEXT = "maximum context length"
_MAX_MESSAGE = 500


_OURS = {
    "api_key": "is an argument of its own",
    "base_url": "is an argument of its own",
    "max_retries": "attempts belong to the turn: set circuit_breaker_threshold of the session",
    "timeout": "give connect_timeout_s and read_timeout_s",
}
_HEADER = re.compile(r"(illegal header (?:value|name)).*", re.IGNORECASE | re.DOTALL)


def check_client_options(options: Mapping[str, object]) -> None:
    """Raises TypeError for a keyword that the SDK's clients do not take, or that is not for them."""
    known = inspect.signature(openai.OpenAI).parameters
    for name in options:
        if name in _OURS:
            raise TypeError(f"client option '{name}': {_OURS[name]}")
        if name not in known:
            raise TypeError(f"unknown client option '{name}'; options: {', '.join(sorted(set(known) - set(_OURS)))}")


def classify(error: Exception, secret: str) -> ModelError:
    """The :class:`ModelError` for one of :data:`FAULTS`. ``secret`` is kept out of its message, whatever was said."""
    if isinstance(error, openai.APIStatusError):
        return _status_error(error, secret)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return ModelError("timeout", "the server was silent for too long", retryable=True)
    if isinstance(error, openai.APIConnectionError):
        text = _text(error.__cause__ or error, secret)
        if _HEADER.search(text):
            return ModelError("configuration", f"the request cannot be sent: {text}", retryable=False)
        return ModelError("connection", text, retryable=True)
    if isinstance(error, openai.APIError):
        return _stream_error(error, secret)
    if isinstance(error, openai.OpenAIError | httpx2.InvalidURL):
        return ModelError("configuration", _text(error, secret), retryable=False)
    if isinstance(error, UnicodeEncodeError):
        return ModelError("configuration", f"the request cannot be sent: {_text(error, secret)}", retryable=False)
    if isinstance(error, httpx2.HTTPError | httpx2.StreamError | OSError):
        return ModelError("stream_broken", f"the connection broke: {_text(error, secret)}", retryable=True)
    return ModelError("stream_broken", f"malformed piece of the answer: {_text(error, secret)}", retryable=True)


def _status_error(error: openai.APIStatusError, secret: str) -> ModelError:
    status, headers = error.status_code, error.response.headers
    kind = "context_overflow" if status == 400 and _is_overflow(error) else f"http_{status}"
    retryable = _is_retryable(status, error.code) and headers.get("x-should-retry") != "false"
    text = f"HTTP {status}: {_text(error, secret)}"
    return ModelError(kind, text, retryable=retryable, retry_after_s=retry_after_s(headers))


def _stream_error(error: openai.APIError, secret: str) -> ModelError:
    """An error object inside a stream that began with HTTP 200. Its code may be a status, as llama.cpp sends it."""
    status = int(error.code) if error.code and error.code.isdecimal() else 500
    kind = "context_overflow" if _is_overflow(error) else "stream_error"
    retryable = kind == "stream_error" and _is_retryable(status, error.code)
    return ModelError(kind, f"the server broke off: {_text(error, secret)}", retryable=retryable)


def _is_retryable(status: int, code: str | None) -> bool:
    return (status in _RETRYABLE_STATUS or status >= 500) and code not in _OUT_OF_QUOTA


def _is_overflow(error: openai.APIError) -> bool:
    return error.code in _OVERFLOW or error.type in _OVERFLOW or _OVERFLOW_TEXT in error.message.lower()


def _text(error: BaseException, secret: str) -> str:
    text = str(error)
    body = error.body if isinstance(error, openai.APIError) else None
    if isinstance(body, Mapping):
        message = cast("Mapping[str, object]", body).get("message")
        text = message if isinstance(message, str) and message else text
    # What a header cannot carry may be a secret of another header, as some providers have it.
    text = _HEADER.sub(r"\1 [hidden]", text or type(error).__name__)
    # A key of a few letters is a stand-in for servers that ask for none; replacing it would garble the text.
    if len(secret) > 7:
        for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]):
            text = text.replace(form, "[api key]")
    return text[:_MAX_MESSAGE]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait (``retry-after-ms``, or ``retry-after`` as seconds or a date), or None."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return max(0.0, seconds / 1000)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is None and value:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return None if seconds is None else max(0.0, seconds)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
