"""Walking a session's folder for the workspace tools: limits, name patterns, sorted walks (§12)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import TypeAlias

from .confine import MAX_PARTS, Entry, Refused, Tree, show
from .context import ToolContext

MAX_PATTERN = 1000
"""Longest path pattern or regular expression, in characters."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one call. ``seconds`` on the monotonic clock, sizes in bytes, the others are counts."""

    seconds: float = 10.0
    scanned: int = 100_000
    listed: int = 1_000
    matches: int = 200
    shown_bytes: int = 30_000
    line_bytes: int = 2_000
    searched_line_bytes: int = 4_096
    searched_file_bytes: int = 8 * 1024 * 1024


class OutOfTime(Exception):
    """The call's time is up; what was found so far is the answer."""


class Patience:
    """A time limit, and the run's cancel check."""

    def __init__(self, context: ToolContext, seconds: float) -> None:
        self._context = context
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Return while there is time.

        Raises:
            OutOfTime: the time is up.
            ToolCancelled: nobody waits for the answer any more.
        """
        self._context.raise_if_cancelled()
        if time.monotonic() >= self._end:
            raise OutOfTime


class Answer:
    """Lines of an answer up to a number of UTF-8 bytes, and notes after them."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._lines: list[str] = []
        self._notes: list[str] = []

    def add(self, line: str) -> bool:
        """Add a line; False, and nothing added, when it does not fit."""
        self._left -= len(line.encode("utf-8", "replace")) + 1
        if self._left < 0:
            return False
        self._lines.append(line)
        return True

    def note(self, text: str) -> None:
        """Say ``text`` in brackets at the end."""
        self._notes.append(f"[{text}]")

    def left_out(self, count: int, what: str) -> None:
        """Say that ``count`` things are missing, if any are."""
        if count:
            self.note(f"left out: {count} {what}")

    def text(self) -> str:
        """Lines, then notes."""
        return "\n".join(self._lines + self._notes)


Positions: TypeAlias = frozenset[int]


class Pattern:
    """A path pattern, matched name by name: a folder that no match can lie in is never opened.

    Raises:
        Refused: empty, absolute, with ``..`` or NUL, or too long.
    """

    def __init__(self, pattern: str) -> None:
        pure = PurePath(pattern)
        if not pure.parts or len(pattern) > MAX_PATTERN or len(pure.parts) > MAX_PARTS or "\0" in pattern:
            raise Refused(f"a pattern has 1 to {MAX_PATTERN} characters and at most {MAX_PARTS} parts")
        if pure.anchor or ".." in pure.parts:
            raise Refused(f"{show(pattern)}: a pattern is relative to the workspace and has no '..'")
        self._names = pure.parts

    def start(self) -> Positions:
        """The positions before any name."""
        return self._closed({0})

    def step(self, positions: Positions, name: str) -> Positions:
        """The positions after ``name``; none when nothing can match any more."""
        after: set[int] = set()
        for position in positions:
            if position == len(self._names):
                continue
            wanted = self._names[position]
            if wanted == "**":
                after.add(position)
            elif fnmatchcase(name, wanted):
                after.add(position + 1)
        # A closing "**" stands for at least one name: "src/**" is what lies in src, not src.
        if self._names[-1] == "**" and len(self._names) - 1 in positions:
            after.add(len(self._names))
        return self._closed(after)

    def complete(self, positions: Positions) -> bool:
        """Whether the names so far match."""
        return len(self._names) in positions

    def goes_on(self, positions: Positions) -> bool:
        """Whether a longer path can match."""
        return bool(positions - {len(self._names)})

    def _closed(self, positions: set[int]) -> Positions:
        reached = set(positions)
        for position in range(len(self._names) - 1):
            if position in reached and self._names[position] == "**":
                reached.add(position + 1)
        return frozenset(reached)


class Walk:
    """One walk below a folder: sorted, links not followed, at most ``bounds.scanned`` entries looked at."""

    def __init__(self, tree: Tree, patience: Patience, bounds: Bounds) -> None:
        self._tree = tree
        self._patience = patience
        self._bounds = bounds
        self._scanned = self._hidden = self._unread = 0
        self._partial = False

    def run(self, start: str, pattern: Pattern) -> Iterator[tuple[str, Entry]]:
        """Yield (path, entry) of each match; a folder comes before what it holds.

        Raises:
            Refused: ``start`` is not a folder of the workspace.
            OutOfTime, ToolCancelled: see :class:`Patience`.
        """
        prefix = "" if start in ("", ".") else start.rstrip("/") + "/"
        stack = [(prefix, iter(self._entries(start)), pattern.start())]
        while stack:
            prefix, entries, positions = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            self._patience.check()
            after = pattern.step(positions, entry.name)
            path = prefix + entry.name
            if pattern.complete(after):
                yield path, entry
            if entry.kind == "folder" and pattern.goes_on(after):
                try:
                    stack.append((path + "/", iter(self._entries(path)), after))
                except Refused:
                    self._unread += 1

    def explain(self, answer: Answer) -> None:
        """Note on ``answer`` what the walk left out."""
        answer.left_out(self._hidden, "hidden or protected entries")
        answer.left_out(self._unread, "folders that could not be read")
        if self._partial:
            answer.note(f"more than {self._bounds.scanned} entries; only these were looked at")

    def _entries(self, path: str) -> tuple[Entry, ...]:
        listing = self._tree.entries(path, max_entries=self._bounds.scanned - self._scanned)
        self._scanned += len(listing.entries) + listing.left_out
        self._hidden += listing.left_out
        self._partial = self._partial or listing.partial
        return listing.entries
