"""Canonical JSON and stored texts where one character or one byte decides (§4, §11)."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from thence.canonical import NotJson, check_text, dumps, dumps_checked, loads, loads_stored
from thence.codec import decode, encode
from thence.errors import UnknownCriticalFact
from thence.facts import Answered, Asked, Call, Configured, Data, File, Payload, Returned, Text
from thence.rows import encode_row, read_payload, readable

KIB = 1024
SHA = "ab" * 32


def deep(levels: int) -> list[Any]:
    """Lists in lists, ``levels`` of them."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "$: nan is not JSON"), (-math.inf, "$: -inf is not JSON"),
    ([b"x"], "$[0]: a bytes has no JSON form"), ({"a": {1: 2}}, "$.a: key 1 is not a string"),
    ("\ud800", "$: holds a lone surrogate"), ({"\ud800": 1}, "$: holds a lone surrogate"),
    (10**4400, "$: an integer of more than 4000 digits"),
    ({"a": [0, {"b c": (1, {"d": math.inf})}]}, '$.a[1]["b c"][1].d: inf is not JSON'),
    ({"a": [1, 2], "\n": {"x": [10**4400]}}, '$["\\n"].x[0]: an integer of more than 4000 digits'),
    ({"a": {"é": {"\ud800": 1}}}, '$.a["\\u00e9"]: holds a lone surrogate'),
    ({"k" * 99: [None, [None, b""]]}, '$["' + "k" * 40 + '"][1][1]: a bytes has no JSON form'),
    (deep(201), "$" + "[0]" * 10 + "[...]" + "[0]" * 3 + ": nested deeper than 200"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=lambda v: type(v).__name__)
def test_a_refusal_says_what_is_wrong(value: Any, message: str):
    with pytest.raises(NotJson) as refused:
        dumps(value)
    assert str(refused.value) == message


def test_too_deep_is_told_with_the_limit():
    value: Any = 1
    for _ in range(201):
        value = [value]
    with pytest.raises(NotJson) as refused:
        dumps(value)
    assert str(refused.value).endswith(": nested deeper than 200")


@pytest.mark.parametrize("read", [loads, loads_stored])
def test_what_does_not_parse_is_told_with_its_position(read: Any):
    with pytest.raises(NotJson, match=r"line 2 column 7 \(char 8\)"):
        read('{\n "a": }')
    with pytest.raises(NotJson):
        read("[" * 100_000)
    for name in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(NotJson, match=f"^{name} is not JSON$"):
            read(f'{{"a":{name}}}')


def test_a_fault_of_ours_fails_closed():
    """A value that nobody checked is refused when it is written, never turned into something else."""
    for value in (math.nan, [math.inf]):
        with pytest.raises(ValueError, match="not JSON compliant"):
            dumps_checked(value)
    with pytest.raises(NotJson, match=r"^a set has no JSON form$"):
        dumps_checked({"a": {1}})  # type: ignore[dict-item]


@pytest.mark.parametrize("digits", [3997, 3999, 4000])
def test_an_integer_of_4000_digits_is_kept(digits: int):
    assert loads(dumps(10 ** (digits - 1))) == 10 ** (digits - 1)


def test_an_integer_of_4001_digits_is_refused():
    for value in (10**4000, -(10**4000)):
        with pytest.raises(NotJson):
            dumps(value)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude00", "é\udc00"])
def test_a_text_with_a_lone_surrogate_is_refused_by_the_name_of_its_field(text: str):
    with pytest.raises(ValueError, match=r"^'prompt' holds a lone surrogate: it cannot be stored as UTF-8$"):
        check_text(text, "prompt")


@pytest.mark.parametrize("text", ["", "a\0b", "é😀", "\ud7ff\ue000\uffff"])
def test_every_other_text_is_returned_as_it_is(text: str):
    assert check_text(text, "prompt") == text


def test_rows_of_our_own_are_sorted_compact_and_exact():
    assert encode_row({"b": [1, None], "a": "é"}) == '{"a":"é","b":[1,null]}'
    big = {"b": [1, None], "a": "é", "n": 2**70}
    assert encode_row(big) == '{"a":"é","b":[1,null],"n":1180591620717411303424}'
    assert read_payload(encode_row(big).encode()) == big
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_row({"n": 2**70, "x": math.nan})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": None, "b": x}, lambda x: {"a": [1, ({"b": [x]},)]}])
def test_a_row_never_says_null_for_what_is_no_json(bad: float, wrap: Callable[[float], object]):
    with pytest.raises(ValueError, match="NaN and infinity"):
        encode_row(wrap(bad))
    assert encode_row(wrap(1.5)).replace("null", "").count("1.5") == 1
    assert encode_row({"a": None, "b": "null", "c": [1.5, None, True]}) == '{"a":null,"b":"null","c":[1.5,null,true]}'


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":1}', {"a": 1}), (b"{}", {}), (b"[]", None), (b"1", None), (b"", None), (b'{"a"', None),
        (b'{"a":"\xff"}', None), (b"\xff", None), (b'{"a":1180591620717411303424}', {"a": 2**70}), (b"null", None),
        (b'{"a":NaN}', None),
    ],
)  # fmt: skip
def test_a_damaged_payload_is_none(data: bytes, value: dict[str, Any] | None):
    assert read_payload(data) == value
    assert readable(data) == ({"unreadable": data.decode(errors="replace")} if value is None else value)


