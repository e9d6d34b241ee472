"""Text for a terminal: nothing that it would obey, tables that fit, JSON that is the same everywhere (§13)."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

from click import style as ansi
from tabulate import tabulate

# controls but newline and tab, what reorders a line, line breaks of Unicode's, and halves of a character
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_FILLER = "\ue000"
_DEFAULT_WIDTH = 80
_MIN_FLEXIBLE = 8


def visible(text: str) -> str:
    """``text`` with every control character but newline and tab written out, so that a terminal only shows it."""
    return _UNSAFE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    """``text`` without control characters, and each stretch of white space as one blank."""
    return " ".join(visible(text).split())


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """JSON of ``value``; what a terminal would obey is escaped, all else is as it is."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def width(text: str) -> int:
    """Columns that a terminal gives to a line."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, columns: int, *, keep_end: bool = False) -> str:
    """The beginning of a line, or its end, in at most ``columns`` columns."""
    # a character takes two columns at the most: a long text need not be measured whole
    head = text[-2 * columns - 2 :] if keep_end else text[: 2 * columns + 2]
    if len(head) == len(text) and width(text) <= columns:
        return text
    kept = list(head)
    used = width(head)
    while kept and used > columns - 1:
        used -= _columns(kept.pop(0 if keep_end else -1))
    return "…" + "".join(kept) if keep_end else "".join(kept) + "…"


def columns() -> int:
    """Width of the terminal; 80 where there is none."""
    return shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns


def table(
    rows: Sequence[Mapping[str, object]], *, flexible: str = "", right: Sequence[str] = (), keep_end: bool = False
) -> str:
    """A table of one-line cells; the column ``flexible`` is cut so that it fits the terminal.

    Args:
        rows: cells by column name; all rows have the same columns.
        right: columns to align at the right.
        keep_end: cut at the beginning.
    """
    names = list(rows[0])
    cells = [[one_line("" if row[name] is None else str(row[name])) for name in names] for row in rows]
    if flexible:
        place = names.index(flexible)
        others = (max(width(row[i]) for row in [names, *cells]) + 2 for i in range(len(names)) if i != place)
        room = max(_MIN_FLEXIBLE, columns() - sum(others))
        for row in cells:
            row[place] = clip(row[place], room, keep_end=keep_end)
    lines = [names, ["-" * max(width(row[i]) for row in [names, *cells]) for i in range(len(names))], *cells]
    made = tabulate(
        [[_padded(cell) for cell in row] for row in lines],
        tablefmt="plain",
        colalign=["right" if name in right else "left" for name in names],
        disable_numparse=True,
    )
    return "\n".join(line.replace(_FILLER, "").rstrip() for line in made.splitlines())


def _padded(cell: str) -> str:
    # it counts characters: one that takes two columns is given a second one until the table is made
    return "".join(char + _FILLER if _columns(char) == 2 else char for char in cell.replace(_FILLER, ""))


def fields(values: Mapping[str, object]) -> str:
    """``name  value`` lines; those without a value are left out, and long ones go on under their value."""
    shown = {name: visible(str(value)) for name, value in values.items() if value not in (None, "")}
    longest = max(map(len, shown), default=0) + 2
    return "\n".join(f"{name:<{longest}}{value}".replace("\n", "\n" + " " * longest) for name, value in shown.items())


def moment(ms: int) -> str:
    """A stored time as a person reads it, in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def clock(ms: int) -> str:
    """Time of day of a stored time, in UTC, with milliseconds."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def age(ms: int) -> str:
    """How long ago, in one short word."""
    seconds = max(0, time.time_ns() // 1_000_000 - ms) // 1000
    for size, unit in ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def count(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def styled(text: str, stream: IO[Any], **look: Any) -> str:
    """``text`` in a look (``dim``, ``bold``, ``fg``) if ``stream`` is a terminal that wants one (NO_COLOR)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else ansi(text, **look)
