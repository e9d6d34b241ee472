"""Lines of files for the workspace tools: reading a part, and searching (§12).

Lines are matched by a linear-time engine and cut at a length, files at a size: no pattern that a model can write
keeps the process busy for longer than one line takes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import BinaryIO

from .browse import MAX_PATTERN, Answer, Bounds, OutOfTime, Patience
from .confine import Refused, Tree, show

_SNIFFED_BYTES = 8192
_PIECE = 1 << 16


class Search:
    """The matching lines of files, up to ``bounds.matches``."""

    def __init__(self, tree: Tree, matches: Callable[[str], bool], bounds: Bounds, patience: Patience) -> None:
        self.answer = Answer(bounds.shown_bytes)
        self._tree = tree
        self._matches = matches
        self._bounds = bounds
        self._patience = patience
        self._found = self._binary = self._large = self._unread = self._cut_lines = 0
        self._full = False

    def walked_file(self, path: str) -> bool:
        """As :meth:`file`, but a file that cannot be opened is only counted."""
        try:
            return self.file(path)
        except (Refused, OSError):
            self._unread += 1
            return True

    def file(self, path: str) -> bool:
        """Search one file; False when no more matches are taken.

        Raises:
            Refused: the file cannot be opened.
            OutOfTime, ToolCancelled: see :class:`Patience`.
        """
        with self._tree.file(path) as (descriptor, status), open(descriptor, "rb", closefd=False) as file:
            if status.st_size > self._bounds.searched_file_bytes:
                self._large += 1
                return True
            if is_binary(file):
                self._binary += 1
                return True
            for number, (raw, size) in enumerate(_lines(file, self._bounds.searched_line_bytes, self._patience), 1):
                self._cut_lines += size > len(raw)
                line = decoded(raw, whole=size == len(raw)).rstrip("\r\n")
                if self._matches(line) and not self._take(f"{show(path)}:{number}: {line}"):
                    self._full = True
                    return False
        return True

    def explain(self) -> None:
        """Note on the answer what was left out."""
        bounds = self._bounds
        if self._full:
            self.answer.note(f"more than {self._found} matches; the rest is not shown")
        elif not self._found:
            self.answer.note("no match")
        self.answer.left_out(self._binary, "binary files")
        self.answer.left_out(self._large, f"files of more than {bounds.searched_file_bytes} bytes")
        self.answer.left_out(self._unread, "files that could not be opened")
        self.answer.left_out(self._cut_lines, f"line ends beyond {bounds.searched_line_bytes} bytes")

    def _take(self, line: str) -> bool:
        raw = line.encode("utf-8", "replace")
        if len(raw) > self._bounds.line_bytes:
            line = decoded(raw[: self._bounds.line_bytes], whole=False) + " [line cut]"
        taken = self._found < self._bounds.matches and self.answer.add(line)
        self._found += taken
        return taken


def line_matcher(pattern: str) -> Callable[[str], bool]:
    """Compile a regular expression into a test of one line, linear in the line's length.

    The engine is the one that pydantic checks string patterns with: no look-around, no back-references. Python's own
    ``re`` would let ``(a+)+$`` hold the interpreter, and with it every thread, for years.

    Raises:
        Refused: not a regular expression of that kind, or too large.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if len(pattern) > MAX_PATTERN:
        raise Refused(f"a pattern has at most {MAX_PATTERN} characters")
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        # Its first lines frame the engine's message, whose last line says what is wrong.
        reason = str(error).strip().splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
        raise Refused(f"bad regular expression: {reason}") from None
    return validator.isinstance_python


def is_binary(file: BinaryIO) -> bool:
    """Whether the first 8 KiB hold NUL, or more than a tenth of them is not UTF-8. Rewinds the file."""
    sample = file.read(_SNIFFED_BYTES)
    file.seek(0)
    return b"\0" in sample or decoded(sample, whole=False).count("\ufffd") * 10 > len(sample)


def read_lines(file: BinaryIO, offset: int, limit: int, bounds: Bounds, patience: Patience) -> str:
    """Return ``limit`` lines after the first ``offset``, and a note saying where to go on.

    Raises:
        OutOfTime: before anything was found.
        ToolCancelled: see :class:`Patience`.
    """
    taken: list[str] = []
    room, count, bad = bounds.shown_bytes, 0, False
    try:
        for raw, size in _lines(file, bounds.line_bytes, patience):
            count += 1
            if count <= offset:
                continue
            if taken and len(raw) > room:
                return _ended(taken, f"more follows; go on with offset={count - 1}", bad)
            text = decoded(raw, whole=size == len(raw))
            bad = bad or "\ufffd" in text
            taken.append(text if size == len(raw) else f"{text} [line cut: {size} bytes in all]\n")
            room -= len(raw)
            if len(taken) == limit and file.read(1):
                return _ended(taken, f"more follows; go on with offset={count}", bad)
    except OutOfTime:
        if not taken:
            raise
        return _ended(taken, f"out of time; go on with offset={count}", bad)
    if not taken:
        return "[empty file]" if count == 0 else f"[nothing at offset {offset}: the file has {count} lines]"
    return _ended(taken, f"end of file, {count} lines" if offset else "", bad)


def _ended(taken: list[str], note: str, bad: bool) -> str:
    text = "".join(taken)
    notes = [note] if note else []
    if bad:
        notes.append("bytes that are not UTF-8 are shown as \ufffd")
    if notes and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(f"[{each}]" for each in notes)


def _lines(file: BinaryIO, max_bytes: int, patience: Patience) -> Iterator[tuple[bytes, int]]:
    """Each line as (its first ``max_bytes``, its whole length); memory stays bounded, whatever the file."""
    while line := file.readline(max_bytes):
        patience.check()
        size, piece = len(line), line
        while not piece.endswith(b"\n") and (piece := file.readline(_PIECE)):
            patience.check()
            size += len(piece)
        yield line, size


def decoded(raw: bytes, *, whole: bool) -> str:
    """UTF-8 with U+FFFD for bad bytes; a character cut at the end is dropped unless ``raw`` is ``whole``."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, whole)
