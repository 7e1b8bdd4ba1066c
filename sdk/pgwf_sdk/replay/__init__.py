"""Replays a journal to run a workflow: pure, without clock, database or randomness of its own.

Give an activation the journal of its run; it returns commands, takes the entries that were committed for them, and ends
with an outcome.
"""

from pgwf_sdk.replay._async import AsyncActivation
from pgwf_sdk.replay._async_context import AsyncContext
from pgwf_sdk.replay._commands import (
    Abandon,
    AttachRun,
    AwaitSignal,
    Blocked,
    CallId,
    CancelChild,
    Cancelled,
    Command,
    Completed,
    Continued,
    Failed,
    Hop,
    OpenAwakeable,
    OpenHuman,
    Outcome,
    RecordValue,
    RunInfo,
    RunStep,
    StartChild,
    StartTimer,
    Suspended,
)
from pgwf_sdk.replay._context import Context
from pgwf_sdk.replay._handles import AsyncAwakeable, AsyncChild, Awakeable, Child
from pgwf_sdk.replay._human import Decision, HumanRequest, Vote
from pgwf_sdk.replay._input import cancelled_unbegun
from pgwf_sdk.replay._policy import (
    AllSettled,
    BranchFailed,
    BranchResult,
    BranchResults,
    BranchSucceeded,
    BranchUnfinished,
    MinSuccessful,
    ToleratedFailures,
)
from pgwf_sdk.replay._report import Source, report_without_place, seqs_of, with_sources
from pgwf_sdk.replay._sync import SyncActivation
from pgwf_sdk.replay._trial import RecordedRun, Trial, try_replay

__all__ = [
    "Abandon",
    "AllSettled",
    "AsyncActivation",
    "AsyncAwakeable",
    "AsyncChild",
    "AsyncContext",
    "AttachRun",
    "AwaitSignal",
    "Awakeable",
    "Blocked",
    "BranchFailed",
    "BranchResult",
    "BranchResults",
    "BranchSucceeded",
    "BranchUnfinished",
    "CallId",
    "CancelChild",
    "Cancelled",
    "Child",
    "Command",
    "Completed",
    "Context",
    "Continued",
    "Decision",
    "Failed",
    "Hop",
    "HumanRequest",
    "MinSuccessful",
    "OpenAwakeable",
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
    "ToleratedFailures",
    "Trial",
    "Vote",
    "cancelled_unbegun",
    "report_without_place",
    "seqs_of",
    "try_replay",
    "with_sources",
]
