"""What may be given to an :class:`~thence.OpenAIModel`, checked where it is made and without the SDK (§12)."""

from __future__ import annotations

import math
import os
from urllib.parse import urlsplit

from ..canonical import check_text
from ..errors import ModelError


def check_arguments(name: object, base_url: object, api_key: object, **timeouts_s: object) -> None:
    """Raises TypeError or ValueError for a refused argument, by name. The key is never quoted."""
    if not isinstance(name, str):
        raise TypeError(f"'name' must be a string, not {type(name).__name__}")
    if not name.strip():
        raise ValueError("'name' must not be empty or whitespace")
    check_text(name, "name")
    for field, seconds in timeouts_s.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"'{field}' must be a number of seconds, not {type(seconds).__name__}")
        if not (seconds > 0 and math.isfinite(seconds)):
            raise ValueError(f"'{field}' must be finite and greater than zero")
    if api_key is not None and not isinstance(api_key, str):
        raise TypeError(f"'api_key' must be a string or None, not {type(api_key).__name__}")
    if base_url is not None and not isinstance(base_url, str):
        raise TypeError(f"'base_url' must be a string or None, not {type(base_url).__name__}")
    url = os.environ.get("OPENAI_BASE_URL") if base_url is None else base_url
    if url is not None and not _is_http(url):
        where = "OPENAI_BASE_URL of the environment" if base_url is None else "'base_url'"
        raise ValueError(f"{where} must be an address like 'https://host/v1'")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and _is_plain(url)
    except ValueError:  # a port or an IPv6 address that is none
        return False


def _is_plain(text: str) -> bool:
    return text.isprintable() and " " not in text


def find_key(api_key: str | None) -> str:
    """The key to send: what was given, else what the environment holds, without the white space around it.

    Raises:
        ModelError: ``configuration``: there is none, or no HTTP header can carry it. It is not quoted.
    """
    for where, value in (("api_key", api_key), ("OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY"))):
        key = (value or "").strip()
        if key and not (key.isascii() and _is_plain(key)):
            what = "has white space or characters other than printable ASCII in it; no HTTP header can carry that"
            raise ModelError("configuration", f"the API key in {where} {what}", retryable=False)
        if key:
            return key
    raise ModelError(
        "configuration",
        "no API key: give api_key=... or set OPENAI_API_KEY (any text, for a server that asks for none)",
        retryable=False,
    )