@pytest.mark.parametrize(
    "number",
    [2**64 - 1, 2**64, 2**70, -(2**63), -(2**63) - 1, 10**18, 10**19 - 1, 10**29 + 1, 10**3999],
)
def test_integers_of_a_payload_are_exact(number: int):
    value = read_payload(b'{"a":[%d]}' % number)
    assert value is not None and value == {"a": [number]} and type(value["a"][0]) is int


@pytest.mark.parametrize("text", ["1e999", '"\\ud800"', "9" * 5000, "[" * 1500 + "]" * 1500])
def test_json_that_python_does_not_take_is_shown_as_its_text(text: str):
    data = f'{{"a":{text}}}'
    assert read_payload(data.encode()) is None
    assert readable(data.encode()) == {"unreadable": data}


def test_an_unknown_kind_is_named():
    with pytest.raises(UnknownCriticalFact) as unknown:
        decode("plan.made", "{}", lambda sha: b"")
    assert str(unknown.value) == "the log holds a 'plan.made' fact, which this version of thence does not know"


def test_a_text_of_16_mib_is_kept_and_one_byte_more_is_refused_by_name():
    most = 16 * KIB * KIB
    [kept] = encode(Asked((Text("x" * most),))).blobs.values()
    assert len(kept) == most
    with pytest.raises(ValueError, match=r"^'text' has 16777217 bytes; the limit is 16777216$"):
        encode(Asked((Text("x" * (most + 1)),)))


def object_of(size: int, letter: str) -> dict[str, Any]:
    """A JSON object whose canonical text has exactly ``size`` bytes."""
    width = len(letter.encode())
    count, rest = divmod(size - len('{"k":""}'), width)
    return {"k": letter * count + "x" * rest}


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
@pytest.mark.parametrize("size", [100, 16 * KIB, 16 * KIB + 1, 40 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1])
def test_a_value_stays_a_value_up_to_64_kib_of_utf8(size: int, letter: str):
    """Arguments and JSON parts are readable with json_extract as long as they are in the payload at all."""
    value = object_of(size, letter)
    assert len(dumps(value).encode()) == size
    big = size > 64 * KIB
    answered: Payload = Answered("", (Call("c", "x", value),))
    returned: Payload = Returned("k", True, (Data(value),))
    for payload, place, name in ((answered, "calls", "arguments"), (returned, "parts", "value")):
        encoded = encode(payload)
        [stored] = json.loads(encoded.text)[place]
        assert stored.get(name) == (None if big else value)
        assert len(encoded.blobs) == big and (f"{name}_sha256" in stored) is big
        assert decode(encoded.kind, encoded.text, encoded.blobs.__getitem__) == payload


FORMATS: list[tuple[Payload, str]] = [
    (
        Configured("m", "i", {"t": 0.5}, {"l": 1}, SHA, "cd" * 32),
        '{"instructions":"i","limits":{"l":1},"model":"m","output_sha256":"' + "cd" * 32
        + '","settings":{"t":0.5},"tools_sha256":"' + SHA + '"}',
    ),
    (
        Configured("m", "", {}, {}, SHA),
        f'{{"instructions":"","limits":{{}},"model":"m","settings":{{}},"tools_sha256":"{SHA}"}}',
    ),
    (
        Asked((Text("a"),), "steer", "q"),
        '{"origin":"steer","parts":[{"text":"a","type":"text"}],"request_id":"q"}',
    ),
    (
        Asked((File(SHA, 9, "image/png", "a.png"), File(SHA, 8))),
        f'{{"origin":"host","parts":[{{"media_type":"image/png","name":"a.png","sha256":"{SHA}","size":9,"type":"file"}},'
        f'{{"media_type":"application/octet-stream","sha256":"{SHA}","size":8,"type":"file"}}]}}',
    ),
    (
        Answered("", (Call("c", "x", None, "{", "why"),), None, "stop", "m", {"o": 1}),
        '{"calls":[{"id":"c","name":"x","problem":"why","raw":"{"}],"model":"m","opaque":{"o":1},"stop_reason":"stop",'
        '"text":"","usage":null}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "text"), FORMATS)
def test_the_format_is_this_for_ever(payload: Payload, text: str):
    encoded = encode(payload)
    assert encoded.text == text
    assert decode(encoded.kind, text, encoded.blobs.__getitem__) == payload


MODULES = ["chat", "codec", "facts", "inflight", "ledger", "limits", "loopguard", "reads", "state", "steps", "writes"]


@pytest.mark.parametrize("module", MODULES)
def test_values_are_frozen_and_have_no_room_for_more(module: str):
    loaded = importlib.import_module(f"thence.{module}")
    values = [v for v in vars(loaded).values() if isinstance(v, type) and dataclasses.is_dataclass(v)]
    values = [v for v in values if v.__module__ == loaded.__name__]
    assert values
    for value in values:
        assert value.__dataclass_params__.frozen and "__slots__" in vars(value), value  # type: ignore[attr-defined]
