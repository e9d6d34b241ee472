"""Duplicate guard and malformed-argument counter: small state that facts drive (§5).

`fold` advances it by results; `judge` advances it by the calls of one answer that were already judged. One logic, so
that what is judged live and what is judged after a crash cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WINDOW = 8


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """``window``: signatures of the last executed calls. ``refused``: the signature refused last, until a call is
    allowed. ``malformed``: malformed calls in a row."""

    window: tuple[str, ...] = ()
    refused: str | None = None
    malformed: int = 0

    def after(self, signature: str, ok: bool, metadata: Mapping[str, Any]) -> LoopGuard:
        """The guard after a ``tool.result`` with this metadata."""
        refused = metadata.get("refused")
        if refused == "malformed_arguments":
            return replace(self, malformed=self.malformed + 1)
        if refused == "duplicate_tool_call":
            return replace(self, refused=signature, malformed=0)
        if refused is not None:
            return self.allowed()
        return self.executed(
            signature, ok=ok, read=metadata.get("effect") == "read", repeatable=metadata.get("repeatable") is True
        )

    def allowed(self) -> LoopGuard:
        """The guard after a well-formed call that was judged and not refused as a duplicate."""
        return self if self.refused is None and not self.malformed else replace(self, refused=None, malformed=0)

    def executed(self, signature: str, *, ok: bool, read: bool, repeatable: bool) -> LoopGuard:
        """The guard after a call ran. A successful non-read call with another signature clears the window: edit, test,
        edit, test is no loop."""
        if repeatable:
            return self.allowed()
        window = self.window
        if ok and not read and any(seen != signature for seen in window):
            window = ()
        return LoopGuard((*window, signature)[-WINDOW:])

    def count(self, signature: str) -> int:
        """How often a call with this signature ran among the last :data:`WINDOW`."""
        return self.window.count(signature)
