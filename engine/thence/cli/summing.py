"""``usage`` and ``stats``: the whole file in numbers (§13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from ..errors import ThenceError
from ..host.accounting import session_usage
from ..identity import Scope
from ..reads import SessionRow
from .looking import Look, looking
from .options import Settings, common, pass_settings
from .text import count, fields, moment, table, visible

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens")
_KEYS = {"session": "session_id", "tenant": "tenant_id", "model": "model"}


@click.command()
@click.argument("session", required=False)
@click.option(
    "--by",
    type=click.Choice(["session", "tenant", "model"]),
    default="session",
    show_default=True,
    help="What to sum over.",
)
@common
@pass_settings
def usage(settings: Settings, session: str | None, by: str) -> None:
    """Sum the tokens that the providers reported.

    Of all sessions, or of one SESSION. Counted over the logs, so that runs that are no longer kept count too. Requests
    of which nobody knows what they took (a provider that did not say, an attempt that failed) are told beside the sums.
    """
    sums: dict[str | None, dict[str, Any]] = {}
    with looking(settings.path) as look:
        for row in look.sessions({}) if session is None else [look.session(session)]:
            for model, took in _of_session(look, row):
                name = {"session": row.session_id, "tenant": row.tags.tenant_id, "model": model}[by]
                _add(sums.setdefault(name, _nothing(_KEYS[by], name)), took)
    found = [value for value in sums.values() if value["requests"]]
    none = f"no model was asked yet in {settings.path if session is None else f'session {session}'}"
    settings.tell(found, lambda: _usage_text(by, found), none=none)


def _nothing(key: str, name: str | None) -> dict[str, Any]:
    return {key: name, "requests": 0, "requests_without_usage": 0, **dict.fromkeys(_COUNTS, 0)}


def _add(total: dict[str, Any], took: Mapping[str, int]) -> None:
    for name in ("requests", "requests_without_usage", *_COUNTS):
        total[name] += took.get(name, 0)


def _of_session(look: Look, row: SessionRow) -> Iterator[tuple[str | None, Mapping[str, int]]]:
    """What a session's requests took, by model; together they are what ``agent.usage`` says of it."""
    answered: set[str] = set()
    configured: set[str] = set()
    silent = 0
    for fact in look.facts(row):
        model = str(fact.value.get("model"))
        if fact.kind == "run.configured":
            configured.add(model)
        elif fact.kind in ("model.turn", "compaction.done"):
            answered.add(model)
            reported: Mapping[str, int] | None = fact.value.get("usage")
            silent += reported is None
            yield model, {"requests": 1, "requests_without_usage": int(reported is None), **(reported or {})}
    try:
        failed = look.follow(session_usage(Scope(), row.session_id)).unknown - silent
    except ThenceError as error:
        # a log that a later version wrote, or an id that is none: the answers are counted all the same
        click.echo(visible(f"session {row.session_id}: {error}; requests that failed are not counted"), err=True)
        failed = 0
    if failed > 0:
        # no fact says which model was asked: it is clear when there was but one
        asked = answered or configured
        yield asked.pop() if len(asked) == 1 else None, {"requests": failed, "requests_without_usage": failed}


def _usage_text(by: str, found: list[dict[str, Any]]) -> str:
    key = _KEYS[by]
    rows = [_usage_row(by, value[key], value) for value in found]
    if len(found) > 1:
        whole = {name: sum(value[name] for value in found) for name in found[0] if name != key}
        rows.append(_usage_row(by, "(all)", whole))
    lines = [table(rows, flexible=by, right=[name for name in rows[0] if name != by])]
    silent = sum(value["requests_without_usage"] for value in found)
    if silent:
        it = "it" if silent == 1 else "they"
        lines.append(f"\nNot in the sums: {count(silent, 'request')} of which nobody knows what {it} took.")
    return "\n".join(lines)


def _usage_row(by: str, name: str | None, value: dict[str, Any]) -> dict[str, Any]:
    known = value["requests"] > value["requests_without_usage"]
    return {
        by: name or "-",
        "requests": value["requests"],
        "unknown": value["requests_without_usage"] or "",
        "prompt": value["prompt_tokens"] if known else "?",
        "cached": value["cache_read_tokens"] if known else "?",
        "completion": value["completion_tokens"] if known else "?",
        "total": value["total_tokens"] if known else "?",
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
