"""A turn as its user sees it: how it ended, or was left, and what to type then (§13)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import click

from ..errors import GateClosed, RunInterrupted, SessionBusy, ThenceError
from ..host.env import HostEnv
from ..results import SendResult
from ..runs import Run
from ..session import Session
from .asking import say_lines
from .errors import CANNOT_WRITE, FAILED, INTERRUPTED, abandon_stdout, complain, exit_code, result_code
from .looking import looking
from .options import Settings
from .printing import Printer
from .summary import about, tokens_text
from .text import count, json_text


def new_run_id() -> str:
    """An id for a run that is about to begin: whoever is interrupted can then say whether it did."""
    return f"run-{HostEnv().id_generator.next_id()}"


@contextmanager
def nothing_started(settings: Settings) -> Generator[None]:
    """Ctrl-C in here came before any run began, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        tell_nothing_started(settings)
        click.get_current_context().exit(INTERRUPTED)


def tell_nothing_started(settings: Settings, *, hint: str = "", session_id: str | None = None) -> None:
    """The user was faster than the run."""
    as_json = settings.form != "text"
    said = "interrupted before a run began: nothing was started"
    complain("RUN_INTERRUPTED", said, as_json=as_json, hint=hint, session_id=session_id)


@dataclass(slots=True)
class Seen:
    """Which run it is. ``run_id``: of the run that was, or is to be, begun."""

    run_id: str | None = None


@dataclass(slots=True)
class Shown:
    """A turn as its user sees it, from the first event to how it ended and what to do then.

    Attributes:
        again: options that a resume needs too, because they were given.
        resumes: the run that this one goes on from.
    """

    settings: Settings
    session: Session
    again: tuple[str, ...] = ()
    resumes: str | None = None
    printer: Printer = field(default_factory=Printer)
    seen: Seen = field(default_factory=Seen)

    def until_end(self, work: Callable[[Shown], SendResult]) -> int:
        """Do it, and tell how it ended; the exit code."""
        try:
            result = work(self)
        except KeyboardInterrupt:
            return self._tell_left("", INTERRUPTED)
        except BrokenPipeError:
            abandon_stdout()
            return self._tell_left("whoever read the output has left: ", INTERRUPTED)
        except OSError as error:
            if error.errno not in CANNOT_WRITE:
                raise
            abandon_stdout()
            return self._tell_left(f"the output could not be written ({error.strerror}): ", FAILED)
        except RunInterrupted as error:
            # ours, interrupted by somebody else; or an earlier one, and ours never began
            ours = error.run_id == self.seen.run_id
            self.printer.end_line()
            whose = "the run" if ours else "the session's last run"
            hint = self._hints(resume=error.run_id)
            self._complain(error.code, f"{whose}, {error.run_id}, was interrupted", hint, error.run_id)
            return INTERRUPTED if ours else FAILED
        except ThenceError as error:
            self.printer.end_line()
            hint = self._hints(show=error.run_id, resume=error.run_id if error.resumable else None)
            if isinstance(error, SessionBusy) and self.resumes is not None:
                hint = self._busy_hint(self.resumes)
            if isinstance(error, GateClosed) and error.run_id is not None:
                hint += f"\nor waive it: {self.settings.command('waive', error.run_id, '--reason')} TEXT"
            self._complain(error.code, str(error), hint, error.run_id)
            return exit_code(error)
        self._tell_end(result)
        return result_code(result)

    def _complain(self, code: str, message: str, hint: str, run_id: str | None) -> None:
        as_json = self.settings.form != "text"
        complain(code, message, as_json=as_json, hint=hint, session_id=self.session.session_id, run_id=run_id)

    def _tell_end(self, result: SendResult) -> None:
        settings, printer = self.settings, self.printer
        if settings.form == "json":
            click.echo(json_text({"session_id": self.session.session_id, **result.to_dict()}))
        elif settings.form == "text":
            printer.note(f"{result.status}: {count(result.tool_calls_count, 'call')}, {self._tokens(result)}")
            if result.status == "parked":
                self._tell_parked(result)
                return
            further = settings.command("run", "-s", self.session.session_id, *self.again)
            printer.note(f"go on: {further} PROMPT", cut=False)

    def _tokens(self, result: SendResult) -> str:
        run = self.session.run_snapshot(result.run_id)
        usage = result.usage
        unknown = 0 if run is None else run.requests_without_usage
        # without a number, "unknown" alone would not say what
        word = "" if usage.total_tokens or not unknown else "tokens "
        return word + tokens_text(count(usage.total_tokens, "token"), usage, unknown)

    def _tell_parked(self, result: SendResult) -> None:
        command = self.settings.command
        for wait in result.waits:
            self.printer.note(f"waits for {wait.kind.replace('_', ' ')} {wait.id}: {about(wait)}")
            self.printer.note(f"  see:  {command('waits', wait.id, '-s', wait.session_id)}", cut=False)
            for line in say_lines(self.settings, wait):
                self.printer.note(f"  {line}", cut=False)
        self.printer.note(f"go on:  {command('resume', result.run_id, *self.again)}", cut=False)

    def _tell_left(self, why: str, code: int) -> int:
        """The turn was left: say where it stands, and how to go on; the exit code."""
        with suppress(ThenceError):
            # whatever was on its way has let go of the session then, and the file tells how far it came
            self.session.close()
        found = self._find_run()
        if found is None:
            hint = self._hints(resume=self.resumes)
            tell_nothing_started(self.settings, hint=hint, session_id=self.session.session_id)
        elif found.is_terminal:
            said = f"{why}run {found.id} has ended ({found.status})"
            self._complain("RUN_INTERRUPTED", said, self._hints(show=found.id), found.id)
        else:
            state = "is parked as before" if found.status == "parked" else "was interrupted"
            hint = self._hints(show=found.id, resume=found.id)
            self._complain("RUN_INTERRUPTED", f"{why}run {found.id} {state}", hint, found.id)
        return code

    def _find_run(self) -> Run | None:
        if self.seen.run_id is None:
            return None
        with looking(self.settings.path) as look:
            return look.find_run(self.seen.run_id)

    def _hints(self, *, show: str | None = None, resume: str | None = None) -> str:
        """What to type next."""
        command = self.settings.command
        lines = [f"look at it:  {command('show', show)}"] if show else []
        if resume:
            lines.append(f"resume it:   {command('resume', resume, *self.again)}")
            closing = command("run", "-s", self.session.session_id, "--settle", *self.again, "Go on.")
            lines.append(f"or close it: {closing}")
        return "\n".join(lines)

    def _busy_hint(self, run_id: str) -> str:
        command = self.settings.command
        return f"follow it:   {command('tail', run_id)}\nif stuck:    {command('resume', run_id, '--force')}"
