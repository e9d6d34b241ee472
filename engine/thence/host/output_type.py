"""From a type to the JSON Schema of an answer, and from an answer's text to a value of that type (§1).

pydantic does the work, and is loaded with the first output type: a plain ``send`` stays free of it.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..canonical import Json, NotJson, clean, dumps, loads
from ..errors import OutputInvalid
from .signature import tidy

if TYPE_CHECKING:
    from pydantic import TypeAdapter

WRAPPER = "result"
"""The one field of the object around an answer whose type is no JSON object."""

MAX_PROBLEMS = 8
MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class OutputType:
    """What a caller wants an answer to be.

    ``schema`` is what the model is given, always that of an object: providers take nothing else at the top. A type of
    another kind stands in an object of one field, :data:`WRAPPER`, and ``wrapped`` reads that. ``str`` has neither
    schema nor adapters: it is the text itself.
    """

    schema: Mapping[str, Json] | None = None
    plain: TypeAdapter[Any] | None = None
    wrapped: TypeAdapter[Any] | None = None

    def read(self, run_id: str, text: str) -> tuple[Any, Json]:
        """The value that the answer ``text`` is, and the same as the JSON it was.

        A code fence around the whole answer is taken off; nothing else is forgiven. Where the model was asked for an
        object around the value, the bare value will do: many servers do not pass the schema on.

        Raises:
            OutputInvalid: the text is no JSON, or no value of the type.
        """
        if self.plain is None:
            return text, text
        said = unfenced(text)
        try:
            value: Json = loads(said)
        except NotJson as error:
            raise OutputInvalid(run_id, text, (f"it is not JSON ({error})",)) from None
        first: Exception | None = None
        for adapter, is_wrapped in self._ways(value):
            try:
                found = adapter.validate_json(said)
            except Exception as error:  # noqa: BLE001 - raised below: a validator of the host's own may raise anything
                first = first or error
                continue
            if is_wrapped and isinstance(value, Mapping):
                return getattr(found, WRAPPER), value[WRAPPER]
            return found, value
        raise OutputInvalid(run_id, text, _problems(first)) from first

    def _ways(self, value: Json) -> Iterator[tuple[TypeAdapter[Any], bool]]:
        if self.wrapped is not None and isinstance(value, Mapping) and set(value) == {WRAPPER}:
            yield self.wrapped, True
        if self.plain is not None:
            yield self.plain, False


def check_output_type(given: Any) -> OutputType | None:
    """What ``output_type=`` asks for; None for None.

    Raises:
        TypeError: naming ``output_type``: it is no type, or one that has no JSON Schema.
    """
    if given is None:
        return None
    if given is str:
        return OutputType()
    if not _is_type(given):
        raise TypeError(
            f"'output_type' must be a type, such as a pydantic model, a dataclass or list[int], "
            f"not {clean(repr(given))[:100]}"
        )
    try:
        return _describe(given)
    except Exception as error:
        # The hooks by which a class describes itself may raise anything.
        why = clean(str(error)).partition("\n")[0] or type(error).__name__
        raise TypeError(f"'output_type' {clean(repr(given))[:100]} has no JSON Schema: {why}") from error


def _describe(given: Any) -> OutputType:
    from pydantic import ConfigDict, TypeAdapter, create_model

    plain: TypeAdapter[Any] = TypeAdapter(given)
    schema = _as_object(plain.json_schema())
    wrapped: TypeAdapter[Any] | None = None
    if schema is None:
        fields: dict[str, Any] = {WRAPPER: (given, ...)}
        # A cast, since a field name is no keyword that a type checker could know.
        make = typing.cast("Any", create_model)
        wrapped = TypeAdapter(make("Output", __config__=ConfigDict(extra="forbid"), **fields))
        schema = wrapped.json_schema()
    # Through its canonical text: what a default has of its own must be refused now, not when the run begins.
    return OutputType(loads(dumps(tidy(schema, close=True))), plain, wrapped)


def _as_object(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema with an object at the top, or None when it describes something else."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in schema.get("$defs", {}):
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}  # a recursive type points to itself from the top
    return schema if schema.get("type") == "object" else None


def _is_type(given: Any) -> bool:
    """Whether ``given`` is a class or one of the forms that ``typing`` makes of them: pydantic would take more, such as
    a name or a function."""
    if isinstance(given, type) or typing.get_origin(given) is not None or given is Any:
        return True
    return isinstance(given, typing.NewType) or type(given).__name__ == "TypeAliasType"


def unfenced(text: str) -> str:
    """``text`` without a Markdown code fence around the whole of it."""
    text = text.strip()
    if len(text) < 6 or not (text.startswith("```") and text.endswith("```")):
        return text
    label, _, rest = text[3:-3].partition("\n")
    return rest if not label.strip() or label.strip().isalnum() else text[3:-3]


def _problems(error: Exception | None) -> tuple[str, ...]:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return (f"reading it raised {type(error).__name__}: {clean(str(error))}"[:MAX_PROBLEM_CHARS],)
    found = [_problem(each) for each in error.errors(include_url=False, include_context=False, include_input=False)]
    more = len(found) - MAX_PROBLEMS
    return (*found[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else []))


def _problem(found: Any) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in found["loc"])
    return clean(f"${path}: {found['msg']}")[:MAX_PROBLEM_CHARS]
