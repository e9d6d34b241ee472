"""§4, §5 what a tool returned, as text for the log (CASES J04)."""

from __future__ import annotations

import uuid
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from thence import canonical
from thence.host.result import ToolOutput, encode_result


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    tags: set[str] = field(default_factory=set)


class Report(BaseModel):
    when: datetime
    who: set[str]
    secret: SecretStr | None = None


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "text", "is_json"),
    [
        ("hé", "hé", False),
        (None, "", False),
        ("", "", False),
        (b"h\xc3\xa9", "hé", False),
        (Colour.RED, "red", False),
        (True, "true", True),
        (2**70, "1180591620717411303424", True),
        (-0.0, "-0.0", True),
        (1.5, "1.5", True),
        (Level.HIGH, "3", True),
        (b"\xff", '{"base64":"/w=="}', True),
        (bytearray(b"\xff"), '{"base64":"/w=="}', True),
        (memoryview(b"ok"), "ok", False),
        (datetime(2026, 11, 30, 1, 2, 3, 4, UTC), '"2026-11-30T01:02:03.000004+00:00"', True),
        (date(2026, 11, 30), '"2026-11-30"', True),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"', True),
        (Decimal("1.10"), '"1.10"', True),
        (Decimal("NaN"), '"NaN"', True),
        (Path("/a/b"), '"/a/b"', True),
        ({3, 1, 10}, "[1,3,10]", True),
        (frozenset({"b", "a", 1, None}), '[1,"a","b",null]', True),
        ((1, "a"), '[1,"a"]', True),
        (Pair(1, 2), "[1,2]", True),
        ({"b": 1, "a": [None]}, '{"a":[null],"b":1}', True),
        ({1: "x", None: 2, True + 1: 3, date(2026, 1, 1): 4}, '{"1":"x","2":3,"2026-01-01":4,"null":2}', True),
        (MappingProxyType({"a": b"x"}), '{"a":"x"}', True),
        (Point(1, {"z", "y"}), '{"tags":["y","z"],"x":1}', True),
        ([Colour.RED, Point(2)], '["red",{"tags":[],"x":2}]', True),
        (
            Report(when=datetime(2026, 1, 1), who={"b", "a"}),
            '{"secret":null,"when":"2026-01-01T00:00:00","who":["a","b"]}',
            True,
        ),
    ],
)
def test_j04_results_are_encoded_without_loss(value: object, text: str, is_json: bool) -> None:
    encoded = encode_result(value)
    assert (encoded.text, encoded.ok, encoded.is_json) == (text, True, is_json)
    if is_json:
        assert canonical.dumps(canonical.loads(encoded.text)) == encoded.text


def test_j04_big_integers_come_back_equal() -> None:
    assert canonical.loads(encode_result({"n": 2**70}).text) == {"n": 2**70}


def test_a_model_with_types_of_its_own_is_dumped_by_itself() -> None:
    encoded = encode_result(Report(when=datetime(2026, 1, 1), who=set(), secret=SecretStr("hush")))
    assert encoded.ok and "hush" not in encoded.text and '"secret":"**********"' in encoded.text


def test_a_model_is_dumped_the_second_time_as_deep_as_the_first() -> None:
    assert encode_result(nested(100, Loop(more=nested(60, SecretStr("hush"))))).ok


class Evil:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("\ud800")


@dataclass
class Broken:
    x: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise LookupError("no x")
        return object.__getattribute__(self, name)


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def cyclic() -> Any:
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    return loop


class Loop(BaseModel):
    more: Any = None


def cyclic_model() -> Any:
    loop = Loop()
    loop.more = [loop]
    return loop


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (float("nan"), "float nan"),
        ({"a": [float("inf")]}, "$.a[0]: the float inf"),
        (object(), "object has no JSON form"),
        ([1, {"k": 1j}], "$[1].k: a complex has no JSON form"),
        (cyclic(), "a dict that contains itself"),
        (cyclic_model(), "Loop"),
        (nested(201), "nested deeper than 200"),
        (nested(5000), "nested deeper than 200"),
        (10**5000, "more than 4000 digits"),
        ({10**5000: 1}, "digits"),
        ("\ud83d", "lone surrogate"),
        ({"\ud83d": 1}, "lone surrogate"),
        ([Path("\udcff")], "lone surrogate"),
        ({1: 1, "1": 2}, "two keys have the JSON text '1'"),
        ({(1, 2): 1}, "a tuple cannot be a key"),
        (Loop(more=float("nan")), "float nan"),
        (Point, "type has no JSON form"),
        (Evil(), "Evil raised RuntimeError"),
        (Broken(), "Broken raised LookupError"),
        (ToolOutput("x", metadata={"a": object()}), "object has no JSON form"),
        (ToolOutput("x", metadata=3), "raised TypeError"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_j04_what_has_no_form_is_a_failed_result(value: object, names: str) -> None:
    encoded = encode_result(value)
    assert not encoded.ok and not encoded.is_json
    assert encoded.text.startswith("Error: the tool ran, but its result cannot be recorded: ")
    assert names in encoded.text
    encoded.text.encode()
    assert len(encoded.text) < 500


def test_depth_200_is_still_a_result() -> None:
    assert encode_result(nested(200)).ok
    assert encode_result(nested(198, Point(1))).ok
    assert not encode_result(nested(199, Point(1))).ok
    assert encode_result(nested(198, Loop(more=[1]))).ok
    assert not encode_result(nested(199, Loop(more=[1]))).ok


def test_a_tool_output_says_more() -> None:
    encoded = encode_result(ToolOutput({"n": 1}, ok=False, changed_paths=["a", Path("b/c")], metadata={"k": {2, 1}}))
    assert (encoded.text, encoded.ok, encoded.is_json) == ('{"n":1}', False, True)
    assert encoded.changed_paths == ("a", "b/c")
    assert encoded.metadata == {"k": [1, 2]}
    with pytest.raises(TypeError, match="several paths"):
        ToolOutput("x", changed_paths="a.txt")


def test_changed_paths_survive_a_result_that_cannot_be_recorded() -> None:
    encoded = encode_result(ToolOutput(object(), changed_paths=["a", "b\udcff"]))
    assert not encoded.ok and encoded.changed_paths == ("a", "b\\udcff")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.datetimes(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner) | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(plain)
def test_any_value_gives_text_that_can_be_stored(value: object) -> None:
    encoded = encode_result(value)
    encoded.text.encode()
    if encoded.is_json:
        assert canonical.dumps(canonical.loads(encoded.text)) == encoded.text
    assert encode_result(value) == encoded
