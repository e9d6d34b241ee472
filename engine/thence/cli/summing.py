"""``usage`` and ``stats``: the whole file in numbers (§13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from .looking import looking
from .options import Settings, common, pass_settings
from .text import count, fields, moment, table

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens")


@click.command()
@click.option(
    "--by",
    type=click.Choice(["session", "tenant", "model"]),
    default="session",
    show_default=True,
    help="What to sum over.",
)
@common
@pass_settings
def usage(settings: Settings, by: str) -> None:
    """Sum the tokens that the providers reported.

    Counted over the logs, so that runs that are no longer kept count too.
    """
    sums: dict[str, dict[str, Any]] = {}
    with looking(settings.path) as look:
        for session in look.sessions({}):
            for fact in look.facts(session):
                if fact.kind in ("model.turn", "compaction.done"):
                    model = fact.value.get("model")
                    name = {"session": session.session_id, "tenant": session.tags.tenant_id, "model": model}[by] or "-"
                    _add(sums.setdefault(name, _nothing(by, name)), fact.value.get("usage"))
    found = list(sums.values())
    settings.tell(found, lambda: _usage_text(by, found), none=f"no model has answered yet in {settings.path}")


def _nothing(by: str, name: str) -> dict[str, Any]:
    return {by: name, "requests": 0, "requests_without_usage": 0, **dict.fromkeys(_COUNTS, 0)}


def _add(total: dict[str, Any], reported: Mapping[str, int] | None) -> None:
    total["requests"] += 1
    if reported is None:
        total["requests_without_usage"] += 1
        return
    for name in _COUNTS:
        total[name] += reported.get(name, 0)


def _usage_text(by: str, found: list[dict[str, Any]]) -> str:
    rows = [_usage_row(by, value) for value in found]
    if len(found) > 1:
        whole = {name: sum(value[name] for value in found) for name in found[0] if name != by}
        rows.append(_usage_row(by, {by: "(all)", **whole}))
    lines = [table(rows, right=[name for name in rows[0] if name != by])]
    silent = sum(value["requests_without_usage"] for value in found)
    if silent:
        lines.append(f"\nNot in the sums: {count(silent, 'request')} whose provider did not say what it took.")
    return "\n".join(lines)


def _usage_row(by: str, value: dict[str, Any]) -> dict[str, Any]:
    return {
        by: value[by],
        "requests": value["requests"],
        "prompt": value["prompt_tokens"],
        "cached": value["cache_read_tokens"],
        "completion": value["completion_tokens"],
        "total": value["total_tokens"],
    }


@click.command()
@common
@pass_settings
def stats(settings: Settings) -> None:
    """Show how much is in the file, and how large it is."""
    with looking(settings.path) as look:
        value = look.stats()
    shown = {name.replace("_", " "): number for name, number in value.items()}
    shown.pop("created ms")
    shown["created"] = None if value["created_ms"] is None else moment(value["created_ms"])
    settings.tell([value], lambda: fields(shown), document=value)
