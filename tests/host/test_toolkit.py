"""§12 tools as values: description, argument check, context."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field, field_validator

from thence import canonical
from thence.errors import ToolError
from thence.host.context import ToolCancelled, ToolContext
from thence.host.toolkit import BadArguments, Tool, collect, describe, tool

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


def context(**more: Any) -> ToolContext:
    given: dict[str, Any] = {
        "session_id": "s1",
        "run_id": "r1",
        "call_key": "t1-r1-c0",
        "idempotency_key": "ab" * 32,
        "workspace": Path("/w"),
    }
    return ToolContext(**{**given, **more})


def shown(described: Tool) -> list[str]:
    properties: Any = described.spec.parameters["properties"]
    return list(properties)


class Place(BaseModel):
    """Where it is."""

    city: str
    title: str = "x"


@tool(effect="read", timeout_ms=1500)
def weather(
    ctx: ToolContext, place: Place, unit: Literal["C", "F"] = "C", days: Annotated[int, Field(ge=1)] = 3
) -> str:
    """Tell the weather.

    Second paragraph.

    Args:
        place: the place
            in question
        unit (str): the unit

    Returns:
        a text
    """
    return f"{ctx.call_key} {place.city} {unit} {days}"


def test_description_and_schema_come_from_the_function() -> None:
    described = describe(weather)
    assert (described.name, described.effect, described.repeatable, described.timeout_ms) == (
        "weather",
        "read",
        False,
        1500,
    )
    assert described.description == "Tell the weather.\n\nSecond paragraph."
    assert described.wants_context and not described.is_async
    assert described.spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["place"],
        "properties": {
            "place": {"$ref": "#/$defs/Place", "description": "the place in question"},
            "unit": {"enum": ["C", "F"], "type": "string", "default": "C", "description": "the unit"},
            "days": {"minimum": 1, "type": "integer", "default": 3},
        },
        "$defs": {
            "Place": {
                "type": "object",
                "description": "Where it is.",
                "required": ["city"],
                "properties": {"city": {"type": "string"}, "title": {"type": "string", "default": "x"}},
            }
        },
    }
    defs: Any = described.spec.parameters["$defs"]
    assert "title" in defs["Place"]["properties"]


def test_bound_arguments_are_typed_and_complete() -> None:
    described = describe(weather)
    bound = described.bind({"place": {"city": "Ulm"}})
    assert bound == {"place": Place(city="Ulm"), "unit": "C", "days": 3}
    assert described.call(bound, context()) == "t1-r1-c0 Ulm C 3"
    with pytest.raises(TypeError, match="needs a ToolContext"):
        described.call(bound)


def test_bad_arguments_are_one_message_without_urls() -> None:
    with pytest.raises(BadArguments) as caught:
        describe(weather).bind({"unit": "K", "days": 0, "citty": 1, "ctx": {}})
    text = str(caught.value)
    assert text.startswith("bad arguments for 'weather': ")
    assert "'place' is missing" in text
    assert "'citty' is not a parameter (there are: place, unit, days)" in text
    assert "'ctx' is not a parameter" in text
    assert "'days': Input should be greater than or equal to 1" in text
    assert "'unit': Input should be 'C' or 'F'" in text
    assert "http" not in text and "\n" not in text
    with pytest.raises(BadArguments, match=r"'place\.city': Input should be a valid string"):
        describe(weather).bind({"place": {"city": 3}})
    with pytest.raises(BadArguments, match="must be a JSON object, not list"):
        describe(weather).bind([])  # type: ignore[arg-type]


def test_many_problems_are_cut() -> None:
    with pytest.raises(BadArguments, match=r"and 92 more$"):
        describe(weather).bind({"place": {"city": "x"}, **{f"x{i}": 1 for i in range(100)}})


def test_our_field_names_are_not_arguments() -> None:
    def one(schema: str, _x: int, copy: int = 1, json: int = 2, model_config: int = 3) -> str:
        return f"{schema}{_x}{copy}{json}{model_config}"

    described = describe(one)
    assert shown(described) == ["schema", "_x", "copy", "json", "model_config"]
    assert described.call(described.bind({"schema": "s", "_x": 0})) == "s0123"
    with pytest.raises(BadArguments, match="'f0' is not a parameter"):
        described.bind({"f0": "s", "schema": "s", "_x": 0})


def test_a_validator_of_the_host_that_raises_is_a_bad_argument() -> None:
    class Odd(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, x: int) -> int:
            raise KeyError(x)

    def take(odd: Odd) -> None: ...

    take.__annotations__["odd"] = Odd
    with pytest.raises(BadArguments, match="KeyError"):
        describe(take).bind({"odd": {"x": 1}})


def test_mutable_defaults_are_not_shared() -> None:
    def add(item: int, to: list[int] = []) -> list[int]:  # noqa: B006
        to.append(item)
        return to

    described = describe(add)
    assert described.call(described.bind({"item": 1})) == [1]
    assert described.call(described.bind({"item": 2})) == [2]


class Service:
    """A service."""

    def __init__(self, base: int) -> None:
        self.base = base

    @tool(effect="once", name="add-to")
    def add(self, x: int) -> int:
        """Add."""
        return self.base + x

    @staticmethod
    @tool(effect="read")
    def still(x: int) -> int:
        return x

    def __call__(self, x: int) -> int:
        return self.base * x


class AsyncService:
    @tool(effect="read")
    async def __call__(self, x: int) -> int:
        """Doubles."""
        return 2 * x


async def later(x: int) -> int:
    return x


@functools.cache
def cached(x: int) -> int:
    """Cached."""
    return x


def fetch(url: str, key: str, retries: int = 1) -> str:
    """Fetch."""
    return f"{url} {key} {retries}"


def test_every_kind_of_callable() -> None:
    service = Service(10)
    method = describe(service.add)
    assert (method.name, method.effect, method.description) == ("add-to", "once", "Add.")
    assert method.call(method.bind({"x": 5})) == 15
    instance = describe(service)
    assert (instance.name, instance.description) == ("Service", "A service.")
    assert instance.call({"x": 3}) == 30
    assert describe(Service.still).effect == "read"
    double = describe(AsyncService())
    assert (double.is_async, double.effect, double.description) == (True, "read", "Doubles.")
    assert asyncio.run(double.call({"x": 3})) == 6  # type: ignore[arg-type]
    assert describe(later).is_async and describe(functools.partial(later)).is_async
    assert describe(cached).description == "Cached." and describe(cached).call({"x": 1}) == 1
    assert describe(describe(later)).name == "later"


def test_a_partial_hides_what_it_fixes() -> None:
    described = describe(functools.partial(fetch, key="SECRET"))
    assert (described.name, described.description) == ("fetch", "Fetch.")
    assert "SECRET" not in json.dumps(described.spec.parameters)
    assert shown(described) == ["url", "retries"]
    assert described.call(described.bind({"url": "u"})) == "u SECRET 1"
    with pytest.raises(BadArguments):
        described.bind({"url": "u", "key": "mine"})
    assert describe(functools.partial(weather, place=Place(city="x"))).effect == "read"


def test_tool_works_bare_and_returns_the_function() -> None:
    @tool
    def plain(x: int) -> int:
        return x

    assert plain(3) == 3
    described = describe(plain)
    assert (described.effect, described.repeatable, described.timeout_ms, described.wants_context) == (
        None,
        False,
        None,
        False,
    )
    assert describe(tool(repeatable=True)(plain)).repeatable
    assert describe(tool(name="unnamed")(lambda: 1)).call({}) == 1


def test_a_wrapper_keeps_hints_and_marks() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return ["logged", function(*args, **kwargs)]

        return inner

    described = describe(logged(weather))
    assert described.effect == "read" and described.wants_context
    assert described.call(described.bind({"place": {"city": "U"}}), context()) == ["logged", "t1-r1-c0 U C 3"]


@pytest.mark.parametrize("hint", ["ToolContext | None", "Annotated[ToolContext, 'x']", "ToolContext"])
def test_context_is_never_shown(hint: str) -> None:
    def f(x: int, c=None): ...

    f.__annotations__["c"] = hint
    described = describe(f)
    assert described.wants_context
    assert shown(described) == ["x"]


def no_hint(x): ...
def stars(*x: int) -> None: ...
def stars2(**x: int) -> None: ...
def positional(x: int, /) -> None: ...
def unresolved(x: Unknown) -> None: ...
def unresolved_result(x: int) -> Unknown: ...
def not_json(x: Any = object()) -> None: ...  # noqa: B008
def nan(x: float = float("nan")) -> None: ...
def no_schema(x: subprocess.Popen[str]) -> None: ...
def infinite(x: Annotated[float, Field(json_schema_extra={"below": float("inf")})]) -> None: ...
def generator(x: int) -> Any:
    yield x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (no_hint, "tool 'no_hint': parameter 'x' has no type hint"),
        (stars, r"'\*x'"),
        (stars2, r"'\*\*x'"),
        (positional, "parameter 'x' is positional-only"),
        (unresolved, "cannot be resolved: name 'Unknown'"),
        (not_json, "default of parameter 'x' is not JSON: a object has no JSON form"),
        (nan, "default of parameter 'x' is not JSON: the float nan"),
        (no_schema, "tool 'no_schema': no JSON Schema"),
        (infinite, "cannot be stored"),
        (generator, "is a generator"),
        (lambda: 1, "a lambda has no name"),
        (Place, "class Place is no tool"),
        (3, "cannot be called"),
        (tool(name="two words")(lambda: 1), "must match"),
        (tool(name="x" * 65)(lambda: 1), "must match"),
        (tool(name="x\n")(lambda: 1), "must match"),
        (tool(name="naïve")(lambda: 1), "must match"),
    ],
)
def test_refused_as_a_tool(function: Any, text: str) -> None:
    with pytest.raises(ToolError, match=text) as caught:
        describe(function)
    assert "http" not in str(caught.value)


def test_a_result_hint_may_be_unresolvable() -> None:
    assert describe(unresolved_result).name == "unresolved_result"


def test_refused_marks() -> None:
    with pytest.raises(ValueError, match="effect must be one of read, idempotent, once"):
        tool(effect="write")  # type: ignore[call-overload]
    for bad in (0, -1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="timeout_ms"):
            tool(timeout_ms=bad)  # type: ignore[arg-type]
    with pytest.raises(ToolError, match="below @staticmethod"):
        tool(effect="once")(staticmethod(later))
    with pytest.raises(ToolError, match="cannot be marked"):
        tool(effect="read")(len)


def test_collect_refuses_two_of_one_name() -> None:
    assert list(collect([weather, later, describe(fetch)])) == ["weather", "later", "fetch"]
    with pytest.raises(ToolError, match="two tools are called 'later'"):
        collect([later, tool(name="later")(fetch)])


def test_sets_as_defaults_give_one_schema_in_every_process() -> None:
    code = (
        "from thence.host.toolkit import describe\n"
        "def f(x: set[str] = set('hgfedcba')) -> None: ...\n"
        "import json; print(json.dumps(describe(f).spec.parameters))"
    )
    engine = Path(inspect.getfile(canonical)).parents[1]
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(engine)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1 and '["a", "b", "c", "d", "e", "f", "g", "h"]' in texts.pop()


def test_pydantic_is_loaded_by_the_first_description_only() -> None:
    code = "import sys, thence.host.toolkit, thence.host.workspace; print('pydantic' in sys.modules)"
    engine = Path(inspect.getfile(canonical)).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(engine)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"


def test_docstring_styles() -> None:
    def rest(a: int, b: int) -> None:
        """Do it.

        :param a: first
            and more
        :param int b: second
        :returns: nothing
        """

    properties: Any = describe(rest).spec.parameters["properties"]
    assert describe(rest).description == "Do it."
    assert (properties["a"]["description"], properties["b"]["description"]) == ("first and more", "second")

    def own(a: Annotated[int, Field(description="mine")]) -> None:
        """Args:
        a: theirs
        """

    described = describe(own)
    assert described.description == ""
    assert described.spec.parameters["properties"]["a"]["description"] == "mine"  # type: ignore[index,call-overload]


def test_context_is_read_only_and_cancels() -> None:
    said: list[str] = []
    state = {"stop": False}
    tags: dict[str, str | None] = {"tenant_id": "t", "principal": None}
    ctx = context(tags=tags, is_cancelled=lambda: state["stop"], on_progress=said.append)
    tags["tenant_id"] = "other"
    assert dict(ctx.tags) == {"tenant_id": "t", "principal": None}
    with pytest.raises(TypeError):
        ctx.tags["tenant_id"] = "x"  # type: ignore[index]
    with pytest.raises(AttributeError):
        ctx.session_id = "x"  # type: ignore[misc]
    assert not ctx.cancelled
    ctx.raise_if_cancelled()
    state["stop"] = True
    assert ctx.cancelled
    with pytest.raises(ToolCancelled, match="t1-r1-c0"):
        ctx.raise_if_cancelled()
    ctx.progress("half\ud800")
    assert said == ["half?"]
    with pytest.raises(TypeError):
        ctx.progress(cast("str", b"x"))
    assert ctx.forbidden_files() == frozenset()


def test_a_tool_is_frozen() -> None:
    described = describe(later)
    assert isinstance(described, Tool)
    with pytest.raises(AttributeError):
        described.name = "x"  # type: ignore[misc]
    assert {described: 1}[described] == 1
