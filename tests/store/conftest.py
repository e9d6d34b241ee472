"""Helpers for the store's tests: plans on the owner table, which needs no session, and real child processes."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from thence.plan import Op, Params, Plan, Query, Select
from thence.store.sqlite import SqliteStore

from ..nursery import Process, start

ENGINE = Path(__file__).resolve().parents[2] / "engine"

PRELUDE = """
import os, signal, sys, time
from thence.errors import *
from thence.plan import *
from thence.store.sqlite import SqliteStore
def add(name, durable=True, program="p"):
    return Plan((Op("owner_add", ({"owner": name, "pid": 1, "program": program, "since_ms": 0},)),), durable)
NAMES = Query((Select("owner_list", {}),), lambda found: sorted(row[0] for row in found[0]))
db = sys.argv[1]
"""


class Helper:
    """What the tests say to a store."""

    names: Query[list[str]] = Query((Select("owner_list", {}),), lambda found: sorted(row[0] for row in found[0]))
    twice: Query[bool] = Query((Select("owner_list", {}), Select("owner_list", {})), lambda found: found[0] == found[1])

    def add(self, *names: str, durable: bool = True, program: str = "p") -> Plan:
        rows: tuple[Params, ...] = tuple({"owner": name, "pid": 1, "program": program, "since_ms": 0} for name in names)
        return Plan((Op("owner_add", rows),), durable)

    def remove(self, name: str, expect: int | None = None, refusal: str = "REFUSED") -> Plan:
        return Plan((Op("owner_remove", ({"owner": name},), expect, refusal),))

    def spawn(self, code: str, *args: object, under: Sequence[str] = (), **options) -> Process:
        return start(
            ["-c", PRELUDE + code, *map(str, args)],
            under=under,
            env={**os.environ, "PYTHONPATH": str(ENGINE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def finish(self, children: list[Process]) -> list[str]:
        found = []
        for child in children:
            out, err = child.communicate(timeout=110)
            assert child.returncode == 0, err
            found.append(out)
        return found

    def run(self, code: str, *args: object, **options) -> str:
        child = self.spawn(code, *args, **options)
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        return out


@pytest.fixture
def say() -> Helper:
    return Helper()


@pytest.fixture
def open_store(tmp_path):
    """Opens stores, each with an owner name of its own, and closes them all."""
    opened: list[SqliteStore] = []
    numbers = itertools.count()

    def opening(path: Path | None | str = "default", **options) -> SqliteStore:
        where = tmp_path / "a.db" if path == "default" else path
        store = SqliteStore(where, options.pop("owner", f"me{next(numbers)}"), **options)
        opened.append(store)
        return store

    yield opening
    for store in opened:
        store.close()
