"""The whole state of a fold as JSON, exact and canonical, and the fact that carries it: ``compaction.done`` (§4). Pure.

What `kept_state` keeps is a cache of small things. This is part of the log: fold from it == fold from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .canonical import Json
from .chat import Usage
from .compacted import Compacted
from .errors import UnknownCriticalFact
from .facts import Configured, Ended, WaitAnswered
from .gate import Gate
from .loopguard import LoopGuard
from .parts import Blobs, Lookup, get_text, put_text
from .state import Phase, State
from .steps import OpenWait

PLAIN = (
    "turn", "request", "rounds", "text", "stop_reason", "capped", "continuations", "steers", "without_usage",
    "tool_calls", "cut", "compactions", "overflowed", "context_tokens", "configs",
)  # fmt: skip
"""Fields that are a number, a text or a yes."""

BUILT = ("phase", "fatal", "continued", "loop", "gate", "usage", "config", "ended", "waits")
"""Fields that are put together again."""

ABSENT = ("open",)
"""Fields that are at their default wherever a compaction may come."""


def encode_state(state: State) -> dict[str, Json]:
    """``state`` as JSON. Its texts stand in it whole; the fact puts long ones elsewhere.

    Raises:
        ValueError: calls are open: no compaction may come there.
    """
    if state.open:
        raise ValueError("the state of an open round cannot stand for its facts")
    value: dict[str, Json] = {name: getattr(state, name) for name in PLAIN}
    value["phase"] = state.phase.value
    value["fatal"] = None if state.fatal is None else list(state.fatal)
    value["continued"] = list(state.continued)
    value["loop"] = {**_of(state.loop), "window": list(state.loop.window)}
    value["gate"] = _of(state.gate)
    value["usage"] = _of(state.usage)
    value["config"] = None if state.config is None else _of(state.config)
    value["ended"] = None if state.ended is None else _of(state.ended)
    value["waits"] = [
        {**_of(wait), "answer": None if wait.answer is None else _of(wait.answer)} for wait in state.waits
    ]
    return value


def decode_state(value: Mapping[str, Any]) -> State:
    """The state that :func:`encode_state` wrote. What a later version would add is missing, and is at its default.

    Raises:
        UnknownCriticalFact: it holds something that this version cannot fold on from.
    """
    unknown = sorted(set(value) - {*PLAIN, *BUILT})
    if unknown:
        raise UnknownCriticalFact(
            f"a compaction in the log says '{unknown[0]}', which this version of thence does not know"
        )
    known: dict[str, Any] = {name: value[name] for name in PLAIN if name in value}
    loop: dict[str, Any] = {**value["loop"], "window": tuple(value["loop"]["window"])}
    return State(
        phase=Phase(value["phase"]),
        fatal=None if value["fatal"] is None else tuple(value["fatal"]),
        continued=tuple(value["continued"]),
        loop=LoopGuard(**loop),
        gate=Gate(**value["gate"]),
        usage=Usage(**value["usage"]),
        config=None if value["config"] is None else Configured(**value["config"]),
        ended=None if value["ended"] is None else Ended(**value["ended"]),
        waits=tuple(_wait(wait) for wait in value["waits"]),
        **known,
    )


def _wait(value: Mapping[str, Any]) -> OpenWait:
    given: dict[str, Any] = dict(value)
    if given["answer"] is not None:
        given["answer"] = WaitAnswered(**given["answer"])
    return OpenWait(**given)


def _of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def encode_compacted(p: Compacted, blobs: Blobs) -> Json:
    """The fact as it is stored."""
    state: dict[str, Any] = dict(p.state)
    _take_out(state, "text", blobs)
    if state.get("config") is not None:
        state["config"] = config = dict(state["config"])
        _take_out(config, "instructions", blobs)
    out: dict[str, Json] = {
        "trigger": p.trigger,
        "kept_message": p.kept_message,
        "kept_from": p.kept_from,
        "state": state,
        "usage": None if p.usage is None else dict[str, Json](p.usage.to_dict()),
        "model": p.model,
    }
    put_text(out, "summary", p.summary, blobs)
    return out


def decode_compacted(v: Mapping[str, Any], lookup: Lookup) -> Compacted:
    """The fact as it was before it was stored."""
    state: dict[str, Any] = dict(v["state"])
    _put_back(state, "text", lookup)
    if state.get("config") is not None:
        _put_back(state["config"], "instructions", lookup)
    usage = None if v["usage"] is None else Usage(**v["usage"])
    summary = get_text(v, "summary", lookup)
    return Compacted(v["trigger"], summary, v["kept_message"], v["kept_from"], state, usage, v["model"])


def _take_out(value: dict[str, Any], name: str, blobs: Blobs) -> None:
    if name in value:
        put_text(value, name, value.pop(name), blobs)


def _put_back(value: dict[str, Any], name: str, lookup: Lookup) -> None:
    sha = value.pop(f"{name}_sha256", None)
    if sha is not None:
        value[name] = lookup(sha).decode()
