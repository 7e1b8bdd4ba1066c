"""The end of a run, as a command prints it and exits with it."""

import math
import time
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pgwf_sdk import ops
from pgwf_sdk._wording import not_over_words
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._output import talk, write_object
from pgwf_sdk.cli._session import session
from pgwf_sdk.cli._text import printable

if TYPE_CHECKING:
    from pgwf_sdk import Run

_TURN_SECONDS = 5.0

_CODE_OF_STATUS = MappingProxyType(
    {
        "completed": ExitCode.OK,
        "continued": ExitCode.OK,
        "failed": ExitCode.RUN_FAILED,
        "cancelled": ExitCode.RUN_CANCELLED,
        "terminated": ExitCode.RUN_CANCELLED,
    }
)


def wait_until_over(run_id: str, timeout: timedelta | None) -> None:
    """Wait for the end of a run, however it ends, and say so when it does not go on by itself.

    CliError (timed out) when it is not over within `timeout`.
    """
    from pgwf_sdk._errors import PgwfError

    try:
        _wait(run_id, timeout)
    except PgwfError:
        # How it ended is read from the database next; that its value needs a class nobody imported here is no matter.
        return
    except KeyboardInterrupt:
        talk(f"stopped waiting; run {run_id} goes on")
        raise


def _wait(run_id: str, timeout: timedelta | None) -> None:
    """Wait in turns of a few seconds, so that a run that gets stuck meanwhile is told of as well."""
    from psycopg import OperationalError

    from pgwf_sdk._errors import ResultTimeoutError

    run: Run[object] = session().client.get(run_id)
    end = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
    turn, told = timedelta(0), ""
    while True:
        try:
            run.result(turn)
        except ResultTimeoutError as error:
            left_seconds = end - time.monotonic()
            if timeout is not None and left_seconds <= 0:
                raise CliError(
                    not_over_words(error.status, run_id, timeout.total_seconds()), ExitCode.TIMED_OUT
                ) from error
            if error.status != told and (words := ops.stuck_words(error.status, run_id)) is not None:
                talk(f"run {run_id} is {error.status}: {words}; waiting all the same")
            told = error.status
        except OperationalError:  # A restart or failover ends, the run goes on.
            left_seconds = end - time.monotonic()
            if left_seconds <= 0:
                raise
        else:
            return
        turn = timedelta(seconds=min(_TURN_SECONDS, left_seconds))


def print_result(run_id: str) -> int:
    """Print the value or the error of a run that is over; returns the exit code that says how it ended."""
    ending = ops.get_ending(session().client, run_id)
    code = _CODE_OF_STATUS.get(ending.status)
    if code is None:
        raise CliError(
            f"run {run_id} is {ending.status}, so it has no result yet; "
            f"{ops.stuck_words(ending.status, run_id) or '--wait waits for it'}",
            ExitCode.TIMED_OUT,
        )
    if code is ExitCode.OK or session().form != "table":
        write_object("pgwf.result/1", ending, text=printable(ending.payload or "null", keep_layout=True), id_=run_id)
    if code is not ExitCode.OK:
        talk(_failure_words(ending))
    return int(code)


def _failure_words(ending: ops.Ending) -> str:
    words = f"run {ending.run_id} {'was ' if ending.status != 'failed' else ''}{ending.status}"
    failure = ops.failure_of(ending.payload)
    if failure is None:
        return words
    lines = [f"{words}: {failure.line()}", *failure.notes, failure.traceback.rstrip()]
    return "\n".join(filter(None, lines))
