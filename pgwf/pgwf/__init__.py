"""Leasing on PostgreSQL: who may work on which job, until when."""

from pgwf._async import AsyncClient
from pgwf._errors import (
    DependencyCycleError,
    InvalidArgumentError,
    IsolationError,
    JobCancelledError,
    JobExistsError,
    JobFinishedError,
    JobNotFoundError,
    JobStateError,
    KeyHeldError,
    LeaseLostError,
    LeaseSpentError,
    LeasingError,
    RaceError,
    SchemaNewerError,
    UnknownDependencyError,
    UsageError,
)
from pgwf._job import (
    BrokenRule,
    CancelledJob,
    Dependency,
    HeldJob,
    JobOutcome,
    NewJob,
    Reschedule,
    RescheduledJob,
    SubmittedJob,
)
from pgwf._lease import AsyncLease, Lease
from pgwf._sync import Client
from pgwf_sql.database import NEVER

__all__ = [
    "NEVER",
    "AsyncClient",
    "AsyncLease",
    "BrokenRule",
    "CancelledJob",
    "Client",
    "Dependency",
    "DependencyCycleError",
    "HeldJob",
    "InvalidArgumentError",
    "IsolationError",
    "JobCancelledError",
    "JobExistsError",
    "JobFinishedError",
    "JobNotFoundError",
    "JobOutcome",
    "JobStateError",
    "KeyHeldError",
    "Lease",
    "LeaseLostError",
    "LeaseSpentError",
    "LeasingError",
    "NewJob",
    "RaceError",
    "Reschedule",
    "RescheduledJob",
    "SchemaNewerError",
    "SubmittedJob",
    "UnknownDependencyError",
    "UsageError",
]
