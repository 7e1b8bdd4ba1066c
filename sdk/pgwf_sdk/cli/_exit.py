"""Exit codes, and which error leads to which: scripts can tell a lost race from a bad input without reading text."""

from enum import IntEnum
from types import MappingProxyType


class ExitCode(IntEnum):
    """What the process ends with. docs/cli.md carries this table."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 4
    CONFLICT = 5
    INVALID_INPUT = 6
    TIMED_OUT = 7
    UNHEALTHY = 8
    DIFFERENT = 9
    RUN_FAILED = 10
    RUN_CANCELLED = 11
    INTERRUPTED = 130
    BROKEN_PIPE = 141


TOLD_CODE = 97
"""What a worker ends with towards its supervisor when it was drained or told to stop. Not 0: that is also what a
library ends a process with, or `os._exit(0)` in a step."""


class CliError(Exception):
    """Ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(message)
        self.code = code


_CODE_OF_ERROR = MappingProxyType(
    {
        "RunNotFoundError": ExitCode.NOT_FOUND,
        "TaskNotFoundError": ExitCode.NOT_FOUND,
        "RaceError": ExitCode.CONFLICT,
        "UsageError": ExitCode.INVALID_INPUT,
        "FilterError": ExitCode.USAGE,
        "ResultTimeoutError": ExitCode.TIMED_OUT,
        "RunFailedError": ExitCode.RUN_FAILED,
        "RunCancelledError": ExitCode.RUN_CANCELLED,
        "RunTerminatedError": ExitCode.RUN_CANCELLED,
        "PgwfError": ExitCode.ERROR,
        "SchemaOutdatedError": ExitCode.UNHEALTHY,
        "SchemaVersionError": ExitCode.UNHEALTHY,
        "EmbeddedError": ExitCode.ERROR,
    }
)


def as_cli_error(error: Exception) -> CliError | None:
    """The message and exit code for an error that a user, another client or the database caused; None for others."""
    if _is_database_error(error):
        return CliError(_database_message(error))
    code = _known_code(error)
    return None if code is None else CliError(str(error), code)


def code_of(error: Exception) -> ExitCode:
    """The exit code for an error; ERROR for one that has no code of its own."""
    return _known_code(error) or ExitCode.ERROR


def _known_code(error: Exception) -> ExitCode | None:
    # By name, because importing all these classes would make every command slow.
    for ancestor in type(error).__mro__:
        if ancestor.__module__.startswith(("pgwf_sdk", "pgwf_sql")) and ancestor.__name__ in _CODE_OF_ERROR:
            return _CODE_OF_ERROR[ancestor.__name__]
    return None


def _is_database_error(error: Exception) -> bool:
    return any(ancestor.__module__.startswith("psycopg") for ancestor in type(error).__mro__)


def _sqlstate(error: Exception) -> str:
    """Empty for an error that no server sent."""
    return getattr(error, "sqlstate", None) or ""


def _hint(error: Exception) -> str | None:
    """What the server proposes; of a connection that was refused all it said is in the text."""
    said: str | None = getattr(getattr(error, "diag", None), "message_hint", None)
    if said is not None:
        return said
    lines = str(error).splitlines()
    return next((line.removeprefix("HINT:").strip() for line in lines if line.startswith("HINT:")), None)


def _database_message(error: Exception) -> str:
    """What went wrong between us and the database, without a connection string: it may hold a password."""
    sqlstate = _sqlstate(error)
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if sqlstate in {"42P01", "3F000", "42883"}:
        return f"database: {first_line}; the schema may be missing or older than this pgwf: run `pgwf migrate`"
    from pgwf_sql.database import with_hint

    first_line = with_hint(first_line, _hint(error))
    if sqlstate == "42501":
        return (
            f"database: {first_line}; the role lacks a right: see Roles in docs/sql-reference.md, or use another --dsn"
        )
    if not sqlstate:
        return f"no connection to the database: {first_line}; check --dsn, PGWF_DSN or DATABASE_URL"
    return f"database: {first_line} (SQLSTATE {sqlstate})"
