"""Canonical JSON (§4, §11): one text for one value."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thence.canonical import NotJson, check_text, dumps, dumps_checked, dumps_words, loads, sha256_hex

from ..kit import canonical


def deep(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"k": value}
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), (True, "true"), (False, "false"), (0, "0"), (-0.0, "-0.0"), (0.1, "0.1"), (1e300, "1e+300"),
        (2**70, "1180591620717411303424"), (-(2**70), "-1180591620717411303424"), (2**53 + 1, "9007199254740993"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'), ({"é": 1, "z": 2, "Z": 3}, '{"Z":3,"z":2,"é":1}'),
        ({"10": 1, "9": 2}, '{"10":1,"9":2}'), ([], "[]"), ((1, 2), "[1,2]"), ({}, "{}"), ("é😀", '"é😀"'),
        ("a\0b\n\"\\/", '"a\\u0000b\\n\\"\\\\/"'), ("\u2028\x7f", '"\u2028\x7f"'),
        ({"a": {"c": 1, "b": [{}]}}, '{"a":{"b":[{}],"c":1}}'),
        (1.0, "1.0"), (10**3990, "1" + "0" * 3990),
    ],
    ids=lambda v: str(v)[:20],
)  # fmt: skip
def test_the_text_of_a_value(value: Any, text: str):
    assert dumps(value) == text


def test_a_read_only_mapping_has_its_dicts_text_or_is_refused():
    """Nothing in between: callers hand their frozen settings and payloads in, and are told NotJson at worst."""
    try:
        text = dumps({"a": MappingProxyType({"c": 1, "b": 2})})
    except NotJson:
        return
    assert text == '{"a":{"b":2,"c":1}}'


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, -math.inf, [1, math.nan], {"a": {"b": math.inf}}, "\ud800", "a\udfffb", {"\ud83d": 1},
        ["\udc00"],
        {1: 2}, {None: 1}, {("a",): 1}, {True: 1}, b"x", {1, 2}, object(), 1j, ..., [object()], {"a": {1}},
        bytearray(b"x"),
        10**4400, -(10**4400), [10**5000],
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_has_no_form_is_refused(value: Any):
    with pytest.raises(NotJson):
        dumps(value)


def test_the_refusal_is_a_value_error_that_names_what_is_wrong():
    with pytest.raises(ValueError, match="set"):
        dumps({"a": {1}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="nan"):
        dumps(math.nan)


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_depth_200_is_accepted_and_201_refused_both_ways(kind: str):
    assert loads(dumps(deep(200, kind))) == deep(200, kind)
    with pytest.raises(NotJson):
        dumps(deep(201, kind))
    text = "[" * 200 + "]" * 200 if kind == "list" else '{"k":' * 199 + "{}" + "}" * 199
    assert loads(text) is not None
    longer = f"[{text}]" if kind == "list" else '{"k":' + text + "}"
    with pytest.raises(NotJson):
        loads(longer)


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_very_deep_values_are_refused_without_a_recursion_error(depth: int):
    with pytest.raises(NotJson):
        loads("[" * depth + "]" * depth)
    with pytest.raises(NotJson):
        dumps(deep(depth))


def test_cycles_are_refused():
    cycle: list[Any] = []
    cycle.append(cycle)
    loop: dict[str, Any] = {}
    loop["self"] = [loop]
    for value in (cycle, loop):
        with pytest.raises(NotJson):
            dumps(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "{]", "tru", "NaN", "[NaN]", "Infinity", "-Infinity", "{'a':1}", "{}{}", "01",
     '"\\ud800"', '{"a":"\\udfff"}', "[1,]", "\ufeff{}"],
)  # fmt: skip
def test_what_does_not_parse_is_refused(text: str):
    with pytest.raises(NotJson):
        loads(text)


@pytest.mark.parametrize("digits", [4300, 4301, 10_000, 1_000_000])
def test_integers_too_long_to_print_are_refused_quickly(digits: int):
    with pytest.raises(NotJson):
        loads("1" * digits)


def test_duplicate_keys_have_one_meaning():
    """The last one counts, as every JSON reader of Python's has it; and what is stored has each key once."""
    assert loads('{"a":1,"a":2}') == {"a": 2}
    assert dumps(loads('{"b":0,"a":1,"a":2}')) == '{"a":2,"b":0}'


def test_integers_come_back_exact_and_floats_as_floats():
    for value in (2**70, -(2**63) - 1, 2**53 + 1, 0, 10**300):
        assert loads(dumps(value)) == value and type(loads(dumps(value))) is int
    back = loads("-0.0")
    assert math.copysign(1, back) == -1 and loads("1.0") == 1.0 and type(loads("1.0")) is float
    assert type(loads("true")) is bool


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_it_round_trips_and_is_the_one_text(value: Any):
    text = dumps(value)
    assert loads(text) == value and dumps(loads(text)) == text
    assert text == canonical(value)
    text.encode("utf-8")


@given(st.dictionaries(TEXT, st.integers(), max_size=8), st.randoms())
def test_insertion_order_does_not_matter(value: dict[str, int], random: Any):
    items = list(value.items())
    random.shuffle(items)
    assert dumps(dict(items)) == dumps(value)


@given(st.text())
def test_check_text_refuses_exactly_what_utf8_cannot_hold(text: str):
    lone = any(0xD800 <= ord(c) <= 0xDFFF for c in text)
    if lone:
        with pytest.raises(ValueError, match="the-field"):
            check_text(text, "the-field")
    else:
        assert check_text(text, "the-field") == text


def test_the_hash_of_a_text():
    assert sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


words = st.recursive(
    st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(words)
def test_words_have_the_same_text_from_the_faster_encoder(value: Any):
    assert dumps_words(value) == dumps(value) == canonical(value)


def test_every_character_has_the_same_text_from_the_faster_encoder():
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert dumps_words({"text": every}) == dumps_checked({"text": every})


def test_a_lone_surrogate_among_words_fails_closed():
    with pytest.raises(UnicodeEncodeError):
        dumps_words(["\ud800"]).encode()
