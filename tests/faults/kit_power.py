"""What a disk may hold after a power cut, from the log that `record.c` writes.

Two models. ``strict``: what POSIX promises and no more: data of a file is safe once that file was synced, a name once
its folder was, each by itself. ``ext4``: names, removals and lengths go through one journal, in order; syncing a file
whose length or name is new writes the journal up to there.

In both, data that was not synced may be there or not, write by write, or in pieces of 512 bytes.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Model = Literal["strict", "ext4"]

MODES = ("none", "subset", "torn", "all", "names only", "data only")
"""What of the un-synced is kept: nothing, some writes, some sectors, everything, only names, only data."""

SECTOR = 512
_HEAD = struct.Struct("<cHQQQ")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the process did: ``op`` is w(rite), s(ync), d (folder synced), t(runcate), c(reate), u(nlink),
    r(ename) or a (a mark)."""

    op: str
    name: str
    inode: int
    offset: int
    data: bytes


def read_log(path: Path) -> list[Step]:
    """The steps of a recorded process, in order."""
    raw = path.read_bytes()
    steps: list[Step] = []
    at = 0
    while at < len(raw):
        op, name_len, inode, offset, data_len = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        name = raw[at : at + name_len].decode().removesuffix(" (deleted)")
        data = raw[at + name_len : at + name_len + data_len]
        at += name_len + data_len
        # the -shm is shared memory: it is made anew from the -wal
        if not name.endswith("-shm"):
            steps.append(Step(op.decode(), name, inode, offset, data))
    return steps


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    pending: list[Step] = field(default_factory=list[Step])
    length: int = 0
    grows: bool = True

    def apply(self, step: Step) -> None:
        _apply(self.data, step)


def _apply(data: bytearray, step: Step) -> None:
    if step.op == "t":
        del data[step.offset :]
        data.extend(bytes(step.offset - len(data)))
        return
    data.extend(bytes(max(0, step.offset - len(data))))
    data[step.offset : step.offset + len(step.data)] = step.data


@dataclass(frozen=True, slots=True)
class Cut:
    """One crash state: what is on the disk, and what had been promised and done by then."""

    step: int
    mode: str
    files: dict[str, bytes]
    marks: list[dict[str, Any]]

    def lay_out(self, folder: Path) -> None:
        """Make ``folder`` hold this state and nothing else."""
        for entry in os.scandir(folder):
            os.unlink(entry.path)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


class Disk:
    """Follows the steps; :meth:`cut` says what may be left if the power goes now."""

    def __init__(self, model: Model, *, folder_syncs: bool = True) -> None:
        self.model, self.marks = model, list[dict[str, Any]]()
        self._folder_syncs = folder_syncs
        self._files: dict[int, _File] = {}
        self._names: dict[str, _File] = {}
        self._now: dict[str, _File] = {}
        self._waiting: list[Step] = []

    def do(self, step: Step) -> None:
        """The process did ``step``."""
        if step.op == "a":
            self.marks.extend(json.loads(line) for line in step.data.splitlines())
        elif step.op == "d":
            if self._folder_syncs:
                self._write_journal()
        elif step.op in "cur":
            if step.op == "c":
                self._files[step.inode] = _File()
            self._rename(self._now, step)
            self._waiting.append(step)
        elif step.op == "s":
            self._sync(self._files[step.inode])
        else:
            self._change(self._files[step.inode], step)

    def _change(self, file: _File, step: Step) -> None:
        end = step.offset if step.op == "t" else max(file.length, step.offset + len(step.data))
        file.grows = file.grows or end != file.length
        file.length = end
        file.pending.append(step)

    def _sync(self, file: _File) -> None:
        for step in file.pending:
            file.apply(step)
        file.pending.clear()
        if self.model == "ext4" and file.grows:
            self._write_journal()
        file.grows = False

    def _write_journal(self) -> None:
        for step in self._waiting:
            self._rename(self._names, step)
        self._waiting.clear()

    def _rename(self, names: dict[str, _File], step: Step) -> None:
        if step.op == "c":
            names[step.name] = self._files[step.inode]
        elif step.op == "u":
            names.pop(step.name, None)
        else:
            moved = names.pop(step.name, None)
            if moved is not None:
                names[step.data.decode()] = moved

    def cut(self, number: int, mode: str, rng: random.Random) -> Cut:
        """What is left of the power goes after step ``number``."""
        names = dict(self._names)
        for step in self._kept_names(mode, rng):
            self._rename(names, step)
        files = {name: self._contents(file, mode, rng) for name, file in names.items()}
        return Cut(number, mode, files, list(self.marks))

    def _kept_names(self, mode: str, rng: random.Random) -> list[Step]:
        if mode in ("none", "data only"):
            return []
        if mode in ("all", "names only"):
            return self._waiting
        if self.model == "ext4":
            return self._waiting[: rng.randint(0, len(self._waiting))]
        return [step for step in self._waiting if rng.random() < 0.5]

    def _contents(self, file: _File, mode: str, rng: random.Random) -> bytes:
        if not file.pending or mode in ("none", "names only"):
            return bytes(file.data)
        data = bytearray(file.data)
        for step in file.pending:
            if mode in ("all", "data only") or (mode == "subset" and rng.random() < 0.5):
                _apply(data, step)
            elif mode == "torn" and rng.random() < 0.7:
                for piece in _sectors(step, rng):
                    _apply(data, piece)
        return bytes(data)


def _sectors(step: Step, rng: random.Random) -> Iterator[Step]:
    if step.op == "t":
        yield step
        return
    for at in range(0, len(step.data), SECTOR):
        if rng.random() < 0.6:
            yield Step("w", step.name, step.inode, step.offset + at, step.data[at : at + SECTOR])


def choose(steps: list[Step], number: int, rng: random.Random) -> list[tuple[int, str]]:
    """``number`` places and modes to cut at, in order. Half are just after a mark, where a promise is freshest."""
    marks = [at for at, step in enumerate(steps) if step.op == "a"]
    places: list[tuple[int, str]] = []
    for turn in range(number):
        at = rng.choice(marks) if turn % 2 else rng.randrange(len(steps))
        places.append((at, "none" if turn % 4 == 1 else rng.choice(MODES)))
    return sorted(places)


def cuts(steps: list[Step], model: Model, number: int, seed: int, *, folder_syncs: bool = True) -> Iterator[Cut]:
    """``number`` crash states of a recorded life. ``folder_syncs=False`` forgets that the folder was ever synced."""
    rng = random.Random(seed)
    disk = Disk(model, folder_syncs=folder_syncs)
    done = 0
    for at, mode in choose(steps, number, rng):
        while done <= at:
            disk.do(steps[done])
            done += 1
        yield disk.cut(at, mode, rng)
