"""§5 cutting a tool's output (CASES J01, F04)."""

from __future__ import annotations

import hashlib
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.host.output import MAX_KEPT_BYTES, cut

MARKER = re.compile(
    r'\n\[\.\.\. output cut: (\d+) bytes in all; go on with read_output\(call="([^"]*)", offset=(\d+)\) \.\.\.\]\n'
)


@pytest.mark.parametrize("max_bytes", [1001, 1002, 1003, 1004])
def test_j01_emoji_are_never_halved(max_bytes: int) -> None:
    text = "😀" * 10_000
    left = cut(text, max_bytes, call_key="t1-r1-c0")
    assert len(left.text.encode()) <= max_bytes
    assert len(left.text.encode()) > max_bytes - 16
    assert not re.search("[\ud800-\udfff\ufffd?]", left.text)
    assert (left.total_bytes, left.truncated, left.sha256) == (40_000, True, hashlib.sha256(text.encode()).hexdigest())
    found = MARKER.search(left.text)
    assert found and found.group(1, 2) == ("40000", "t1-r1-c0")
    assert left.text[: found.start()].encode() == text.encode()[: int(found[3])]
    assert left.text[found.end() :].strip("😀") == ""


def test_what_fits_is_left_alone() -> None:
    assert cut("häh", 4).text == "häh"
    assert not cut("häh", 4).truncated
    assert cut("", 1) == cut(b"", 1)
    assert cut(b"h\xc3\xa4h", 4).text == "häh"


@pytest.mark.parametrize("max_bytes", range(1, 130))
def test_tiny_limits_hold(max_bytes: int) -> None:
    left = cut("é" * 500, max_bytes, call_key="t1-r1-c0")
    assert len(left.text.encode()) <= max_bytes
    assert left.truncated and "\ufffd" not in left.text
    if max_bytes > 2:
        assert left.text


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than zero"):
        cut("x", 0)


def test_head_and_tail_are_both_there() -> None:
    left = cut("begin" + "x" * 100_000 + "end", 32_768)
    assert left.text.startswith("begin") and left.text.endswith("end")
    assert 32_700 < len(left.text.encode()) <= 32_768


def test_bad_bytes_become_replacement_characters_and_count() -> None:
    raw = b"\xff" * 1000
    left = cut(raw, 2000, call_key="k")
    assert (left.total_bytes, left.sha256) == (1000, hashlib.sha256(raw).hexdigest())
    assert left.truncated and len(left.text.encode()) <= 2000
    found = MARKER.search(left.text)
    assert found and left.text[: found.start()] == "\ufffd" * int(found[3])
    assert cut(raw, 3000).text == "\ufffd" * 1000


def test_lone_surrogates_are_shown_as_question_marks() -> None:
    assert cut("a\ud800b", 10).text == "a?b"
    assert cut("\udc00" * 5000, 500).text.startswith("???")


def test_f04_too_large_to_keep_is_said_and_nothing_is_promised() -> None:
    text = "é" * (MAX_KEPT_BYTES // 2 + 1)
    left = cut(text, 1000, call_key="t1-r1-c0")
    assert not left.kept and left.sha256 in left.text and "read_output" not in left.text
    assert str(len(text) * 2) in left.text and "t1-r1-c0" in left.text
    assert len(left.text.encode()) <= 1000
    assert cut("x" * MAX_KEPT_BYTES, 1000).kept


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_f04_100_mb_is_not_copied(kind: str) -> None:
    output: str | bytes = "x" * 100_000_000 if kind == "text" else b"x" * 100_000_000
    tracemalloc.start()
    left = cut(output, 32_768, call_key="t1-r1-c0")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left.total_bytes == 100_000_000 and len(left.text) <= 32_768
    assert peak < 8_000_000


texts = st.text(st.characters() | st.sampled_from("aé€😀\ud800\udfff"), max_size=400)


@given(texts | st.binary(max_size=400) | texts.map(lambda text: text.encode("utf-8", "replace")), st.integers(1, 900))
def test_any_output_and_limit(output: str | bytes, max_bytes: int) -> None:
    left = cut(output, max_bytes, call_key="t1-r1-c0")
    raw = output if isinstance(output, bytes) else output.encode("utf-8", "replace")
    whole = raw.decode("utf-8", "replace")
    assert len(left.text.encode()) <= max_bytes
    assert (left.total_bytes, left.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())
    assert left.truncated == (left.text != whole)
    if found := MARKER.search(left.text):
        head, tail = left.text[: found.start()], left.text[found.end() :]
        assert whole.startswith(head)
        assert (raw[: int(found[3])]).decode("utf-8", "replace") == head
        assert tail == "" or whole.endswith(tail.lstrip("\ufffd"))
    elif left.truncated:
        assert whole.startswith(left.text)
