"""Errors of the leasing core, named by who must act, by the SQLSTATE that schema pgwf gives them.

LeasingError
  UsageError       the code that made the call must change
  RaceError        somebody else was first, or the job has moved on; look again and decide anew
"""

import psycopg

from pgwf_sql.database import message_of

__all__ = [
    "ERROR_BY_SQLSTATE",
    "DependencyCycleError",
    "InvalidArgumentError",
    "IsolationError",
    "JobCancelledError",
    "JobExistsError",
    "JobFinishedError",
    "JobNotFoundError",
    "JobStateError",
    "KeyHeldError",
    "LeaseLostError",
    "LeaseSpentError",
    "LeasingError",
    "RaceError",
    "SchemaNewerError",
    "UnknownDependencyError",
    "UsageError",
]


class LeasingError(Exception):
    """Root of the errors of the leasing core."""


class UsageError(LeasingError):
    """The code that made the call must change."""


class RaceError(LeasingError):
    """Somebody else was first, or the job has moved on; look again and decide anew."""


class InvalidArgumentError(UsageError):
    """An argument is missing, out of range or malformed; the message says which, what it was and what is accepted."""


class IsolationError(UsageError):
    """Leasing works at READ COMMITTED only; at a stricter level a claim could not see what others did."""


class UnknownDependencyError(UsageError):
    """`wait_for` names a job that does not exist."""


class DependencyCycleError(UsageError):
    """`wait_for` would make a job wait, in the end, for itself."""


class JobNotFoundError(UsageError):
    """No job has that id."""


class LeaseSpentError(UsageError):
    """This lease was given back, completed or lost before; the job may be somebody else's now."""


class JobExistsError(RaceError):
    """A live job has that id; it is unchanged."""


class JobFinishedError(RaceError):
    """The job with that id is over, and its id is never used again."""


class JobCancelledError(RaceError):
    """The job is cancelled: it can be completed, or archived by the sweep, and nothing else."""


class JobStateError(RaceError):
    """The job is not in a state the call accepts; the message names both."""


class KeyHeldError(RaceError):
    """Another leased job has the same singleton key."""


class LeaseLostError(RaceError):
    """The lease is not this worker's any more: it lapsed and was swept, was released, or was never its own. Stop."""


class SchemaNewerError(LeasingError):
    """The database's schema is newer than this release: whoever deploys must upgrade the package."""


ERROR_BY_SQLSTATE: dict[str, type[LeasingError]] = {
    "22003": InvalidArgumentError,
    "22021": InvalidArgumentError,
    "23502": InvalidArgumentError,
    "23505": JobExistsError,
    "WF001": InvalidArgumentError,
    "WF002": LeaseLostError,
    "WF003": JobCancelledError,
    "WF004": JobNotFoundError,
    "WF005": JobStateError,
    "WF006": KeyHeldError,
    "WF010": JobFinishedError,
    "WF011": UnknownDependencyError,
    "WF012": DependencyCycleError,
    "WF020": IsolationError,
    "WF021": InvalidArgumentError,
    "WF090": SchemaNewerError,
}
"""The class of each error the functions of schema pgwf raise; their header lists the same codes."""


def translate(error: psycopg.Error) -> Exception:
    """The room's error for its SQLSTATE; any other database error as it is."""
    kind = ERROR_BY_SQLSTATE.get(error.sqlstate or "")
    return error if kind is None else kind(message_of(error))
