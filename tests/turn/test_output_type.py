"""Structured output (§1): a type goes in, its schema goes to the model and into the log, a value comes out."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

import thence
from thence import OutputInvalid, RunIdentityConflict, SessionOptions
from thence.testing import call, reply

from ..kit import Both, World, canonical, check_session, kinds, stored

T = TypeVar("T")


class City(BaseModel):
    """A place."""

    name: str
    people: int = Field(ge=0)


class Town(BaseModel):
    """A place."""

    name: str
    people: int = Field(ge=0)


@dataclass
class Point:
    x: int
    y: int = 0


class Trip(TypedDict):
    day: date
    stops: list[City]


class Node(BaseModel):
    name: str
    kids: list[Node] = []


class Box(BaseModel, Generic[T]):
    held: T


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Picky(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int

    @field_validator("x")
    @classmethod
    def small(cls, value: int) -> int:
        if value == 13:
            raise KeyError("unlucky")
        if value > 9:
            raise ValueError("only small ones")
        return value


BERN = City(name="Bern", people=134_000)
BERN_TEXT = '{"name": "Bern", "people": 134000}'


def schema_of(world: World, number: int = -1) -> Any:
    return world.model.requests[number].output_schema


# ------------------------------------------------------------------ what is asked and what comes back


async def test_a_model_type_gives_a_value_and_the_text_stays(world: World):
    session = await world.session([reply(BERN_TEXT)])
    result = await session.send("Where?", output_type=City)
    assert result.output == BERN and type(result.output) is City
    assert (result.text, result.status) == (BERN_TEXT, "completed")
    assert [m.text for m in await session.history()] == ["Where?", BERN_TEXT]


async def test_the_model_is_given_the_schema_of_a_closed_object(world: World):
    session = await world.session([reply(BERN_TEXT)])
    await session.send("Where?", output_type=City)
    assert schema_of(world) == {
        "type": "object",
        "description": "A place.",
        "properties": {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 0}},
        "required": ["name", "people"],
        "additionalProperties": False,
    }


async def test_the_log_names_the_schema_by_the_hash_of_its_canonical_text(world: World):
    session = await world.session([reply(BERN_TEXT)])
    await session.send("Where?", output_type=City)
    configured = stored((await check_session(session))[0])
    text = canonical(schema_of(world))
    assert configured["output_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    with sqlite3.connect(world.db) as db:
        kept = db.execute("SELECT bytes FROM blob WHERE sha256 = ?", (configured["output_sha256"],)).fetchone()
    assert bytes(kept[0]) == text.encode()


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (Point, '{"x": 1}', Point(1)),
        (Trip, '{"day":"2024-02-29","stops":[' + BERN_TEXT + "]}", {"day": date(2024, 2, 29), "stops": [BERN]}),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (dict[str, int], '{"result": 1}', {"result": 1}),
        (Node, '{"name":"a","kids":[{"name":"b"}]}', Node(name="a", kids=[Node(name="b")])),
        (Box[int], '{"held": 3}', Box[int](held=3)),
        (Box, '{"held": [3]}', Box(held=[3])),
        (Picky, '{"x": 3, "more": true}', Picky(x=3, more=True)),  # type: ignore[call-arg]
        (City, f"```json\n{BERN_TEXT}\n```", BERN),
        (City, f"\n ```\r\n{BERN_TEXT}\r\n```\n", BERN),
        (City, f"```{BERN_TEXT}```", BERN),
    ],
)
async def test_objects_are_asked_for_as_they_are(world: World, wanted: Any, text: str, value: Any):
    session = await world.session([reply(text)])
    result = await session.send("go", output_type=wanted)
    assert result.output == value and type(result.output) is type(value)
    schema = schema_of(world)
    assert schema["type"] == "object" and "result" not in schema.get("properties", {})


@pytest.mark.parametrize("how", ["wrapped", "bare"])
@pytest.mark.parametrize(
    ("wanted", "said", "value"),
    [
        (int, "42", 42),
        (int, str(10**40), 10**40),
        (bool, "true", True),
        (float, "1e3", 1000.0),
        (list[int], "[1, 2]", [1, 2]),
        (list[City], f"[{BERN_TEXT}]", [BERN]),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (Literal["yes", "no"], '"no"', "no"),
        (Colour, '"blue"', Colour.BLUE),
        (date, '"2024-02-29"', date(2024, 2, 29)),
        (int | None, "null", None),
        (City | Point, '{"x": 1}', Point(1)),
        (Annotated[int, Field(ge=1)], "3", 3),
        (Any, '[{"a": null}]', [{"a": None}]),
        (type(None), "null", None),
    ],
)
async def test_anything_else_is_asked_for_in_an_object_of_one_field(
    world: World, wanted: Any, said: str, value: Any, how: str
):
    """Providers take only objects at the top; a server that does not pass the schema on gives the bare value."""
    session = await world.session([reply('{"result": ' + said + "}" if how == "wrapped" else said)])
    result = await session.send("go", output_type=wanted)
    assert result.output == value and type(result.output) is type(value)
    assert result.to_dict()["output"] == json.loads(said)
    schema = schema_of(world)
    assert (schema["type"], list(schema["properties"]), schema["required"]) == ("object", ["result"], ["result"])
    assert schema["additionalProperties"] is False


async def test_a_recursive_type_has_its_object_at_the_top(world: World):
    session = await world.session([reply('{"name": "a"}')])
    await session.send("go", output_type=Node)
    schema = schema_of(world)
    assert schema["properties"]["kids"]["items"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["additionalProperties"] is False


async def test_without_a_type_there_is_no_output_and_no_schema(world: World):
    session = await world.session([reply(BERN_TEXT)])
    result = await session.send("go", output_type=None)
    assert (result.output, schema_of(world)) == (None, None)
    assert result.to_dict()["output"] is None and "output_json" not in result.to_dict()


async def test_str_is_the_text_as_it_is(world: World):
    session = await world.session([reply("No JSON at all.")])
    result = await session.send("go", output_type=str)
    assert (result.output, schema_of(world)) == ("No JSON at all.", None)
    assert result.to_dict()["output"] == "No JSON at all."


async def test_the_result_as_json_holds_what_the_model_said(world: World):
    session = await world.session([reply('{"day":"2024-02-29","stops":[]}')])
    told = (await session.send("go", output_type=Trip)).to_dict()
    assert json.loads(json.dumps(told))["output"] == {"day": "2024-02-29", "stops": []}


async def test_a_type_is_of_one_turn(world: World):
    session = await world.session([reply(BERN_TEXT), reply("Fine."), reply("[1]"), reply("[2]")])
    await session.send("Where?", output_type=City)
    assert (await session.send("And?")).output is None
    assert schema_of(world) is None
    await session.send("Numbers?", output_type=list[int])
    await session.send("More?", output_type=list[int])
    assert kinds(await check_session(session)).count("run.configured") == 3


async def test_every_request_of_the_turn_carries_it_tools_or_not(world: World):
    def look() -> str:
        return "seen"

    script = [reply(calls=[call("look")]), reply('{"na', stop_reason="length"), reply(BERN_TEXT)]
    session = await world.session(script, tools=[look], max_tool_rounds=1)
    assert (await session.send("go", output_type=City)).output == BERN
    assert [len(request.tools) for request in world.model.requests] == [1, 0, 0]
    assert all(request.output_schema == schema_of(world) for request in world.model.requests)


async def test_the_estimate_counts_the_schema(world: World):
    seen: list[int] = []

    class Guard:
        def check_before_llm(self, session_id: str, estimated_tokens: int) -> None:
            seen.append(estimated_tokens)

    agent = await world.agent([reply("1"), reply("1")])
    for wanted in (None, int):
        session = await agent.session("/w", SessionOptions(budget_guard=Guard()))
        await session.send("go", output_type=wanted)
    assert seen[1] - seen[0] == pytest.approx(len(canonical(schema_of(world))) / 4, abs=1)


async def test_equal_inputs_give_equal_logs(world: World):
    heads = []
    for name in ("a.db", "b.db"):
        agent = await world.agent([reply('{"name":"a"}')], db=name)
        session = await agent.session("/w", SessionOptions(session_id="s"))
        await session.send("go", output_type=Node)
        heads.append((await session.facts())[-1].hash)
    assert heads[0] == heads[1]


# ------------------------------------------------------------------ an answer that does not fit


@pytest.mark.parametrize(
    ("wanted", "text", "problem"),
    [
        (City, '{"name": "Bern"}', "$.people: Field required"),
        (City, '{"name": "Bern", "people": -1}', "$.people: Input should be greater than or equal to 0"),
        (Trip, '{"day":"2024-02-29","stops":[{"name":1,"people":1}]}', "$.stops[0].name: Input should be a valid"),
        (City, "Bern has 134,000 people.", "it is not JSON ("),
        (City, f"Here you are: {BERN_TEXT}", "it is not JSON ("),
        (City, BERN_TEXT + BERN_TEXT, "it is not JSON ("),
        (float, '{"result": NaN}', "it is not JSON ("),
        (float, "-Infinity", "it is not JSON ("),
        (float, "1e999", "it is not JSON ("),
        (int, "9" * 5000, "it is not JSON ("),
        (Any, "[" * 300 + "]" * 300, "it is not JSON ("),
        (list[int], '{"result": ["a"]}', "$.result[0]: Input should be a valid integer"),
        (Literal["yes", "no"], '"perhaps"', "$: Input should be 'yes' or 'no'"),
        (Picky, '{"x": 10}', "$.x: Value error, only small ones"),
        (Picky, '{"x": 13}', "reading it raised KeyError: 'unlucky'"),
    ],
)
async def test_an_answer_that_does_not_fit_is_a_typed_error_and_the_run_has_completed(
    world: World, wanted: Any, text: str, problem: str
):
    session = await world.session([reply(text), reply("And on.")])
    with pytest.raises(OutputInvalid) as refused:
        await session.send("go", output_type=wanted)
    error = refused.value
    assert (error.code, error.text) == ("OUTPUT_INVALID", text)
    assert (error.retryable, error.resumable) == (False, False)
    assert error.problems[0].startswith(problem) and problem in str(error)
    run = await session.run_snapshot(error.run_id)
    assert (run.status, run.result_text) == ("completed", text)
    facts = await check_session(session)
    assert stored(facts[-1])["status"] == "completed"
    assert len(world.model.requests) == 1, "nothing is injected, nobody is asked again"
    assert (await session.send("Go on.")).text == "And on."


async def test_an_empty_answer_does_not_fit_either(world: World):
    session = await world.session([reply("")] * 2, max_continuation_turns=1)
    with pytest.raises(OutputInvalid) as refused:
        await session.send("go", output_type=int)
    assert refused.value.text == ""


async def test_many_problems_are_told_in_few_words(world: World):
    session = await world.session([reply(json.dumps(["a" * 1000] * 500))])
    with pytest.raises(OutputInvalid) as refused:
        await session.send("go", output_type=list[Literal["b"]])
    assert len(refused.value.problems) == 9 and refused.value.problems[-1] == "and 492 more"
    assert len(str(refused.value)) < 4000


# ------------------------------------------------------------------ what is no output type


class Shapeless:
    pass


class NoNumber(BaseModel):
    x: float = float("nan")


NOT_TYPES = [5, True, ..., "City", BERN, {"type": "object"}, [int], (int, str), len, TypeAdapter(int)]
NO_SCHEMA = [Shapeless, Callable[[], int], list["Nowhere"], NoNumber]  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("how", ["send", "stream", "spawn", "resume", "spawn_recovery"])
async def test_what_is_no_type_or_has_no_schema_is_refused_before_anything_is_written(world: World, how: str):
    session = await world.session([reply("ok")])
    ask: dict[str, Callable[[Any], Any]] = {
        "send": lambda wanted: session.send("go", output_type=wanted),
        "stream": lambda wanted: session.stream("go", output_type=wanted),
        "spawn": lambda wanted: session.spawn_run_with_id("mine", "go", output_type=wanted),
        "resume": lambda wanted: session.resume_run("mine", output_type=wanted),
        "spawn_recovery": lambda wanted: session.spawn_recovery_with_run_id("mine", "new", output_type=wanted),
    }
    for wanted in [*NOT_TYPES, *NO_SCHEMA]:
        with pytest.raises(TypeError) as refused:
            await ask[how](wanted)
        said = "must be a type" if any(wanted is one for one in NOT_TYPES) else "has no JSON Schema: "
        assert str(refused.value).startswith("'output_type' ") and said in str(refused.value)
    assert (await session.facts(), await session.runs(), world.model.requests) == ([], [], [])


# ------------------------------------------------------------------ streams and run ids


async def test_a_stream_has_the_output_in_its_result(world: World):
    session = await world.session([reply(BERN_TEXT, deltas=[BERN_TEXT[:9], BERN_TEXT[9:]])])
    stream = await session.stream("go", output_type=City)
    assert [event.text async for event in stream if event.type == "turn_end"] == [BERN_TEXT]
    assert (await stream.result()).output == BERN


async def test_a_stream_ends_well_though_its_answer_does_not_fit(world: World):
    session = await world.session([reply("no")])
    stream = await session.stream("go", output_type=City)
    assert [event.type async for event in stream][-1] == "agent_end"
    with pytest.raises(OutputInvalid):
        await stream.result()


async def test_the_same_id_and_input_give_the_output_again(world: World):
    session = await world.session([reply(BERN_TEXT)])
    first = await session.send("go", run_id="mine", output_type=City)
    again = await session.send("go", run_id="mine", output_type=City)
    assert (again.output, again.replayed, first.replayed) == (BERN, True, False)
    # Another class of the same schema is the same question to the model.
    other = await session.send("go", run_id="mine", output_type=Town)
    assert other.output == Town(name="Bern", people=134_000)
    assert len(world.model.requests) == 1


@pytest.mark.parametrize("wanted", [None, str, Point, list[City]])
async def test_the_same_id_with_another_type_is_other_input(world: World, wanted: Any):
    session = await world.session([reply(BERN_TEXT)])
    await session.send("go", run_id="mine", output_type=City)
    with pytest.raises(RunIdentityConflict):
        await session.send("go", run_id="mine", output_type=wanted)
    with pytest.raises(RunIdentityConflict):
        await session.spawn_run_with_id("mine", "go", output_type=wanted)
    assert len(world.model.requests) == 1


async def test_the_digest_of_a_plain_send_is_that_of_its_prompt(world: World):
    session = await world.session([reply("1"), reply("1"), reply("1")])
    await session.send("go", run_id="plain")
    await session.send("go", run_id="text", output_type=str)
    await session.send("go", run_id="typed", output_type=int)
    with sqlite3.connect(world.db) as db:
        digests = dict(db.execute("SELECT run_id, input_sha256 FROM run_identity"))
    plain = hashlib.sha256(b"go").hexdigest()
    assert (digests["plain"], digests["text"]) == (plain, plain) and digests["typed"] != plain


async def test_an_answer_that_did_not_fit_does_not_fit_again(world: World):
    session = await world.session([reply("no")])
    for _ in range(2):
        with pytest.raises(OutputInvalid) as refused:
            await session.send("go", run_id="mine", output_type=City)
        assert (refused.value.run_id, refused.value.text) == ("mine", "no")
    assert len(world.model.requests) == 1


async def test_a_spawned_run_waits_for_its_output(world: World):
    session = await world.session([reply(BERN_TEXT)])
    wait = (await session.spawn_run_with_id("mine", "go", output_type=City)).wait
    assert (await _through(session, wait)).output == BERN
    again = await session.spawn_run_with_id("mine", "go", output_type=City)
    assert again.replayed and (await _through(session, again.wait)).output == BERN


async def _through(session: Both, wait: Callable[[], Any]) -> Any:
    return await (asyncio.to_thread(wait) if session.blocking else wait())


# ------------------------------------------------------------------ what a plain process pays


def test_only_an_output_type_loads_pydantic(tmp_path: Path):
    code = (
        "import sys; from thence import Agent; from thence.testing import ScriptedModel, reply\n"
        "session = Agent(sys.argv[1], model=ScriptedModel([reply('ok'), reply('ok'), reply('3')])).session('/w')\n"
        "session.send('go'); session.send('go', output_type=str)\n"
        "assert 'pydantic' not in sys.modules\n"
        "assert session.send('go', output_type=int).output == 3"
    )
    engine = Path(thence.__file__).resolve().parents[1]
    command = [sys.executable, "-c", code, str(tmp_path / "a.db")]
    done = subprocess.run(command, env={"PYTHONPATH": str(engine)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
