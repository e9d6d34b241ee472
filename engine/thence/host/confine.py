"""A session's folder as tools may see it: nothing outside, no device, no database file of ours, no secrets (§12, §8).

Where the system offers ``dir_fd``, each part of a path is opened relative to the folder before it and never through a
symbolic link; links are followed by hand, inside the folder only. So a folder that is swapped for a link between two
steps cannot lead outside. Elsewhere (Windows) the resolved path is checked, opened and compared.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from pathlib import PurePath

from .context import ToolContext

WALKS_BY_FOLDER = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
"""Paths are walked with ``dir_fd``; False means the check by resolved path."""

MAX_LINKS = 40
MAX_PARTS = 100

SECRET_NAMES = (
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "*.gpg", "*.env", "credentials*", "secret.*", "secrets.*", "_netrc", "htpasswd"),
    *("client_secret*.json", "service-account*.json", "service_account*.json", "*.tfstate"),
)
"""Names, lower-cased, that are left out like dot-files unless hidden ones are asked for."""

_SECRET = re.compile("|".join(translate(pattern) for pattern in SECRET_NAMES))

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# O_NONBLOCK: should a pipe take the file's place after the check, opening it returns at once.
_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "link"))


class Refused(Exception):
    """The path or pattern is refused; the message is for the model and names no path outside."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder. ``kind`` is ``file``, ``folder``, ``link`` or ``other``; ``size`` is in bytes."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries by name; how many were left out as hidden, secret or ours; whether the folder held more than the cap."""

    entries: tuple[Entry, ...]
    left_out: int
    partial: bool


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a path leads: ``name`` inside ``folder`` (a descriptor or a path), or the folder if ``name`` is ""."""

    folder: int | str
    name: str
    status: os.stat_result


def show(name: str) -> str:
    """A name or path on one line: as it is when that is unambiguous, else quoted with escapes."""
    if name.isprintable() and name == name.strip() and not name.startswith('"'):
        return name
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return '"' + "".join(each if each.isprintable() else _escape(each) for each in text) + '"'


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


