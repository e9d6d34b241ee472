"""What the door for other programs lets in, and what it refuses by name (§8): texts, times, lengths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .schema_kit import SchemaFile, refused

LATIN, CUT = b'{"a":"caf\xe9"}', b'{"a":"\xe2\x82"}'
"""What is no UTF-8: the first SQLite can tell, the second it cannot."""


@pytest.fixture
def file() -> Iterator[SchemaFile]:
    made = SchemaFile()
    yield made
    made.db.close()


def as_text(file: SchemaFile, data: bytes) -> None:
    """Leave a text that is none in ``temp.words``: Python itself would not bind it."""
    file.sql("CREATE TEMP TABLE IF NOT EXISTS words(x)")
    file.sql("DELETE FROM words")
    file.sql("INSERT INTO words VALUES(CAST(? AS TEXT))", data)


def test_what_is_no_utf8_is_refused_by_name_where_sqlite_can_tell(file: SchemaFile) -> None:
    file.session("s", owner=None)
    for number, columns in enumerate(("'t', x, NULL", "x, '{}', NULL", "'t', '{}', x")):
        say = f"INSERT INTO event_in(session_id, type, payload, request_id) SELECT 's', {columns} FROM temp.words"
        as_text(file, LATIN)
        with refused("BAD_INPUT type, payload and request_id must be UTF-8"):
            file.sql(say)
        assert file.count("event") == number
        as_text(file, CUT)
        file.sql(say)


def test_what_is_utf8_is_never_refused(file: SchemaFile) -> None:
    file.session("s", owner=None)
    for character in ("\ufffd", "\ufffe", "\uffff", "é", "€", "😀"):
        for said in (
            {"type": character},
            {"payload": f'{{"{character}":1}}'},
            {"request_id": character},
        ):
            file.event_in(session_id="s", **said)
    assert file.count("event") == 18
