"""What nobody may do to our tables, however well the statement is made: each would cost somebody a session (§4, §8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .schema_kit import SchemaFile
from .test_schema_log import VERBS, all_refused, with_log


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def test_a_session_names_its_blobs_as_long_as_it_lives(file: SchemaFile) -> None:
    first, second = file.session("s"), file.session("t")
    for sha in ("aa", "bb"):
        file.insert("blob", sha256=sha, size=1, bytes=b"a")
        file.insert("blob_ref", session_pk=first, sha256=sha)
    file.insert("blob_ref", session_pk=second, sha256="aa")
    for recursive in (True, False):
        file.sql(f"PRAGMA recursive_triggers = {recursive:d}")
        all_refused(file, "FACT_CONFLICT", [
            "DELETE FROM blob_ref", f"DELETE FROM blob_ref WHERE session_pk = {second}",
            *(f"UPDATE {clause} blob_ref SET sha256 = 'cc'" for clause in ("", "OR IGNORE", "OR REPLACE")),
            f"UPDATE OR REPLACE blob_ref SET session_pk = {second} WHERE session_pk = {first}",
        ])  # fmt: skip
    file.sql("DELETE FROM session WHERE session_id = 's'")
    assert file.all("SELECT session_pk, sha256 FROM blob_ref") == [(second, "aa")]
    assert file.all("SELECT sha256 FROM blob") == [("aa",)]
