"""Retention (§9) and the inbox (§8) as lists in plain Python, and a :class:`Pair` that plays both at once.

The model knows nothing of offsets, packed ids or triggers: it pops from the left while a cap is passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .schema_kit import TERMINAL, SchemaFile, padded

CAP_NAMES = (
    "max_runs_retained",
    "max_events_per_run",
    "max_event_bytes_per_run",
    "max_trace_events",
    "max_terminal_subagent_tasks",
)
CAP_VALUES = (0, 1, 2, 3, 7, 20, None)
REQUESTS = (None, None, "a", "b", "c", "d")


@dataclass
class Numbered:
    """An event that has its number in a stream, or waits under one."""

    number: int
    size: int
    stream: int = 0


@dataclass
class Stream:
    count: int = 0
    events: list[Numbered] = field(default_factory=list[Numbered])
    taken: int = 0
    dropped: int = 0


@dataclass
class Session:
    """What one session may keep, written from the contract's words."""

    channel: int
    owned: bool = True
    caps: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(CAP_NAMES))
    run_count: int = 0
    runs: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    superseded: set[int] = field(default_factory=set[int])
    streams: dict[int, Stream] = field(default_factory=dict[int, Stream])
    waiting: list[Numbered] = field(default_factory=list[Numbered])
    requests: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    traces: list[int] = field(default_factory=list[int])
    tasks: dict[str, int | None] = field(default_factory=dict[str, "int | None"])

    def __post_init__(self) -> None:
        self.streams[self.channel] = Stream()

    # ------------------------------------------------------------------ runs
    def is_live(self, run: int) -> bool:
        return run in self.runs and self.runs[run][1] not in TERMINAL and run not in self.superseded

    def start_run(self, run: int, resumed_from: int | None) -> None:
        if resumed_from is not None:
            self.superseded.add(resumed_from)
            self._judge([resumed_from])
        self.runs[run] = (self.run_count, "executing")
        self.streams[run] = Stream()
        self.run_count += 1
        self._judge(list(self.runs))

    def end_run(self, run: int, status: str) -> None:
        self.runs[run] = (self.runs[run][0], status)
        self._judge([run])

    def _judge(self, runs: Iterable[int]) -> None:
        cap = self.caps["max_runs_retained"]
        for run in runs:
            if cap is not None and self.runs[run][0] < self.run_count - cap and not self.is_live(run):
                del self.runs[run], self.streams[run]
                self.waiting = [w for w in self.waiting if w.stream != run]
                self.requests = {r: taken for r, taken in self.requests.items() if taken[0] != run}

    # ------------------------------------------------------------------ events
    def emit(self, name: int, size: int) -> None:
        """The owner numbers one event; for an evicted run nothing happens."""
        if (stream := self.streams.get(name)) is not None:
            number, stream.count = stream.count, stream.count + 1
            self._take(stream.events, Numbered(number, size, name))

    def outside(self, name: int, size: int, request: str | None) -> None:
        """Somebody else says something; it is appended at once only if nobody is home and nothing waits before it."""
        stream = self.streams.get(name)
        if stream is None or request in self.requests:
            return
        number, stream.taken = stream.taken, stream.taken + 1
        if request is not None:
            self.requests[request] = (name, number)
            self._forget_requests(name, number)
        queue = [w for w in self.waiting if w.stream == name]
        if not self.owned and not self.is_live(name) and not queue:
            self.emit(name, size)
            return
        new = Numbered(number, size, name)
        stream.dropped += self._take(queue, new)
        self.waiting = [w for w in [*self.waiting, new] if w.stream != name or w in queue]

    def _forget_requests(self, name: int, number: int) -> None:
        cap = self.caps["max_events_per_run"]
        if name == self.channel and cap is not None:
            gone = [r for r, (where, at) in self.requests.items() if where == name and at <= number - max(cap, 1)]
            for request in gone:
                del self.requests[request]

    def _take(self, window: list[Numbered], new: Numbered) -> int:
        """Put ``new`` into its window; return how many fell out of it, ``new`` included."""
        count_cap, byte_cap = self.caps["max_events_per_run"], self.caps["max_event_bytes_per_run"]
        fits = byte_cap is None or new.size <= byte_cap
        newest = new.number if fits else new.number - 1
        window.extend([new] if fits else [])
        before = len(window)
        while window and count_cap is not None and window[0].number <= newest - count_cap:
            window.pop(0)
        while window and byte_cap is not None and sum(e.size for e in window) > byte_cap:
            window.pop(0)
        return before - len(window) + (not fits)

    def drain(self, limit: int) -> None:
        for event in self.waiting[:limit]:
            self.emit(event.stream, event.size)
        self.waiting = self.waiting[limit:]

    # ------------------------------------------------------------------ traces and tasks
    def trace(self) -> None:
        self.traces.append(self.traces[-1] + 1 if self.traces else 0)
        cap = self.caps["max_trace_events"]
        while cap is not None and self.traces and len(self.traces) > cap:
            self.traces.pop(0)

    def task(self, task_id: str, finished_ms: int | None) -> None:
        """Start a task, or finish it; a late end changes nothing."""
        if self.tasks.get(task_id) is not None:
            return
        self.tasks[task_id] = finished_ms
        cap = self.caps["max_terminal_subagent_tasks"]
        while finished_ms is not None and cap is not None:
            done = [(at, list(self.tasks).index(t), t) for t, at in self.tasks.items() if at is not None]
            if len(done) <= cap:
                break
            del self.tasks[min(done)[2]]


