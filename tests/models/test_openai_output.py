"""Structured output through OpenAIModel, from the type to the wire and back (§1, §12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from thence import OutputInvalid, SessionOptions
from thence.host.output_type import check_output_type
from thence.models.strict import is_strict

from ..kit import Both, World

pytest.importorskip("openai")

from thence.models.openai import OpenAIModel


class City(BaseModel):
    name: str
    people: Annotated[int, Field(ge=0, description="Inhabitants.")]
    part_of: City | None


class Loose(BaseModel):
    name: str
    note: str = ""


@pytest.fixture(params=["sync", "async"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(request.param, tmp_path)
    yield made
    await made.close()


async def opened(world: World, wire: Any, **options: Any) -> Both:
    agent = await world.agent(model=OpenAIModel("m-1", wire.url, "sk-test-0123456789"))
    session: Both = await agent.session("/w", SessionOptions(**options))
    return session


async def test_the_schema_goes_out_and_the_value_comes_back(world: World, wire: Any, chunk: Any):
    wire.streams(chunk(text='{"name": "Bern", '), chunk(text='"people": 134000, "part_of": null}', finish="stop"))
    session = await opened(world, wire)
    result = await session.send("Where?", output_type=City)
    assert result.output == City(name="Bern", people=134_000, part_of=None)
    wanted = wire.bodies[0]["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"], wanted["json_schema"]["strict"]) == (
        "json_schema",
        "output",
        True,
    )
    schema = wanted["json_schema"]["schema"]
    assert schema["type"] == "object" and set(schema["required"]) == {"name", "people", "part_of"}
    assert schema["properties"]["part_of"] == {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}]}


async def test_a_server_that_does_not_pass_the_schema_on(world: World, wire: Any, chunk: Any):
    """It fences its answer, or gives the bare value."""
    wire.streams(chunk(text="```json\n[1, 2]\n```", finish="stop"))
    session = await opened(world, wire)
    assert (await session.send("Numbers?", output_type=list[int])).output == [1, 2]


async def test_an_answer_that_was_cut_is_asked_for_again_as_any_other(world: World, wire: Any, chunk: Any):
    wire.streams(chunk(text='{"result": [1, ', finish="length"))
    wire.streams(chunk(text='{"result": [1, 2]}', finish="stop"))
    session = await opened(world, wire)
    assert (await session.send("Numbers?", output_type=list[int])).output == [1, 2]
    assert [body["messages"][-1]["content"] for body in wire.bodies] == ["Numbers?", "Continue."]
    assert wire.bodies[0]["response_format"] == wire.bodies[1]["response_format"]


async def test_a_refusal_does_not_fit(world: World, wire: Any, chunk: Any):
    wire.streams(chunk(refusal="I will not say."), chunk(finish="stop"))
    session = await opened(world, wire)
    with pytest.raises(OutputInvalid) as refused:
        await session.send("Where?", output_type=City)
    assert refused.value.text == "I will not say."


async def test_a_server_of_another_dialect_is_served_by_a_setting(world: World, wire: Any, chunk: Any):
    wire.streams(chunk(text='{"name": "a"}', finish="stop"))
    session = await opened(world, wire, model_settings={"response_format": {"type": "json_object"}})
    assert (await session.send("Where?", output_type=Loose)).output == Loose(name="a")
    assert wire.bodies[0]["response_format"] == {"type": "json_object"}


class Id(BaseModel):
    id: UUID


class Sizes(BaseModel):
    sizes: Annotated[list[Literal["s", "m"]], Field(min_length=1)]


@pytest.mark.parametrize("wanted", [City, Id, Sizes, int, list[City], Literal["a", "b"], City | None])
def test_asked_for_strictly(wanted: Any):
    assert is_strict(_schema(wanted))


class Open(BaseModel, extra="allow"):
    x: int


class Described(BaseModel):
    held: City = Field(description="A reference with words beside it.")


@pytest.mark.parametrize(
    "wanted", [Loose, dict[str, int], list[Loose], Any, list[Any], Open, Described, tuple[int, str]]
)
def test_not_asked_for_strictly(wanted: Any):
    """A field that may be left out, an open object, or words that strict mode refuses: such a request would fail."""
    assert not is_strict(_schema(wanted))


def _schema(wanted: Any) -> Any:
    found = check_output_type(wanted)
    return found and found.schema
