"""A run as it happens, for a person: the answer on stdout, tool calls and the rest dimmed on stderr (§13)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from ..events import Event
from .summary import short_arguments, short_result, tell_event
from .text import clip, columns, one_line, styled, visible

_SILENT = frozenset(
    {"text_delta", "tool_start", "tool_input_delta", "tool_output_delta", "reasoning_delta", "agent_end"}
)


class Printer:
    """Prints events. A broken stream that is tried again, and readers that come late, print each text once."""

    def __init__(self, *, whole: bool = False, aside: bool = True) -> None:
        """``whole``: also what the caller of a run knows anyway: its prompt and its error. ``aside``: tool calls and
        the like on stderr; else all on stdout."""
        self._whole, self._aside = whole, aside
        self._shown = ""
        self._in_line = False
        self._request: object = None

    def event(self, event: Event) -> None:
        """Print one event, if a person wants to see it."""
        kind, payload = event.type, event.payload
        if kind == "text_delta":
            self._text(event.text)
        elif kind == "turn_start":
            self._start(payload.get("turn"))
        elif kind == "turn_end":
            self._end(event.text)
        elif kind == "tool_execution_start":
            room = columns() - 6 - len(str(payload.get("name")))
            self.note(f"  > {payload.get('name')} {short_arguments(payload.get('args'), room)}".rstrip())
        elif kind == "tool_end":
            self._returned(payload)
        elif kind == "retention_gap":
            span = f"{payload.get('first_missing')} to before {payload.get('next_available')}"
            self.note(f"events {span} are no longer kept")
        elif kind in ("agent_start", "error"):
            if self._whole:
                self.note(f"{'prompt' if kind == 'agent_start' else 'failed'}: {tell_event(kind, payload)}")
        elif kind not in _SILENT:
            self.note(f"  {kind}: {tell_event(kind, payload)}")

    def note(self, text: str, *, cut: bool = True) -> None:
        """Say something beside the answer, in one line that fits unless it is to be pasted."""
        self.end_line()
        line = visible(text).replace("\n", " ")
        if cut:
            line = clip(line, columns() - 1)
        click.echo(styled(line, sys.stderr if self._aside else sys.stdout, dim=True), err=self._aside)

    def end_line(self) -> None:
        """Be at the beginning of a line."""
        if self._in_line:
            click.echo()
            self._in_line = False

    def answer(self, text: str) -> None:
        """Print an answer that no event has told."""
        self.end_line()
        self._text(text)
        self.end_line()

    def _text(self, text: str) -> None:
        if text:
            click.echo(visible(text), nl=False)
            self._shown += text
            self._in_line = not text.endswith("\n")

    def _start(self, request: object) -> None:
        if request == self._request and self._shown:
            self.note("the model's answer broke off and is asked for again")
        self._request, self._shown = request, ""

    def _end(self, text: str) -> None:
        if text.startswith(self._shown):
            self._text(text[len(self._shown) :])
        elif not self._shown.startswith(text.partition("… [")[0]):
            # what was shown is not what was recorded
            self.end_line()
            self._text(text)
        self.end_line()
        self._shown = ""

    def _returned(self, payload: Mapping[str, Any]) -> None:
        name = one_line(str(payload.get("name")))
        refused = payload.get("error_kind")
        word = f"not run ({one_line(str(refused))}), " if refused else ""
        outcome = short_result(str(payload.get("output", "")), not payload.get("exit_code"), columns())
        self.note(f"  < {name} {word}{outcome}")