class Pair:
    """The file and the model, doing the same. ``check`` compares all they keep."""

    def __init__(self, file: SchemaFile) -> None:
        self.file = file
        self.ids: dict[str, int] = {}
        self.models: dict[str, Session] = {}
        self.run_pks: dict[str, list[int]] = {}
        self.serial = 0
        for name in ("s", "t"):
            self._open(name)

    def _open(self, name: str) -> None:
        pk = self.ids[name] = self.file.session(name)
        self.models[name] = Session(-pk)
        self.run_pks[name] = []

    def delete_session(self, name: str) -> None:
        self.file.sql("DELETE FROM session WHERE session_id = ?", name)
        self._open(name)

    def set_cap(self, name: str, cap: str, value: int | None) -> None:
        self.models[name].caps[cap] = value
        self.file.set_caps(self.ids[name], **{cap: value})

    def claim(self, name: str, owned: bool) -> None:
        self.models[name].owned = owned
        self.file.claim(self.ids[name], "me" if owned else None)

    def start_run(self, name: str) -> None:
        """Start a run; if one is live, resume it, which supersedes it."""
        model = self.models[name]
        live = [run for run in model.runs if model.is_live(run)]
        self.serial += 1
        run = self.file.run(self.ids[name], f"run-{self.serial}", resumed_from=live[0] if live else None)
        self.run_pks[name].append(run)
        model.start_run(run, live[0] if live else None)

    def end_run(self, name: str, status: str) -> None:
        model = self.models[name]
        for run in [run for run in model.runs if model.is_live(run)]:
            self.file.end_run(run, status)
            model.end_run(run, status)

    def _stream(self, name: str, which: int) -> int:
        """The channel, or one of the latest runs, evicted or not."""
        return [-self.ids[name], *self.run_pks[name][-4:]][which % (1 + len(self.run_pks[name][-4:]))]

    def emit(self, name: str, which: int, size: int) -> None:
        stream = self._stream(name, which)
        self.file.event(self.ids[name], stream, padded(size))
        self.models[name].emit(stream, size)

    def outside(self, name: str, which: int, size: int, request: str | None) -> None:
        stream = self._stream(name, which)
        if stream < 0:
            whom = {"session_id": name}
        else:
            whom = {"run_id": self.file.one("SELECT run_id FROM run_identity WHERE run_pk = ?", stream)}
        self.file.event_in(payload=padded(size), request_id=request, **whom)
        self.models[name].outside(stream, size, request)

    def drain(self, name: str, limit: int) -> None:
        self.file.drain(self.ids[name], limit)
        self.models[name].drain(limit)

    def trace(self, name: str) -> None:
        self.file.trace(self.ids[name])
        self.models[name].trace()

    def task(self, name: str, task: int, finished_ms: int | None) -> None:
        """Start the task if it is unknown (finished at once when a time is given), else finish it."""
        task_id, model, pk = f"task-{task}", self.models[name], self.ids[name]
        status = "running" if finished_ms is None else ("completed", "failed", "cancelled")[finished_ms % 3]
        if task_id not in model.tasks:
            self.file.task(pk, task_id, status=status, finished_ms=finished_ms)
        elif finished_ms is not None:
            sql = """UPDATE task SET status = ?, finished_ms = ?,
                     fence = (SELECT fence FROM session WHERE session.session_pk = task.session_pk)
                     WHERE session_pk = ? AND task_id = ?"""
            if model.tasks[task_id] is not None:
                status = "failed" if status == "completed" else "completed"
                self.file.sql(f"{sql} AND status <> ?", status, finished_ms, pk, task_id, status)
            else:
                self.file.sql(sql, status, finished_ms, pk, task_id)
        else:
            return
        model.task(task_id, finished_ms)

    def random_step(self, random: Random) -> None:
        name, which, size = random.choice("st"), random.randrange(5), random.randrange(2, 12)
        steps: list[tuple[Any, ...]] = [
            (self.emit, which, size), (self.emit, which, size), (self.outside, which, size, random.choice(REQUESTS)),
            (self.outside, which, size, random.choice(REQUESTS)), (self.drain, random.randrange(1, 4)), (self.trace,),
            (self.start_run,), (self.end_run, random.choice(TERMINAL)), (self.claim, random.random() < 0.5),
            (self.task, random.randrange(9), random.choice((None, 1, 2, 3, 4, 5))),
            (self.set_cap, random.choice(CAP_NAMES), random.choice(CAP_VALUES)),
        ]  # fmt: skip
        step, *args = random.choice(steps)
        step(name, *args)

    # ------------------------------------------------------------------ comparing
    def check(self) -> None:
        for name, model in self.models.items():
            kept, expected = kept_by_file(self.file, self.ids[name]), kept_by_model(model)
            assert kept == expected, (name, kept, expected)


