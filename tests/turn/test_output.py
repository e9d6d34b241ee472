"""What a tool gives back (§5, J01, J04): cut for the model, kept whole up to 16 MiB, and defined for every value."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from thence import SessionOptions, ThenceError
from thence.testing import call, reply

from ..kit import Both, World, check_session, results, stored

MIB = 1024 * 1024


async def run_tool(world: World, value: Callable[[], object], **options: Any) -> tuple[Both, dict[str, Any]]:
    """One turn whose tool returns ``value()``; the session and the result's fact payload."""

    def give() -> object:
        return value()

    session = await world.session([reply(calls=[call("give")]), reply("ok")], [give], **options)
    assert (await session.send("go")).text == "ok"
    [fact] = [f for f in await check_session(session) if f.kind == "tool.result"]
    return session, stored(fact)


def blobs(world: World) -> dict[str, bytes]:
    """Every value of the file that is a blob and whose SHA-256 some column names."""
    found: dict[str, bytes] = {}
    db = sqlite3.connect(f"file:{world.db}?mode=ro", uri=True)
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall():
        for row in db.execute(f"SELECT * FROM {table}"):
            found.update({hashlib.sha256(v).hexdigest(): v for v in row if isinstance(v, bytes) and len(v) > 100})
    db.close()
    return found


@pytest.mark.parametrize("cap", [64, 200, 1000, 32_768])
async def test_the_model_sees_at_most_so_many_bytes_head_and_tail(world: World, cap: int):
    text = "".join(f"line {n}\n" for n in range(20_000))
    session, payload = await run_tool(world, lambda: text, max_tool_output_bytes=cap)
    [(_, ok, shown)] = results(await session.facts())
    assert ok and len(shown.encode()) <= cap
    assert shown == world.model.requests[1].messages[-1].text
    assert text.startswith(shown[:20])
    if cap > 64:
        assert text.endswith(shown[-20:])
        assert "read_output" in shown and "t1-r1-c0" in shown and str(len(text)) in shown
    sha = hashlib.sha256(text.encode()).hexdigest()
    assert sha in str(payload["metadata"]) and str(len(text)) in str(payload["metadata"])
    assert blobs(world)[sha] == text.encode()  # the whole is kept


async def test_the_default_cap_is_32_kib_and_shorter_output_is_untouched(world: World):
    session, payload = await run_tool(world, lambda: "x" * 32_768)
    [(_, _, shown)] = results(await session.facts())
    assert shown == "x" * 32_768 and payload["metadata"] == {}


async def test_one_byte_more_is_cut(world: World):
    session, _ = await run_tool(world, lambda: "x" * 32_769)
    [(_, _, shown)] = results(await session.facts())
    assert len(shown.encode()) <= 32_768 and "read_output" in shown


async def test_F04_100_mb_are_not_stored(world: World):
    """Beyond 16 MiB size and hash only; the file stays small and opens at once."""
    size = 100_000_000
    session, payload = await run_tool(world, lambda: "y" * size)
    sha = hashlib.sha256(b"y" * size).hexdigest()
    assert str(size) in str(payload["metadata"]) and sha in str(payload["metadata"])
    [(_, _, shown)] = results(await session.facts())
    assert len(shown.encode()) <= 32_768
    await world.close()
    assert sum(p.stat().st_size for p in world.folder.iterdir() if p.is_file()) < 5 * MIB
    start = time.monotonic()
    agent = await world.agent([])
    assert len(await agent.list_sessions()) == 1
    assert time.monotonic() - start < 10


async def test_the_border_of_what_is_kept_is_16_mib(world: World):
    for size, kept in ((16 * MIB, True), (16 * MIB + 1, False)):
        session, payload = await run_tool(world, partial("z".__mul__, size))
        assert payload["metadata"]["output"]["kept"] is kept
        sha = hashlib.sha256(b"z" * size).hexdigest()
        assert (sha in blobs(world)) is kept
        await session.close()


