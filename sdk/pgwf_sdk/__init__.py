"""Plain Python functions, made durable on PostgreSQL.

A name is imported from its module when it is first used: the help of the command line does not wait for the database
driver, and a program that only defines workflows does not load the worker.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgwf_sdk._client import AsyncClient, AsyncRun, Client, ForkPrice, Run
    from pgwf_sdk._definition import Call, Step, Workflow, step, workflow
    from pgwf_sdk._errors import (
        AwakeableClosedError,
        AwakeableFailedError,
        AwakeableNotFoundError,
        BranchCancelled,
        BranchesFailedError,
        ChildFailedError,
        CleanupFailedError,
        ContextError,
        DefinitionError,
        DeterminismWarning,
        InvalidArgumentError,
        OperatorError,
        PgwfError,
        RaceError,
        ResultTimeoutError,
        RunCancelled,
        RunCancelledError,
        RunConflictError,
        RunContinued,
        RunCycleError,
        RunExpiredError,
        RunFailedError,
        RunFinishedError,
        RunNotFoundError,
        RunNotRetryableError,
        RunTerminatedError,
        SealedError,
        SerialisationError,
        StepFailedError,
        StepInterruptedError,
        StepProcessError,
        StepTimeoutError,
        TaskForbiddenError,
        TaskNotFoundError,
        TaskNotHeldError,
        TaskUnavailableError,
        UndecodableError,
        UsageError,
        WaitTimeoutError,
        WorkflowError,
    )
    from pgwf_sdk._retry import NonRetryable, RetryAfter, RetryPolicy
    from pgwf_sdk._sealing import Sealing
    from pgwf_sdk._step_context import StepContext, current_step
    from pgwf_sdk._telemetry import Telemetry
    from pgwf_sdk.replay import (
        AllSettled,
        AsyncAwakeable,
        AsyncChild,
        AsyncContext,
        Awakeable,
        BranchFailed,
        BranchResult,
        BranchResults,
        BranchSucceeded,
        BranchUnfinished,
        Child,
        Context,
        Decision,
        MinSuccessful,
        ToleratedFailures,
        Vote,
    )
    from pgwf_sdk.worker import JournalLimits, Worker

__all__ = [
    "AllSettled",
    "AsyncAwakeable",
    "AsyncChild",
    "AsyncClient",
    "AsyncContext",
    "AsyncRun",
    "Awakeable",
    "AwakeableClosedError",
    "AwakeableFailedError",
    "AwakeableNotFoundError",
    "BranchCancelled",
    "BranchFailed",
    "BranchResult",
    "BranchResults",
    "BranchSucceeded",
    "BranchUnfinished",
    "BranchesFailedError",
    "Call",
    "Child",
    "ChildFailedError",
    "CleanupFailedError",
    "Client",
    "Context",
    "ContextError",
    "Decision",
    "DefinitionError",
    "DeterminismWarning",
    "ForkPrice",
    "InvalidArgumentError",
    "JournalLimits",
    "MinSuccessful",
    "NonRetryable",
    "OperatorError",
    "PgwfError",
    "RaceError",
    "ResultTimeoutError",
    "RetryAfter",
    "RetryPolicy",
    "Run",
    "RunCancelled",
    "RunCancelledError",
    "RunConflictError",
    "RunContinued",
    "RunCycleError",
    "RunExpiredError",
    "RunFailedError",
    "RunFinishedError",
    "RunNotFoundError",
    "RunNotRetryableError",
    "RunTerminatedError",
    "SealedError",
    "Sealing",
    "SerialisationError",
    "Step",
    "StepContext",
    "StepFailedError",
    "StepInterruptedError",
    "StepProcessError",
    "StepTimeoutError",
    "TaskForbiddenError",
    "TaskNotFoundError",
    "TaskNotHeldError",
    "TaskUnavailableError",
    "Telemetry",
    "ToleratedFailures",
    "UndecodableError",
    "UsageError",
    "Vote",
    "WaitTimeoutError",
    "Worker",
    "Workflow",
    "WorkflowError",
    "current_step",
    "step",
    "workflow",
]

# Where the names are, the modules that import least first.
_HOMES = ("_errors", "_retry", "_sealing", "_definition", "_step_context", "replay", "_client", "worker", "_telemetry")

if not TYPE_CHECKING:  # Type checkers would take any name for one that is there.

    def __getattr__(name):
        if name in __all__:
            for home in _HOMES:
                module = import_module(f"pgwf_sdk.{home}")
                if hasattr(module, name):
                    globals()[name] = getattr(module, name)
                    return globals()[name]
        raise AttributeError(f"module 'pgwf_sdk' has no attribute {name!r}", name=name, obj=import_module("pgwf_sdk"))

    def __dir__():
        return sorted({*globals(), *__all__})
