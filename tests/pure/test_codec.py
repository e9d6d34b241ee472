"""Facts as stored text and back, and the hash chain (§4)."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.chat import Usage
from thence.codec import chain, decode, encode
from thence.errors import UnknownCriticalFact
from thence.facts import (
    GENESIS,
    Answered,
    Asked,
    Call,
    Configured,
    Data,
    Denied,
    Ended,
    File,
    Note,
    Payload,
    Reported,
    Returned,
    Text,
    WaitAnswered,
    WaitOpened,
    Waived,
)

from ..kit import canonical
from .logs import legal_logs

KIB = 1024
SHA = "ab" * 32

ROUND_TRIPS: dict[str, Payload] = {
    "configured": Configured("m", "be brief", {"temperature": 0.5}, {"max_tool_rounds": 2**60}, SHA, "cd" * 32),
    "configured, no output": Configured("", "", {}, {}, SHA),
    "configured by a hook": Configured("small", "", {}, {}, SHA, None, "large"),
    "asked": Asked((Text("hi"), Data({"n": [1, None]}), File(SHA, 10, "image/png", "a.png"))),
    "asked by a steer": Asked((Text("é😀\0"),), "steer", "q1"),
    "asked by a continuation": Asked((Text("Continue."),), "continuation"),
    "answered": Answered(
        "text", (Call("c0", "x", {"a": 2**70, "b": -0.0}), Call("", "y", {})), Usage(1, 2, 3, 4, 5), "tool_calls", "m"
    ),
    "answered with broken arguments": Answered("", (Call("c0", "x", None, '{"a', "arguments are not JSON"),)),
    "answered with opaque data": Answered("t", (), None, "stop", "m", {"sig": ["x", {"k": 1}]}),
    "returned": Returned("t1-r1-c0", True, (Text("out"),), {"effect": "read"}),
    "returned nothing": Returned("t1-r1-c0", False, ()),
    "returned a file": Returned("k", True, (File(SHA, 1),)),
    "denied": Denied("t1-r1-c0", "guard", "tokens", "cap"),
    "denied by the cap": Denied("t1-r1-c0", "round_cap", "tool_rounds", "why"),
    "reported": Reported(SHA, True, {"commands": [{"command": ["a", "é"], "exit_code": 0}]}),
    "reported nothing": Reported(SHA, False),
    "waived": Waived(SHA, "looked at it"),
    "big report": Reported(SHA, False, {"output": "x" * (70 * KIB)}),
    "big waiver": Waived(SHA, "é" * (40 * KIB)),
    "wait opened": WaitOpened(
        "t1-r1-c0-w1", "confirmation", "t1-r1-c0", SHA, 2**53 + 1, {"question": "é?", "n": [None, 2**70]}
    ),
    "wait opened for ever": WaitOpened("t1-r2-w2", "budget_hold", "t1-r2", SHA),
    "wait opened until the beginning": WaitOpened("w", "child", "k", SHA, 0),
    "wait answered": WaitAnswered("w", {"approved": False, "reason": "no"}, "ann"),
    "wait answered with nothing": WaitAnswered("w", None),
    "wait answered by nobody": WaitAnswered("w", None, None, True),
    "wait answered by no name": WaitAnswered("w", "", ""),
    "ended": Ended("completed"),
    "ended badly": Ended("failed", "LLM_ERROR", "why"),
    "note": Note("note.future", {"x": [1, 2]}),
    "big texts": Asked((Text("x" * (64 * KIB + 1)), Text("y" * (64 * KIB)), Data(["z" * (70 * KIB)]))),
    "big answer": Answered(
        "é" * (40 * KIB), (Call("c", "x", {"t": "w" * (70 * KIB)}), Call("d", "x", None, "{" * (70 * KIB), "bad"))
    ),
    "big instructions": Configured("m", "i" * (65 * KIB), {}, {}, SHA),
    "big result": Returned("k", True, (Text("o" * (200 * KIB)),)),
}  # fmt: skip

KIND = {
    Configured: "run.configured", Asked: "user.message", Answered: "model.turn", Returned: "tool.result",
    Denied: "budget.denied", WaitOpened: "wait.opened", WaitAnswered: "wait.answered", Ended: "turn.ended",
    Reported: "verification.reported", Waived: "gate.waived",
}  # fmt: skip


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_every_kind_comes_back_equal(name: str):
    payload = ROUND_TRIPS[name]
    encoded = encode(payload)
    assert encoded.kind == (payload.kind if isinstance(payload, Note) else KIND[type(payload)])
    assert decode(encoded.kind, encoded.text, encoded.blobs.__getitem__) == payload
    again = encode(decode(encoded.kind, encoded.text, encoded.blobs.__getitem__))
    assert (again.kind, again.text, dict(again.blobs)) == (encoded.kind, encoded.text, dict(encoded.blobs))


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_the_stored_text_is_canonical_and_holds_no_text_over_64_kib(name: str):
    encoded = encode(ROUND_TRIPS[name])
    assert encoded.text == canonical(json.loads(encoded.text))
    for sha, data in encoded.blobs.items():
        assert sha == hashlib.sha256(data).hexdigest() and sha in encoded.text and len(data) > 64 * KIB
    assert bool(encoded.blobs) is name.startswith("big")
    assert len(encoded.text.encode()) < 70 * KIB


@pytest.mark.parametrize(
    ("size", "blob"), [(64 * KIB - 1, False), (64 * KIB, False), (64 * KIB + 1, True)], ids=["under", "at", "over"]
)
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_the_border_is_64_kib_of_utf8(size: int, blob: bool, letter: str):
    width = len(letter.encode())
    text = letter * (size // width) + "x" * (size % width)
    assert len(text.encode()) == size
    assert bool(encode(Asked((Text(text),))).blobs) is blob


def test_the_same_big_text_is_one_blob():
    big = "x" * (70 * KIB)
    assert len(encode(Asked((Text(big), Text(big)))).blobs) == 1


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (Asked((Text("hi"),)), '{"origin":"host","parts":[{"text":"hi","type":"text"}]}'),
        (Ended("completed"), '{"status":"completed"}'),
        (Ended("failed", "C", "m"), '{"code":"C","message":"m","status":"failed"}'),
        (Reported("d", True, [1]), '{"digest":"d","passed":true,"report":[1]}'),
        (Reported("d", False), '{"digest":"d","passed":false,"report":null}'),
        (Waived("d", "why"), '{"digest":"d","reason":"why"}'),
        (Denied("k", "guard", "r", "w"), '{"call_key":"k","reason":"w","resource":"r","scope":"guard"}'),
        (WaitOpened("w", "question", "s", "d"), '{"digest":"d","kind":"question","subject":"s","wait_id":"w"}'),
        (
            WaitOpened("w", "deferred", "s", "d", 9, {"question": "q"}),
            '{"about":{"question":"q"},"deadline_ms":9,"digest":"d","kind":"deferred","subject":"s","wait_id":"w"}',
        ),
        (WaitAnswered("w", True), '{"value":true,"wait_id":"w"}'),
        (WaitAnswered("w", None, "ann", True), '{"by":"ann","expired":true,"value":null,"wait_id":"w"}'),
        (
            Returned("k", True, (Data(3),), {"effect": "read"}),
            '{"call_key":"k","metadata":{"effect":"read"},"ok":true,"parts":[{"type":"json","value":3}]}',
        ),
        (
            Answered("t", (Call("c0", "add", {"b": 2, "a": 1}),), Usage(1, 2, 3), "tool_calls", "m"),
            '{"calls":[{"arguments":{"a":1,"b":2},"id":"c0","name":"add"}],"model":"m","stop_reason":"tool_calls","text":"t",'
            '"usage":{"cache_read_tokens":0,"cache_write_tokens":0,"completion_tokens":2,"prompt_tokens":1,"total_tokens":3}}',
        ),
    ],
)
def test_the_format_is_this_for_ever(payload: Payload, text: str):
    assert encode(payload).text == text


@pytest.mark.parametrize("number", [2**70, -(2**70), 1e16, 1e-7, 0.1, 5])
def test_numbers_in_a_result_keep_the_text_of_the_standard_library(number: int | float):
    """Results of words are encoded by the faster encoder, which writes 1e16 and 2**70 otherwise."""
    for result in (
        Returned("t1-r1-c0", True, (Text("out"),), {"tool": {"n": number}}),
        Returned("t1-r1-c0", True, (Text("out"),), {"n": number}),
        Returned("t1-r1-c0", True, (Text("out"),), {"tool": [number]}),
        Returned("t1-r1-c0", True, (Data({"n": number}),), {"effect": "read"}),
        Returned("t1-r1-c0", True, (Text("out"), Data(number)), {"effect": "read"}),
    ):
        text = encode(result).text
        assert text == canonical(json.loads(text))
        assert json.dumps(number) in text


def test_a_text_over_16_mib_is_refused_with_both_sizes():
    with pytest.raises(ValueError, match=r"16777217.*16777216"):
        encode(Asked((Text("x" * (16 * KIB * KIB + 1)),)))


def test_an_unknown_critical_kind_is_an_error_and_an_ancillary_one_is_kept():
    with pytest.raises(UnknownCriticalFact, match=r"plan\.made"):
        decode("plan.made", "{}", lambda sha: b"")
    assert decode("note.later", '{"a":1}', lambda sha: b"") == Note("note.later", {"a": 1})


@given(legal_logs())
def test_every_legal_log_round_trips(log):
    for fact in log:
        encoded = encode(fact.payload)
        assert decode(encoded.kind, encoded.text, encoded.blobs.__getitem__) == fact.payload


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_round_trips(text: str):
    payload = Answered(text, (Call(text, "x", {text: text}),), None, "stop", text)
    encoded = encode(payload)
    assert decode(encoded.kind, encoded.text, encoded.blobs.__getitem__) == payload


def test_equal_values_have_equal_texts_whatever_their_order():
    one = Returned("k", True, (Data({"b": 1, "a": {"d": 1, "c": 2}}),), {"z": 1, "y": 2})
    two = Returned("k", True, (Data({"a": {"c": 2, "d": 1}, "b": 1}),), {"y": 2, "z": 1})
    assert encode(one).text == encode(two).text


# ------------------------------------------------------------------ the chain

TEXT = '{"origin":"host","parts":[{"text":"hi","type":"text"}]}'
# sha256 of 32 zero bytes and this line, made with the sha256sum program:
LINE = rb'[1,"user.message","t1-user",null,"{\"origin\":\"host\",\"parts\":[{\"text\":\"hi\",\"type\":\"text\"}]}"]'
FIRST = "97987ede6b590f5a08b62374c6f73d8cc65bd2975a6a556bca723d446479f23c"
# sha256 of the bytes of FIRST and of: [2,"turn.ended","t1-end","end:t1-end","{\"status\":\"completed\"}"]
SECOND = "5470a8105880bd51b59535992f6c98b99c600817d3739e7eb9d04c82ee1cd91f"


def test_the_chain_vector():
    """SHA-256 of the previous hash and the canonical JSON of [seq, kind, key, cause, text]: checked from outside."""
    assert bytes(32) == GENESIS
    first = chain(GENESIS, 1, "user.message", "t1-user", None, TEXT)
    assert first.hex() == FIRST == hashlib.sha256(bytes(32) + LINE).hexdigest()
    assert chain(first, 2, "turn.ended", "t1-end", "end:t1-end", '{"status":"completed"}').hex() == SECOND


# Every character that an encoder might treat in a way of its own, and any others.
ODD = [*map(chr, range(161)), "\u2028", "\u2029", "\ufeff", "\uffff", "😀", "\U0010ffff"]
ANY_TEXT = st.text(st.sampled_from(ODD)) | st.text()


@given(st.integers(1, 2**32), ANY_TEXT, ANY_TEXT, st.none() | ANY_TEXT, ANY_TEXT)
def test_the_chain_hashes_canonical_json(seq: int, kind: str, key: str, cause: str | None, text: str):
    whole = json.dumps([seq, kind, key, cause, text], ensure_ascii=False, separators=(",", ":")).encode()
    assert chain(bytes(32), seq, kind, key, cause, text) == hashlib.sha256(bytes(32) + whole).digest()


def test_the_chain_knows_each_character_by_its_json():
    every = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    whole = json.dumps([1, "k", "key", None, every], ensure_ascii=False, separators=(",", ":")).encode()
    assert chain(b"", 1, "k", "key", None, every) == hashlib.sha256(whole).digest()


def test_what_cannot_be_encoded_is_not_hashed():
    with pytest.raises(ValueError, match="surrogates not allowed"):
        chain(bytes(32), 1, "k", "key", None, "\ud800")


@pytest.mark.parametrize(
    "other",
    [
        (bytes(31) + b"\1", 1, "k", "key", None, "{}"), (bytes(32), 2, "k", "key", None, "{}"),
        (bytes(32), 1, "l", "key", None, "{}"), (bytes(32), 1, "k", "yek", None, "{}"),
        (bytes(32), 1, "k", "key", "null", "{}"), (bytes(32), 1, "k", "key", "", "{}"),
        (bytes(32), 1, "k", "key", None, "{ }"),
        (bytes(32), 1, "k", 'key","x', None, "{}"),
    ],
)  # fmt: skip
def test_everything_it_covers_changes_it(other: tuple):
    assert chain(*other) != chain(bytes(32), 1, "k", "key", None, "{}")