@pytest.mark.parametrize("cap", [1001, 1002, 1003, 1004, 65, 66, 67, 68, 1, 2, 3])
async def test_J01_cut_emoji_stay_whole(world: World, cap: int):
    session, _ = await run_tool(world, lambda: "😀" * 10_000, max_tool_output_bytes=cap)
    [(_, _, shown)] = results(await session.facts())
    assert len(shown.encode("utf-8")) <= cap
    assert not any(0xD800 <= ord(c) <= 0xDFFF for c in shown)
    assert "\ufffd" not in shown


@pytest.mark.parametrize(
    "make", [lambda: bytes(range(256)) * 40, lambda: bytearray(b"\xff\xfe"), lambda: b"\xff" * 50_000]
)
async def test_X6_binary_output_is_valid_text_within_the_cap(world: World, make: Callable[[], object]):
    session, _ = await run_tool(world, make, max_tool_output_bytes=2000)
    [(_, _, shown)] = results(await session.facts())
    assert len(shown.encode("utf-8")) <= 2000


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Odd:
    """Has no JSON form."""


# (what the tool returns, ok or failed or either, what the text must hold)
VALUES: dict[str, tuple[Callable[[], object], bool | None, str]] = {
    "datetime": (lambda: datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC), True, "2024-05-06"),
    "uuid": (lambda: UUID(int=7), True, "00000000-0000-0000-0000-000000000007"),
    "set": (lambda: {3, 1, 2}, True, "[1,2,3]"),
    "decimal": (lambda: Decimal("0.10"), True, "0.10"),
    "2**70": (lambda: 2**70, True, "1180591620717411303424"),
    "-2**63-1": (lambda: {"n": -(2**63) - 1}, True, "-9223372036854775809"),
    "-0.0": (lambda: -0.0, True, "-0.0"),
    "bool": (lambda: True, True, "true"),
    "none": (lambda: None, True, ""),
    "nul": (lambda: "a\0b", True, "a\0b"),
    "nested": (lambda: {"at": datetime(2024, 1, 1), "b": [1, {"c": {2}}]}, True, "2024-01-01"),
    "tuple": (lambda: (1, 2), True, "[1,2]"),
    "depth 200": (lambda: deep(200), True, "[[["),
    "object": (Odd, False, "Odd"),
    "lambda": (lambda: lambda: 1, False, "function"),
    "cyclic": (cyclic, False, ""),
    "depth 5000": (lambda: deep(5000), False, ""),
    "depth 201": (lambda: deep(201), False, ""),
    "bytes": (lambda: b"\x00\xff", None, ""),
    "nan": (lambda: float("nan"), None, ""),
    "inf": (lambda: {"x": float("-inf")}, None, ""),
    "5000 digits": (lambda: 10**4999, None, ""),
    "surrogate": (lambda: "a\ud800b", None, "a"),
    "surrogate in json": (lambda: {"k": "\udfff"}, None, ""),
    "key": (lambda: {1: 2, (3,): 4}, None, ""),
    "complex": (lambda: 1 + 2j, None, ""),
    "ellipsis": (lambda: ..., False, "llipsis"),
}


@pytest.mark.parametrize("name", VALUES)
async def test_J04_every_value_has_a_defined_result_and_the_run_goes_on(world: World, name: str):
    make, expected, part = VALUES[name]
    session, _ = await run_tool(world, make, max_tool_output_bytes=MIB)
    [(_, ok, shown)] = results(await check_session(session))
    assert ok is expected if expected is not None else isinstance(ok, bool)
    assert part in shown
    shown.encode("utf-8")
    if not ok:
        assert shown, "a failed result says why"
    if name in ("nan", "inf"):
        assert "null" not in shown  # NaN is never NULL
        assert "nan" in shown.lower() or "inf" in shown.lower()


async def test_J04_big_integers_come_back_equal(world: World):
    _, payload = await run_tool(world, lambda: {"n": 2**70, "m": -(2**70), "z": 2**53 + 1})
    assert payload["parts"] == [{"type": "json", "value": {"n": 2**70, "m": -(2**70), "z": 2**53 + 1}}]


