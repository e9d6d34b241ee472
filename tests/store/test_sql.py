"""The schema's own text, as the store reads it."""

from __future__ import annotations

import pytest

from thence.errors import StoreError
from thence.store.sql import APPLICATION_ID, load, parse
from thence.store.sqlite import SqliteStore


def test_statement_files():
    found = parse("-- head\n-- name: a\n-- why\nSELECT 1;\n\n-- name: b\nINSERT INTO t VALUES(:x)\n", "f.sql")
    assert [(one.name, one.sql, one.counts) for one in found] == [
        ("a", "SELECT 1", False),
        ("b", "INSERT INTO t VALUES(:x)", True),
    ]
    for bad in ("SELECT 1;\n-- name: a\nSELECT 1", "-- name: a\n-- only why\n"):
        with pytest.raises(StoreError, match=r"f\.sql"):
            parse(bad, "f.sql")


def test_a_name_twice(tmp_path):
    for name in ("tables.sql", "views.sql", "triggers.sql"):
        (tmp_path / name).touch()
    (tmp_path / "statements").mkdir()
    for name in ("a.sql", "b.sql"):
        (tmp_path / "statements" / name).write_text("-- name: x\nSELECT 1")
    with pytest.raises(StoreError, match="'x'"):
        load(tmp_path)


def test_the_application_id_is_in_the_header(tmp_path):
    SqliteStore(tmp_path / "a.db", "me").close()
    assert (tmp_path / "a.db").read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"THNC"
