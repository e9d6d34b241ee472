"""A small folder beside a secret, and the tools on it, for the tests of the workspace tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thence.host.context import ToolContext
from thence.host.toolkit import collect, encode_result
from thence.host.workspace import Workspace

SENTINEL = "TOP-SECRET-OUTSIDE"


def context(workspace: Path, **more: Any) -> ToolContext:
    return ToolContext(
        session_id="s", run_id="r", call_key="t1-r1-c0", idempotency_key="00", workspace=workspace, **more
    )


class Hands:
    """The tools of one folder, called as a driver does: bind, call, encode."""

    def __init__(self, workspace: Path, **more: Any) -> None:
        hidden = more.pop("hidden", False)
        bounds = more.pop("bounds", None)
        made = Workspace(hidden=hidden, bounds=bounds)
        self.tools = collect([made.ls, made.read, made.glob, made.grep])
        self.context = context(workspace, **more)

    def use(self, name: str, **arguments: Any) -> tuple[bool, str]:
        described = self.tools[name]
        encoded = encode_result(described.call(described.bind(arguments), self.context))
        assert not encoded.is_json
        return encoded.ok, encoded.text

    def ok(self, name: str, **arguments: Any) -> str:
        ok, text = self.use(name, **arguments)
        assert ok, text
        return text

    def refused(self, name: str, **arguments: Any) -> str:
        ok, text = self.use(name, **arguments)
        assert not ok, text
        assert text.startswith("Error: ")
        assert SENTINEL not in text
        return text


def make_place(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "plan.txt").write_text(SENTINEL)
    (tmp_path / "outside" / f"{SENTINEL}.txt").write_text(SENTINEL)
    workspace = tmp_path / "ws"
    (workspace / "src" / "deep").mkdir(parents=True)
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")
    (workspace / "src" / "b.py").write_text("import os\n")
    (workspace / "src" / "deep" / "c.py").write_text("import sys\n")
    return workspace
