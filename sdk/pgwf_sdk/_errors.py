"""Errors of the SDK, named by who must act. Messages say subject, found, expected, next step; values are attributes.

PgwfError
  UsageError       the code that made the call must change
  RaceError        somebody else was first; look at the present state and decide again
  WorkflowError    a step, a child, a wait or a run ended badly; the workflow (or who reads its result) decides
  OperatorError    whoever runs workers and the database must act

Suspend, RunCancelled, RunContinued and BranchCancelled are BaseExceptions, so that `except Exception` in a workflow
lets them pass.
"""

from __future__ import annotations

__all__ = [
    "ERROR_BY_SQLSTATE",
    "AwakeableClosedError",
    "AwakeableFailedError",
    "AwakeableNotFoundError",
    "BranchCancelled",
    "BranchesFailedError",
    "ChildFailedError",
    "CleanupFailedError",
    "ContextError",
    "DefinitionError",
    "HistoryError",
    "InvalidArgumentError",
    "OperatorError",
    "PgwfError",
    "RaceError",
    "ResultTimeoutError",
    "RunCancelled",
    "RunCancelledError",
    "RunConflictError",
    "RunContinued",
    "RunExpiredError",
    "RunFailedError",
    "RunFinishedError",
    "RunNotFoundError",
    "RunNotRetryableError",
    "RunTerminatedError",
    "SerialisationError",
    "StepFailedError",
    "StepInterruptedError",
    "StepTimeoutError",
    "Suspend",
    "TaskForbiddenError",
    "TaskNotFoundError",
    "TaskNotHeldError",
    "TaskUnavailableError",
    "UndecodableError",
    "UsageError",
    "WaitTimeoutError",
    "WorkflowError",
]


class PgwfError(Exception):
    """Root of every error the SDK raises on purpose."""


class UsageError(PgwfError):
    """The code that made the call must change."""


class RaceError(PgwfError):
    """Somebody else was first; look at the present state and decide again."""


class WorkflowError(PgwfError):
    """A step, a child, a wait or a run ended badly. `advice` is what to do about it, and ends the message."""

    advice: str = ""

    def __str__(self) -> str:
        return f"{self.said}; {self.advice}" if self.advice else self.said

    @property
    def said(self) -> str:
        """The message without the advice: an error that builds upon this one has its own."""
        return super().__str__()


class OperatorError(PgwfError):
    """Whoever runs the workers and the database must act."""


class DefinitionError(UsageError):
    """A step or workflow cannot be defined, or not be called, like this."""


class ContextError(UsageError):
    """A workflow context, or a Step, was used where it must not be."""


class SerialisationError(UsageError):
    """A value cannot be stored. `path` leads to the part that cannot, such as `result.items[3].fh`."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class StepFailedError(WorkflowError):
    """A step failed with an exception whose class this process has not imported; `type_name` is `module:Qualname`."""

    def __init__(self, message: str, *, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class StepTimeoutError(WorkflowError, TimeoutError):
    """A step did not end in time, and no attempt is left."""

    def __init__(self, message: str, *, step: str = "", attempt: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.attempt = attempt


class StepInterruptedError(WorkflowError):
    """A worker died while it ran an at-most-once step: whether the effect happened is unknown."""

    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class StepProcessError(WorkflowError):
    """The process of an isolated step died, and no attempt is left. `exit_code` is negative for a signal."""

    def __init__(self, message: str, *, step: str = "", exit_code: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.exit_code = exit_code


class ChildFailedError(WorkflowError):
    """A child run failed, was cancelled or was terminated; `__cause__` is what it failed with, when it failed."""

    def __init__(self, message: str, *, workflow: str = "", status: str = "failed") -> None:
        super().__init__(message)
        self.workflow = workflow
        self.status = status


class CleanupFailedError(WorkflowError):
    """Compensations or exit steps of a run failed for good; `keys` names them, in the order they were tried.

    `__cause__` is what the run itself failed with, or the first of their errors when it had completed.
    """

    def __init__(self, message: str, *, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class WaitTimeoutError(WorkflowError, TimeoutError):
    """Nothing came before the deadline: no signal, no decision, no completion. `name` is what was waited for."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class RunNotFoundError(UsageError):
    """No run has that id. A run that retention has removed is as unknown as one that never was."""


class RunCycleError(UsageError):
    """The run to attach to waits, directly or through others, for the one that asked: neither would ever end."""


class RunExpiredError(RunNotFoundError):
    """The run is over, and retention has removed it with its result."""


class AwakeableNotFoundError(UsageError):
    """No awakeable has that token. A token is given out once, by the run that made it."""


