"""For tests of programs that use thence: a model that answers from a script, and an environment that repeats (§12)."""

from __future__ import annotations

from .host.env import FixedClock, HostEnv, SequentialIdGenerator
from .models.scripted import ScriptedCall, ScriptedModel, ScriptedReply, call, reply

__all__ = ["ScriptedCall", "ScriptedModel", "ScriptedReply", "call", "fixed_env", "reply"]


def fixed_env(prefix: str = "t", ms: int = 1_700_000_000_000) -> HostEnv:
    """Ids ``<prefix>-0``, ``<prefix>-1``, ... and a clock that stands still at ``ms``. Make a new one for every run."""
    return HostEnv(SequentialIdGenerator(prefix), FixedClock(ms))