class Tree:
    """The folder of one call. Every method takes paths as the model wrote them and raises :class:`Refused`."""

    def __init__(self, context: ToolContext, *, hidden: bool = False) -> None:
        self._root = os.path.abspath(context.workspace)
        self._forbidden: Callable[[], frozenset[tuple[int, int]]] = context.forbidden_files
        self._hidden = hidden

    def parts(self, path: str) -> tuple[str, ...]:
        """Split ``path`` into names, by its text alone; () is the workspace.

        Raises:
            Refused: ``..``, an absolute path outside, NUL, a lone surrogate, too many parts, a secret name.
        """
        if "\0" in path:
            raise Refused("a path cannot hold a NUL character")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise Refused("a path must be valid text") from None
        pure = PurePath(path)
        if ".." in pure.parts:
            raise Refused(f"{show(path)}: '..' is not allowed")
        if pure.anchor:
            pure = self._inside(pure, path)
        if os.name == "nt" and any(":" in part for part in pure.parts):
            raise Refused(f"{show(path)}: ':' is not allowed")
        if len(pure.parts) > MAX_PARTS:
            raise Refused(f"the path has more than {MAX_PARTS} parts")
        for part in pure.parts:
            self._check_name(part)
        return pure.parts

    @contextmanager
    def file(self, path: str) -> Generator[tuple[int, os.stat_result], None, None]:
        """Open a regular file for reading: (descriptor, status); closed at the end.

        Raises:
            Refused: the path leads outside or to nothing, or to what is not a regular file, or to a file of ours.
        """
        with self._at(self.parts(path), path) as spot:
            descriptor, status = self._open_file(spot, path)
        try:
            yield descriptor, status
        finally:
            self._close(descriptor, status)

    def is_folder(self, path: str) -> bool:
        """Whether ``path`` is a folder.

        Raises:
            Refused: it leads outside, or to nothing.
        """
        with self._at(self.parts(path), path) as spot:
            return stat.S_ISDIR(spot.status.st_mode)

    def entries(self, path: str, *, max_entries: int) -> Listing:
        """What a folder holds, sorted by name; at most ``max_entries`` names are looked at.

        Raises:
            Refused: not a folder of the workspace.
        """
        with self._at(self.parts(path), path) as spot:
            if not stat.S_ISDIR(spot.status.st_mode):
                raise Refused(f"{show(path)} is not a folder")
            return self._scan(spot.folder, max_entries)

    def _inside(self, pure: PurePath, path: str) -> PurePath:
        for root in (self._root, os.path.realpath(self._root)):
            if pure.is_relative_to(root):
                return pure.relative_to(root)
        raise Refused(f"{show(path)} is outside the workspace")

    def _check_name(self, name: str) -> None:
        if not self._hidden and is_hidden(name):
            raise Refused(f"{show(name)} is a hidden or secret name; such files are not shown")

    @contextmanager
    def _at(self, parts: tuple[str, ...], path: str) -> Generator[_Spot, None, None]:
        walk = self._walk if WALKS_BY_FOLDER else self._resolve
        try:
            with walk(parts, path) as spot:
                yield spot
        except OSError as error:
            raise Refused(f"{show(path)}: {error.strerror or type(error).__name__}") from None

    @contextmanager
    def _walk(self, parts: tuple[str, ...], path: str) -> Generator[_Spot, None, None]:
        chain = [self._open_root()]
        try:
            pending = list(reversed(parts))
            leaf, links = "", 0
            status = os.fstat(chain[0])
            while pending:
                name = pending.pop()
                if name == "..":
                    if len(chain) == 1:
                        raise Refused(f"{show(path)} leads outside the workspace")
                    os.close(chain.pop())
                    status = os.fstat(chain[-1])
                    continue
                self._check_name(name)
                status = os.stat(name, dir_fd=chain[-1], follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if links > MAX_LINKS:
                        raise Refused(f"{show(path)}: too many symbolic links")
                    absolute, target = self._target(os.readlink(name, dir_fd=chain[-1]), path)
                    while absolute and len(chain) > 1:
                        os.close(chain.pop())
                    pending.extend(reversed(target))
                    status = os.fstat(chain[-1])
                elif stat.S_ISDIR(status.st_mode):
                    chain.append(os.open(name, _FOLDER, dir_fd=chain[-1]))
                elif pending:
                    raise Refused(f"{show(path)}: a part of it is not a folder")
                else:
                    leaf = name
                if len(chain) > MAX_PARTS:
                    raise Refused(f"{show(path)}: too deep")
            yield _Spot(chain[-1], leaf, status)
        finally:
            for descriptor in chain:
                os.close(descriptor)

    def _open_root(self) -> int:
        # The host chose the workspace, so a link to it is followed; everything below is not trusted.
        try:
            return os.open(self._root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise Refused(f"the workspace cannot be opened: {error.strerror}") from None

    def _target(self, target: str, path: str) -> tuple[bool, list[str]]:
        names = [name for name in target.split("/") if name not in ("", ".")]
        if not target.startswith("/"):
            return False, names
        for root in (self._root, os.path.realpath(self._root)):
            above = [name for name in root.split("/") if name]
            if names[: len(above)] == above:
                return True, names[len(above) :]
        raise Refused(f"{show(path)} leads outside the workspace")

    @contextmanager
    def _resolve(self, parts: tuple[str, ...], path: str) -> Generator[_Spot, None, None]:
        root = os.path.realpath(self._root)
        if not os.path.isdir(root):
            raise Refused("the workspace cannot be opened: no such folder")
        real = os.path.realpath(os.path.join(root, *parts), strict=True)
        if not PurePath(real).is_relative_to(root):
            raise Refused(f"{show(path)} leads outside the workspace")
        for name in PurePath(real).relative_to(root).parts:
            self._check_name(name)
        status = os.stat(real, follow_symlinks=False)
        yield _Spot(real, "", status) if stat.S_ISDIR(status.st_mode) else _Spot(root, real, status)

    def _open_file(self, spot: _Spot, path: str) -> tuple[int, os.stat_result]:
        if not spot.name:
            raise Refused(f"{show(path)} is a folder")
        if not stat.S_ISREG(spot.status.st_mode):
            raise Refused(f"{show(path)} is not a regular file")
        # Asked after the stat: whatever file of ours existed then is in the answer.
        if _identity(spot.status) in self._forbidden():
            raise Refused(f"{show(path)} is a database file of this agent")
        descriptor = os.open(spot.name, _FILE, dir_fd=spot.folder if isinstance(spot.folder, int) else None)
        status = os.fstat(descriptor)
        if _identity(status) == _identity(spot.status) and stat.S_ISREG(status.st_mode):
            return descriptor, status
        self._close(descriptor, status)
        raise Refused(f"{show(path)} changed while it was being opened")

    def _close(self, descriptor: int, status: os.stat_result) -> None:
        # What became a database of ours meanwhile stays open on purpose: closing it would drop SQLite's locks.
        if _identity(status) not in self._forbidden():
            os.close(descriptor)

    def _scan(self, folder: int | str, max_entries: int) -> Listing:
        forbidden = self._forbidden()
        found: list[Entry] = []
        left_out = seen = 0
        with os.scandir(folder) as scan:
            for each in scan:
                if seen == max_entries:
                    return Listing(tuple(sorted(found, key=_by_name)), left_out, True)
                seen += 1
                try:
                    # On Windows an entry's own stat has no inode number.
                    status = each.stat(follow_symlinks=False) if isinstance(folder, int) else os.lstat(each.path)
                except FileNotFoundError:  # removed since: as good as never seen
                    continue
                if (not self._hidden and is_hidden(each.name)) or _identity(status) in forbidden:
                    left_out += 1
                    continue
                kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "other")
                found.append(Entry(each.name, kind, status.st_size))
        return Listing(tuple(sorted(found, key=_by_name)), left_out, False)


def is_hidden(name: str) -> bool:
    """A dot-file, or one of :data:`SECRET_NAMES` in any case."""
    return name.startswith(".") or _SECRET.match(name.lower()) is not None


def _by_name(entry: Entry) -> str:
    return entry.name


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
