"""The commands in one group, and how each of them ends (§13)."""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from .demo import demo
from .doctoring import doctor
from .errors import complain, reported
from .following import tail
from .gate import waive
from .options import Settings, common
from .reading import events, facts, ls, runs, trace
from .resuming import resume
from .running import run
from .showing import show
from .steering import steer
from .stopping import cancel, interrupt
from .summing import stats, usage
from .waiting import answer, approve, reject, waits


class App(click.Group):
    """A group that ends with the exit codes of §13, and complains in JSON when JSON was asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command's name."""
        before_dashes = args[: args.index("--")] if "--" in args else args
        ctx.meta["as_json"] = bool({"--json", "--nl"} & set(before_dashes))
        if not ctx.meta["as_json"]:
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            complain("USAGE", error.format_message(), as_json=True)
            ctx.exit(error.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        ctx.ensure_object(Settings)
        with reported(ctx, as_json=ctx.meta["as_json"]):
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer needs them."""
        del ctx
        return list(self.commands)


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@common
@click.version_option(__version__, message="thence %(version)s")
def cli() -> None:
    """Long-lived LLM-agent sessions in one SQLite file: run them, and look at what happened.

    Commands that read never write, also while a run is live. Exit codes: 0 done, 1 failed, 2 usage, 3 not found,
    4 busy or taken over, 5 denied by a budget, 6 doctor found a problem, 8 parked, 130 interrupted.
    """


COMMANDS = (
    *(demo, run, resume, waits, approve, reject, answer, steer, interrupt, cancel, waive),
    *(ls, show, runs, facts, events, trace, tail, usage, stats, doctor),
)

for command in COMMANDS:
    cli.add_command(command)
