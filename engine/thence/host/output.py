"""Cutting a tool's output to what a model may see (§5). Pure: text in, text out.

A cut text is ``head + marker + tail``, never more than the given number of UTF-8 bytes, cut at code point borders
only. The marker takes part in the count; where it does not fit, a bare head is left and :attr:`Cut.truncated` says so.
"""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Longest output that a caller keeps as a blob; of a longer one only size and SHA-256 are recorded (§5)."""

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of an output.

    ``total_bytes`` and ``sha256`` (lower-case hexadecimal) are of the whole output in UTF-8, or of the raw bytes given.
    """

    text: str
    total_bytes: int
    truncated: bool
    sha256: str

    @property
    def kept(self) -> bool:
        """The whole output is small enough to be kept as a blob."""
        return self.total_bytes <= MAX_KEPT_BYTES


def cut(output: str | bytes, max_bytes: int, *, call_key: str = "") -> Cut:
    """Return at most ``max_bytes`` UTF-8 bytes of ``output``.

    Args:
        output: text, or bytes that are read as UTF-8 (bad ones become U+FFFD; lone surrogates in text become ``?``).
        max_bytes: at least 1.
        call_key: named by the marker, with the byte offset of ``output`` at which ``read_output`` would go on.

    Raises:
        ValueError: ``max_bytes`` is below 1.
    """
    if max_bytes < 1:
        raise ValueError("max_bytes must be greater than zero")
    total, digest = measure(output)
    if total <= max_bytes:
        # Bad bytes grow when they are replaced: short enough raw is not yet short enough as text.
        text = output.decode("utf-8", "replace") if isinstance(output, bytes) else _clean(output)
        if len(text.encode()) <= max_bytes:
            return Cut(text, total, False, digest)
    room = max_bytes - len(_marker(total, total, call_key, digest).encode())
    if room < 0:
        head, _ = _head(_start(output, max_bytes), max_bytes)
        return Cut(head, total, True, digest)
    head, used = _head(_start(output, room - room // 2), room - room // 2)
    tail = _tail(_end(output, room // 2), room // 2)
    return Cut(head + _marker(total, used, call_key, digest) + tail, total, True, digest)


def measure(output: str | bytes) -> tuple[int, str]:
    """Return (bytes in UTF-8, SHA-256 in hexadecimal) without a second copy of a large ``output``."""
    if isinstance(output, bytes):
        return len(output), hashlib.sha256(output).hexdigest()
    digest = hashlib.sha256()
    total = 0
    for start in range(0, len(output), _PIECE):
        piece = output[start : start + _PIECE].encode("utf-8", "replace")
        total += len(piece)
        digest.update(piece)
    return total, digest.hexdigest()


def _marker(total: int, offset: int, call_key: str, digest: str) -> str:
    if total > MAX_KEPT_BYTES:
        # Nothing to read on from: promising read_output would send the model after bytes that are gone.
        return f"\n[... output of {call_key} cut: {total} bytes, too many to keep; sha256 {digest} ...]\n"
    return f'\n[... output cut: {total} bytes in all; go on with read_output(call="{call_key}", offset={offset}) ...]\n'


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _start(output: str | bytes, size: int) -> bytes:
    start = output[:size]
    return start if isinstance(start, bytes) else start.encode("utf-8", "replace")


def _end(output: str | bytes, size: int) -> bytes:
    end = output[max(0, len(output) - size) :]
    return end if isinstance(end, bytes) else end.encode("utf-8", "replace")


def _head(raw: bytes, room: int) -> tuple[str, int]:
    """The longest start of ``raw`` that fits as text, and how many raw bytes it stands for."""
    low, high = 0, min(len(raw), room)
    text, used = _decoded(raw[:high])
    if len(text.encode()) <= room:
        return text, used
    # Decoding a longer start only ever appends text, so the border can be searched by halves.
    while low < high:
        middle = (low + high + 1) // 2
        if len(_decoded(raw[:middle])[0].encode()) <= room:
            low = middle
        else:
            high = middle - 1
    return _decoded(raw[:low])


def _decoded(raw: bytes) -> tuple[str, int]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(raw)
    return text, len(raw) - len(decoder.getstate()[0])


def _tail(raw: bytes, room: int) -> str:
    raw = raw[len(raw) - min(len(raw), room) :]
    encoded = _skip_continuation(raw).decode("utf-8", "replace").encode()
    return _skip_continuation(encoded[len(encoded) - min(len(encoded), room) :]).decode()


def _skip_continuation(raw: bytes) -> bytes:
    start = 0
    while start < min(3, len(raw)) and raw[start] & 0xC0 == 0x80:
        start += 1
    return raw[start:]
