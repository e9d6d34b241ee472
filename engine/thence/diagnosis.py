"""What a look at a file and at this process finds out about their health (§6, §8, §13). Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

LARGE_WAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """A process that runs, or ran, sessions here.

    Attributes:
        owner: its name, as in the file ``<db>-owner-<owner>``.
        pid, program, since_ms: what it said of itself when it came; for people, never relied on.
        life: whether it holds its kernel lock; unknown when its lock file cannot be asked.
    """

    owner: str
    pid: int
    program: str
    since_ms: int
    life: Literal["alive", "dead", "unknown"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found; nothing was changed.

    Attributes:
        path: the file; None in memory.
        sqlite_version: of the linked SQLite.
        file_bytes, wal_bytes: sizes of the file and of its write-ahead log.
        owners: processes that are registered in the file.
        wal_reset_bug: the linked SQLite can lose commits to a checkpoint beside a writer. thence guards its own
            checkpoints against it; other programs on the file must not checkpoint.
        journal_mode: ``wal``; ``memory`` for an agent without a file; ``unknown`` in a folder that cannot be written.
        interrupted_runs: unfinished runs whose process died or let them go: they can be resumed.
        orphaned_runs: those of them whose process died.
        waits_open: questions that nobody has answered.
        inbox: orders, messages and events that wait for an owner.
        stuck_guard_threads: guard calls of this process that are past their time limit and still running; None for a
            file that is only looked at.
        problems: what somebody should see to, in words; empty when all is well.
    """

    path: str | None
    sqlite_version: str
    wal_reset_bug: bool
    journal_mode: str
    file_bytes: int
    wal_bytes: int
    owners: tuple[OwnerSeen, ...]
    interrupted_runs: int
    orphaned_runs: int
    waits_open: int
    inbox: int
    stuck_guard_threads: int | None
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON."""
        return asdict(self)


def problems(
    *, journal_mode: str, wal_bytes: int, owners: tuple[OwnerSeen, ...], orphaned_runs: int, stuck: int | None
) -> tuple[str, ...]:
    """What of the findings somebody should see to. Pure."""
    found: list[str] = []
    if journal_mode not in ("wal", "memory", "unknown"):
        found.append(f"the journal mode is '{journal_mode}', not WAL: other processes cannot read while one writes")
    if wal_bytes > LARGE_WAL_BYTES:
        mib = wal_bytes // (1024 * 1024)
        found.append(f"the -wal is {mib} MiB: some reader holds an old snapshot, or nobody has folded it back")
    if orphaned_runs:
        found.append(
            f"runs of processes that died: {orphaned_runs}; the program that began one goes on with it "
            f"(agent.recover()), 'thence resume --all' only with those that were begun by 'thence run'"
        )
    unknown = sum(one.life == "unknown" for one in owners)
    if unknown:
        found.append(f"owners whose lock files cannot be asked: {unknown}; whether they live is not known")
    if stuck:
        found.append(f"guard calls that are past their time limit and still running: {stuck}")
    return tuple(found)
