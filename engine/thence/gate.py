"""The completion gate's share of the fold: what a turn changed in the workspace, and what was said about it (§5). Pure.

The changes of a turn are known by one digest, which moves with every call that changed something. A report or a waiver
is bound to the digest that it names: an edit that comes later leaves it behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .canonical import Json, dumps_checked, sha256_hex
from .facts import Reported, Waived


@dataclass(frozen=True, slots=True)
class Gate:
    """``changes``: digest of what the turn changed, empty for nothing. ``verified``: the newest report of that digest
    passed. ``waived``: the host waived it. The rest counts facts, for their keys."""

    changes: str = ""
    verified: bool = False
    waived: bool = False
    reports: int = 0
    waivers: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether there are changes that nobody has verified or waived."""
        return bool(self.changes) and not (self.verified or self.waived)

    def after_result(self, signature: str, ok: bool, metadata: Mapping[str, Any]) -> Gate:
        """The gate after a ``tool.result``: changes move when a workspace tool that is not ``read`` succeeded, or when
        the result names changed paths, failed or not. A call that was not run changes nothing."""
        if "refused" in metadata:
            return self
        paths = metadata.get("changed_paths") or ()
        wrote = ok and metadata.get("workspace") is True and metadata.get("effect") != "read"
        if not (wrote or paths):
            return self
        return replace(self, changes=digest_of(self.changes, signature, paths), verified=False, waived=False)

    def after_report(self, fact: Reported) -> Gate:
        """The gate after ``verification.reported``: the newest report counts, and only for what it names."""
        verified = fact.passed if fact.digest == self.changes else self.verified
        return replace(self, verified=verified, reports=self.reports + 1)

    def after_waiver(self, fact: Waived) -> Gate:
        """The gate after ``gate.waived``, which holds for what it names."""
        return replace(self, waived=self.waived or fact.digest == self.changes, waivers=self.waivers + 1)

    def summary(self) -> dict[str, Json] | None:
        """Why a turn that changed something could end, for ``agent_end``; None when nobody verified or waived it."""
        if not self.changes or self.is_closed:
            return None
        return {"digest": self.changes, "status": "verified" if self.verified else "waived"}


OPEN = Gate()


def digest_of(previous: str, signature: str, paths: Iterable[str]) -> str:
    """Digest of a turn's changes after one more: SHA-256 (hex) of the canonical JSON of the digest before, the call's
    signature and the sorted paths."""
    return sha256_hex(dumps_checked([previous, signature, sorted(set(paths))]))
