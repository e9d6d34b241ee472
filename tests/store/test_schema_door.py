"""What the door for other programs lets in, and what it refuses by name (§8): texts, times, lengths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thence.host.operations import check_event
from thence.identity import MAX_EVENT_TYPE_BYTES, MAX_REQUEST_ID_BYTES

from .schema_kit import SchemaFile, refused

LATIN, CUT = b'{"a":"caf\xe9"}', b'{"a":"\xf0\x9f\x98"}'
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


BAD_NAMES = ("", " ", "  ", "\0", "a\0", "\0a", "a\nb", "\n\t", "\x01", "\x1f", "a\x7f", "\x80", "é\x9f")
GOOD_NAMES = ("a", " a ", "é", "a b", "\xa0", "€", "😀", "-", "]", "^")


def test_names_have_a_length_and_no_control_characters(file: SchemaFile) -> None:
    """No cap counts them: without a length of their own the file could grow without end."""
    file.session("s", owner=None)
    before = file.dump()
    for field, most in (("type", MAX_EVENT_TYPE_BYTES), ("request_id", MAX_REQUEST_ID_BYTES)):
        for name in (*BAD_NAMES, "x" * (most + 1), "é" * (most // 2) + "x", "x" * most + "\0"):
            with refused(f"BAD_INPUT {field}"):
                file.event_in(session_id="s", **{field: name})
            assert file.dump() == before, (field, name)
    for field, most in (("type", MAX_EVENT_TYPE_BYTES), ("request_id", MAX_REQUEST_ID_BYTES)):
        for name in (*GOOD_NAMES, "x" * most, "é" * (most // 2)):
            file.event_in(session_id="s", **{field: name})
    assert file.count("event") == 2 * (len(GOOD_NAMES) + 2)


def test_the_library_takes_the_same_names() -> None:
    for name in (*BAD_NAMES, "x" * 201, "é" * 101):
        with pytest.raises(ValueError, match="type"):
            check_event({"type": name, "payload": {}})
    for name in ("a", " a ", "é", "€", "😀", "x" * 200, "é" * 100):
        assert check_event({"type": name, "payload": {}}).type == name


def test_a_time_is_one_that_a_calendar_has(file: SchemaFile) -> None:
    """Times of a stream never go back: one far ahead would be that of everything said later."""
    file.session("s", owner=None)
    for ts_ms in (-1, -(2**63), 253_402_300_800_000, 2**63 - 1):
        with refused("BAD_INPUT ts_ms"):
            file.event_in(session_id="s", ts_ms=ts_ms)
    for ts_ms in (0, 253_402_300_799_999):
        file.event_in(session_id="s", ts_ms=ts_ms)
    assert file.all("SELECT at FROM events") == [("1970-01-01T00:00:00.000Z",), ("9999-12-31T23:59:59.999Z",)]
