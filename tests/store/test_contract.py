"""One suite that every driver passes: both faces of a file, and memory."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from thence.errors import FactConflict, OwnershipLost, StoreError
from thence.plan import Op, Plan, PlanRefused, Query, Select
from thence.store.sql import Statement, load


class Sync:
    def __init__(self, store):
        self.store = store

    async def commit(self, plan):
        return self.store.commit(plan)

    async def read(self, query):
        return self.store.read(query)


class Async:
    def __init__(self, store):
        self.store = store

    async def commit(self, plan):
        return await self.store.acommit(plan)

    async def read(self, query):
        return await self.store.aread(query)


EXTRA = {
    "give_back": "INSERT INTO owner VALUES(:owner, 1, 'x', 0) RETURNING owner, pid",
    "with_insert": "WITH x(o) AS (VALUES(:owner)) INSERT INTO owner SELECT o, 1, 'x', 0 FROM x",
}


@pytest.fixture(params=["file-sync", "file-async", "memory-sync", "memory-async"])
async def driver(request, open_store, tmp_path):
    place, face = request.param.split("-")
    base = load()
    statements = {name: Statement(name, sql, sql.startswith("INSERT")) for name, sql in EXTRA.items()}
    schema = replace(base, statements={**base.statements, **statements})
    store = open_store(tmp_path / "a.db" if place == "file" else None, schema=schema)
    yield (Sync if face == "sync" else Async)(store)
    await store.aclose()


async def test_commits_and_reads(driver, say):
    assert await driver.commit(say.add("a", "b")) == ()
    assert {"a", "b"} < set(await driver.read(say.names))
    assert await driver.read(say.twice)


async def test_all_or_nothing(driver, say):
    with pytest.raises(PlanRefused) as refused:
        await driver.commit(say.add("a") + say.add("b") + say.add("a"))
    assert refused.value.code == "CONSTRAINT"
    assert "a" not in await driver.read(say.names)
    await driver.commit(say.add("a"))


async def test_expect(driver, say):
    await driver.commit(say.add("a"))
    with pytest.raises(PlanRefused) as refused:
        await driver.commit(say.add("b") + say.remove("nobody", expect=1, refusal="GONE"))
    assert refused.value.code == "GONE"
    assert "b" not in await driver.read(say.names)
    await driver.commit(say.remove("a", expect=1))
    await driver.commit(Plan((Op("with_insert", ({"owner": "w"},), expect=1),)))
    with pytest.raises(PlanRefused):
        await driver.commit(Plan((Op("with_insert", ({"owner": "v"},), expect=2),)))


@pytest.mark.parametrize(("code", "kind"), [("OWNERSHIP_LOST", OwnershipLost), ("FACT_CONFLICT", FactConflict)])
async def test_refusals_have_types(driver, say, code, kind):
    with pytest.raises(kind):
        await driver.commit(say.remove("nobody", expect=1, refusal=code))


async def test_returning(driver):
    rows = ({"owner": "a"}, {"owner": "b"})
    answer = await driver.commit(Plan((Op("give_back", rows, 2, returning=True), Op("give_back", ({"owner": "c"},)))))
    assert answer == ([("a", 1), ("b", 1)],)


@pytest.mark.parametrize("value", [2**63, "\ud800", [], object()], ids=["big", "surrogate", "list", "object"])
async def test_a_value_that_cannot_be_bound(driver, say, value):
    bad = Plan((Op("owner_add", ({"owner": value, "pid": 1, "program": "p", "since_ms": 0},)),))
    with pytest.raises(StoreError, match="owner_add"):
        await driver.commit(say.add("a") + bad)
    assert "a" not in await driver.read(say.names)
    await driver.commit(say.add("a"))


async def test_unknown_names_and_missing_parameters(driver, say):
    with pytest.raises(StoreError, match="no_such"):
        await driver.commit(Plan((Op("no_such"),)))
    with pytest.raises(StoreError, match="owner_add"):
        await driver.commit(Plan((Op("owner_add"),)))
    with pytest.raises(StoreError, match="no_such"):
        await driver.read(Query((Select("no_such", {}),), len))
    await driver.commit(say.add("a"))
    assert "a" in await driver.read(say.names)


async def test_rows_that_no_decoder_can_read_are_damage(driver, say):
    """D6: whatever a decoder stumbles over was not written by us; the caller gets a typed error."""
    await driver.commit(say.add("a"))
    with pytest.raises(StoreError, match="damaged"):
        await driver.read(Query((Select("owner_list", {}),), lambda rows: 1 // 0))
    assert "a" in await driver.read(say.names)


async def test_closing_twice_then_nothing_works(driver, say):
    await driver.commit(say.add("a"))
    driver.store.close()
    await driver.store.aclose()
    for call in (driver.commit(say.add("b")), driver.read(say.names)):
        with pytest.raises(StoreError, match="closed"):
            await call


def test_200_threads_share_a_store(open_store, say):
    store = open_store()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store.commit(say.add(f"t{number}"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(store.read(say.names)) == 201
    stats = store.stats()
    assert stats.commits == 200
    assert stats.groups < 200


def test_several_event_loops(open_store, say):
    store = open_store()

    async def work(number: int) -> None:
        await asyncio.gather(*(store.acommit(say.add(f"l{number}-{item}")) for item in range(20)))
        await asyncio.gather(*(store.aread(say.names) for _ in range(20)))

    threads = [threading.Thread(target=lambda n=number: asyncio.run(work(n))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.read(say.names)) == 81