def kept_by_model(m: Session) -> dict[str, Any]:
    return {
        "runs": [(run, no, status) for run, (no, status) in m.runs.items()],
        "counts": (m.run_count, sum(at is not None for at in m.tasks.values())),
        "streams": {name: (s.count, s.taken, s.dropped) for name, s in m.streams.items()},
        "events": sorted((name, e.number, e.size) for name, s in m.streams.items() for e in s.events),
        "waiting": sorted((w.stream, w.number, w.size) for w in m.waiting),
        "requests": sorted((r, stream) for r, (stream, _) in m.requests.items()),
        "traces": m.traces,
        "tasks": sorted(m.tasks.items()),
    }


def kept_by_file(f: SchemaFile, pk: int) -> dict[str, Any]:
    streams = f.all(
        "SELECT stream_pk, event_count, waiting_count, waiting_dropped FROM stream WHERE session_pk = ?", pk
    )
    events = """SELECT e.stream_pk, e.sequence, e.bytes FROM event e JOIN stream t ON t.stream_pk = e.stream_pk
                WHERE t.session_pk = ? ORDER BY 1, 2"""
    return {
        "runs": f.all("SELECT run_pk, run_no, status FROM run WHERE session_pk = ? ORDER BY run_no", pk),
        "counts": f.all("SELECT run_count, terminal_tasks FROM session WHERE session_pk = ?", pk)[0],
        "streams": {name: tuple(counts) for name, *counts in streams},
        "events": f.all(events, pk),
        "waiting": f.all("SELECT stream_pk, waiting_no, bytes FROM inbox WHERE session_pk = ? ORDER BY 1, 2", pk),
        "requests": f.all("SELECT request_id, stream_pk FROM request WHERE session_pk = ? ORDER BY 1", pk),
        "traces": [n for (n,) in f.all("SELECT number FROM trace WHERE session_pk = ? ORDER BY number", pk)],
        "tasks": f.all("SELECT task_id, finished_ms FROM task WHERE session_pk = ? ORDER BY task_id", pk),
    }