class AwakeableClosedError(RaceError):
    """The awakeable's time was over before it was completed, or its run waits for it no longer."""


class BranchesFailedError(WorkflowError):
    """More branches of a `parallel` or `map` failed than its policy allows; `__cause__` is the error of the first."""

    def __init__(self, message: str, *, failures: int = 0) -> None:
        super().__init__(message)
        self.failures = failures


class AwakeableFailedError(WorkflowError):
    """Somebody outside said that what an awakeable stands for failed; the message is theirs."""


class TaskNotFoundError(UsageError):
    """No human task has that id."""


class InvalidArgumentError(UsageError):
    """The database refused an argument: the message says which, what it was and what is accepted."""


class RunConflictError(RaceError):
    """The run id is taken by a run of another workflow, or of the same one with another input. Ids are never reused."""


class RunFinishedError(RaceError):
    """The run is over, so nothing can be sent to it any more."""


class RunNotRetryableError(RaceError):
    """Only a run that failed, was cancelled or was terminated can be retried."""


class TaskForbiddenError(UsageError):
    """This person may not take the task: it excludes them, or it is assigned to somebody else."""


class TaskUnavailableError(RaceError):
    """The task is not open, or somebody else holds it."""


class TaskNotHeldError(RaceError):
    """The task is not held by the one who decides or releases it: it was never claimed, or the claim has run out."""


class RunFailedError(WorkflowError):
    """The run failed; `__cause__` is what it failed with, rebuilt from the journal."""

    def __init__(self, message: str, *, run_id: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.advice = advice


class RunCancelledError(WorkflowError):
    """The run was cancelled and has cleaned up after itself; `__cause__` is what it recorded, if anything."""

    def __init__(self, message: str, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunTerminatedError(WorkflowError):
    """The run was terminated: it was stopped without running any more of its code."""

    def __init__(self, message: str, *, run_id: str = "", advice: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.advice = advice


class ResultTimeoutError(WorkflowError, TimeoutError):
    """The run was not over in time. It goes on; `status` is what it was doing when the wait ended."""

    def __init__(self, message: str, *, run_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status


class UndecodableError(OperatorError):
    """A stored payload does not fit the type it is to become. Nothing is lost: deploy a type that fits and resume."""


class SealedError(UndecodableError):
    """A stored payload is sealed, and cannot be opened here: a key is missing, or it was changed. Nothing is lost."""


class HistoryError(PgwfError):
    """A replay was given entries in another order than the journal has them: the fault of the caller, not of a run."""

    def __init__(self, message: str, *, expected_seq: int, found_seq: int) -> None:
        super().__init__(message)
        self.expected_seq = expected_seq
        self.found_seq = found_seq


class Suspend(BaseException):
    """The run gives its worker back and goes on later. Never catch it: each later call of the context raises it again,
    and whatever the function returns or raises afterwards is discarded.
    """


class DeterminismWarning(UserWarning):
    """A workflow's code did what a replay would not repeat; the warning stands at its line."""


class RunCancelled(BaseException):
    """Somebody asked this run to stop. Raised once, from the call that waits or the next one; clean up and re-raise.

    Steps in `except` and `finally` run as usual. `by` and `reason` are those of the request.
    """

    def __init__(self, message: str = "", *, by: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.by = by
        self.reason = reason


class RunContinued(BaseException):
    """Leaves the function of a run that goes on as another one; raised by `ctx.continue_as_new`. Let it pass.

    Steps in `finally` run as usual, before the run ends. `call` is what the next run of the chain begins with.
    """

    def __init__(self, call: object = None) -> None:
        super().__init__("the run goes on as another one")
        self.call = call


class BranchCancelled(BaseException):
    """Another branch of the same `parallel` or `map` failed, so this one stops. Raised once; clean up and re-raise."""


ERROR_BY_SQLSTATE: dict[str, type[PgwfError]] = {
    "22003": InvalidArgumentError,
    "22021": InvalidArgumentError,
    "WF001": InvalidArgumentError,
    "WS001": RunConflictError,
    "WS002": RunNotFoundError,
    "WS003": RunFinishedError,
    "WS004": InvalidArgumentError,
    "WS005": RunNotRetryableError,
    "WS006": InvalidArgumentError,
    "WS010": TaskNotFoundError,
    "WS011": TaskUnavailableError,
    "WS012": TaskNotHeldError,
    "WS013": TaskForbiddenError,
    "WS020": AwakeableNotFoundError,
    "WS021": AwakeableClosedError,
}
"""The class of each error the functions of schema pgwf_sdk raise; their header lists the same codes. The others are of
what PostgreSQL cannot hold, and of what schema pgwf refuses of limits."""