async def test_J04_arguments_with_big_integers_reach_the_tool_exact(world: World):
    seen: list[int] = []

    def take(n: int) -> int:
        seen.append(n)
        return n + 1

    session = await world.session([reply(calls=[call("take", {"n": 2**70})]), reply("ok")], [take])
    result = await session.send("go")
    assert seen == [2**70]
    assert results(await check_session(session)) == [("t1-r1-c0", True, str(2**70 + 1))]
    assert len(await session.run_events(result.run_id)) > 5


@pytest.mark.parametrize("depth", [190, 195, 196, 197, 198, 199, 200])
async def test_V2_deep_arguments_and_results_are_accepted_or_refused_never_unhandled(world: World, depth: int):
    """Canonical JSON is 200 deep at most (§11): a value near the border is a result or a failed one."""

    def take(value: list[Any]) -> object:
        return value

    nested = "[" * (depth - 1) + "]" * (depth - 1)
    session = await world.session([reply(calls=[call("take", f'{{"value":{nested}}}')]), reply("ok")], [take])
    assert (await session.send("go")).text == "ok"
    assert len(results(await check_session(session))) == 1


TEXTS = {
    "nul": "a\0b",
    "emoji": "😀👩‍👩‍👧",
    "rtl": "שלום\u202e!",
    "nfc": "é",
    "nfd": "e\u0301",
    "bom": "\ufeffx",
    "lines": "a\u2028b\u2029c\r\n\x85d",
    "private": "\U0010ffff\ue000",
    "quotes": "\"'`\\ %s {} $",
    "control": "".join(map(chr, range(1, 32))),
    "long": "ä" * 70_000,
    "64 KiB": "x" * 65_536,
    "64 KiB + 1": "x" * 65_537,
}


@pytest.mark.parametrize("name", TEXTS)
async def test_V3_text_comes_back_as_it_was(world: World, name: str):
    """60 strings x every text field: prompt, answer, arguments, result; after a re-opening."""
    text = TEXTS[name]

    def echo(text: str) -> str:
        return text

    agent = await world.agent([reply(calls=[call("echo", {"text": text})]), reply(text)], tools=[echo])
    session = await agent.session(".", SessionOptions(session_id="s", max_tool_output_bytes=MIB))
    assert (await session.send(text + ".")).text == text
    await agent.close()
    agent = await world.agent([])
    session = await agent.resume_session("s")
    await check_session(session)
    user, asked, result, answer = await session.history()
    assert (user.text, result.text, answer.text) == (text + ".", text, text)
    assert text in json.loads(asked.calls[0].arguments)["text"]
    [run] = await session.runs()
    assert run.result_text == text


async def test_V3_lone_surrogates_in_an_answer_do_not_break_the_session(world: World):
    session = await world.session([reply("a\ud83db"), reply("fine")])
    first = await session.send("go")
    first.text.encode("utf-8")
    assert (await session.send("again")).text == "fine"
    await check_session(session)


@pytest.mark.parametrize("prompt", ["", "  \n", "a\ud800", 7, None, b"x", ["x"]])
async def test_a_bad_prompt_is_refused_before_anything_is_written(world: World, prompt: object):
    session = await world.session([reply("ok")])
    with pytest.raises((ValueError, TypeError)):
        await session.send(prompt)
    assert await session.facts() == [] and await session.runs() == []


async def test_V1_a_prompt_over_16_mib_is_refused(world: World):
    session = await world.session([reply("ok")])
    with pytest.raises(ValueError, match="16777216"):
        await session.send("x" * (16 * MIB + 1))
    assert await session.facts() == []
    assert (await session.send("x" * (16 * MIB))).text == "ok"


async def test_an_answer_over_16_mib_fails_the_run_and_leaves_the_session_usable(world: World):
    """What a model says has a limit too; nothing but our own error, and the session goes on."""
    session = await world.session([reply("x" * (16 * MIB + 1), deltas=[]), reply("ok")])
    with pytest.raises(ThenceError):
        await session.send("go")
    assert (await session.send("again")).text == "ok"
    await check_session(session)
