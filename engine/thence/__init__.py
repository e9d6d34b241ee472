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
from .chat import AsyncModel, Model, Reply, Request, SyncModel, ToolSpec, Usage
from .compaction import Compaction
from .diagnosis import Diagnosis, OwnerSeen
from .errors import (
    BudgetExhausted,
    ContextOverflow,
    DiskFull,
    FactConflict,
    FileRefused,
    FileReplaced,
    GateClosed,
    IllegalFact,
    MigrationBlocked,
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
    UnknownCriticalFact,
    WaitError,
)
from .events import Event, EventPage
from .facts import Fact
from .hooking import Hook, HookContext
from .host.context import Defer, Question, ToolCancelled, ToolContext
from .host.env import FixedClock, HostEnv, HostEnvConfig, SequentialIdGenerator
from .host.spawned import AsyncSpawnedRun, Recovered, SpawnedRun
from .host.streams import AsyncRunStream, RunStream
from .host.toolkit import Tool, ToolOutput, tool
from .host.workspace import workspace_tools
from .identity import DurableMemoryBinding
from .models.openai import OpenAIModel
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
    "AsyncModel",
    "AsyncRunStream",
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
    "FactConflict",
    "FileRefused",
    "FileReplaced",
    "FixedClock",
    "GateClosed",
    "Hook",
    "HookContext",
    "HostEnv",
    "HostEnvConfig",
    "IllegalFact",
    "MigrationBlocked",
    "Model",
    "ModelError",
    "OpenAIModel",
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
    "RunStream",
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
    "SyncModel",
    "ThenceError",
    "Tool",
    "ToolCancelled",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "TraceEvent",
    "UnknownCriticalFact",
    "Usage",
    "VerificationContext",
    "VerificationReport",
    "Wait",
    "WaitError",
    "tool",
    "workspace_tools",
]
