"""Replays a journal to run a workflow: pure, without clock, database or randomness of its own.

Give an activation the journal of its run; it returns commands, takes the entries that were committed for them, and ends
with an outcome.
"""

from pgwf_sdk.replay._async import AsyncActivation
from pgwf_sdk.replay._async_context import AsyncChild, AsyncContext
from pgwf_sdk.replay._commands import (
    Abandon,
    AwaitSignal,
    Blocked,
    CallId,
    Cancelled,
    Command,
    Completed,
    Failed,
    OpenHuman,
    Outcome,
    RecordValue,
    RunInfo,
    RunStep,
    StartChild,
    StartTimer,
    Suspended,
)
from pgwf_sdk.replay._context import Child, Context
from pgwf_sdk.replay._human import Decision, HumanRequest, Vote
from pgwf_sdk.replay._report import Source, report_without_place, seqs_of, with_sources
from pgwf_sdk.replay._sync import SyncActivation
from pgwf_sdk.replay._trial import RecordedRun, Trial, try_replay

__all__ = [
    "Abandon",
    "AsyncActivation",
    "AsyncChild",
    "AsyncContext",
    "AwaitSignal",
    "Blocked",
    "CallId",
    "Cancelled",
    "Child",
    "Command",
    "Completed",
    "Context",
    "Decision",
    "Failed",
    "HumanRequest",
    "OpenHuman",
    "Outcome",
    "RecordValue",
    "RecordedRun",
    "RunInfo",
    "RunStep",
    "Source",
    "StartChild",
    "StartTimer",
    "Suspended",
    "SyncActivation",
    "Trial",
    "Vote",
    "report_without_place",
    "seqs_of",
    "try_replay",
    "with_sources",
]
