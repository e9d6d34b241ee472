"""thence: long-lived LLM-agent sessions in one SQLite file. Kill the process anywhere; any other goes on.

>>> from thence import Agent
>>> from thence.testing import ScriptedModel, reply
>>> with Agent(None, model=ScriptedModel([reply("Hello.")])) as agent:
...     agent.session(".").send("Hi").text
'Hello.'
"""

from __future__ import annotations

from .agent import Agent, AsyncAgent
from .async_session import AsyncSession
from .chat import Model, Reply, Request, ToolSpec, Usage
from .compaction import Compaction
from .diagnosis import Diagnosis, OwnerSeen
from .errors import (
    BudgetExhausted,
    ContextOverflow,
    DiskFull,
    FileRefused,
    FileReplaced,
    GateClosed,
    ModelError,
    OutputInvalid,
    OwnershipLost,
    RunFailed,
    RunIdentityConflict,
    RunInterrupted,
    SchemaChanged,
    SessionBusy,
    SessionClosed,
    SessionConfiguration,
    SessionError,
    SessionNotFound,
    StoreError,
    ThenceError,
    ToolError,
    WaitError,
)
from .events import Event, EventPage
from .facts import Fact
from .hooking import Hook, HookContext
from .host.context import Defer, Question, ToolContext
from .host.env import FixedClock, HostEnv, HostEnvConfig, SequentialIdGenerator
from .host.spawned import AsyncSpawnedRun, Recovered, SpawnedRun
from .host.toolkit import Tool, ToolOutput, tool
from .host.workspace import workspace_tools
from .identity import DurableMemoryBinding
from .models.scripted import ScriptedModel
from .permissions import PermissionPolicy
from .results import Passivated, SendResult
from .runs import Run, SessionInfo, SessionUsage, TraceEvent
from .session import Session
from .session_options import SessionOptions
from .verification import VerificationContext, VerificationReport
from .waits import Wait

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AsyncAgent",
    "AsyncSession",
    "AsyncSpawnedRun",
    "BudgetExhausted",
    "Compaction",
    "ContextOverflow",
    "Defer",
    "Diagnosis",
    "DiskFull",
    "DurableMemoryBinding",
    "Event",
    "EventPage",
    "Fact",
    "FileRefused",
    "FileReplaced",
    "FixedClock",
    "GateClosed",
    "Hook",
    "HookContext",
    "HostEnv",
    "HostEnvConfig",
    "Model",
    "ModelError",
    "OutputInvalid",
    "OwnerSeen",
    "OwnershipLost",
    "Passivated",
    "PermissionPolicy",
    "Question",
    "Recovered",
    "Reply",
    "Request",
    "Run",
    "RunFailed",
    "RunIdentityConflict",
    "RunInterrupted",
    "SchemaChanged",
    "ScriptedModel",
    "SendResult",
    "SequentialIdGenerator",
    "Session",
    "SessionBusy",
    "SessionClosed",
    "SessionConfiguration",
    "SessionError",
    "SessionInfo",
    "SessionNotFound",
    "SessionOptions",
    "SessionUsage",
    "SpawnedRun",
    "StoreError",
    "ThenceError",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "TraceEvent",
    "Usage",
    "VerificationContext",
    "VerificationReport",
    "Wait",
    "WaitError",
    "tool",
    "workspace_tools",
]
