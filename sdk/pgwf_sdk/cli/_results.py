"""The end of a run, as a command prints it and exits with it."""

from datetime import timedelta
from types import MappingProxyType

from pgwf_sdk import ops
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._output import talk, write_object
from pgwf_sdk.cli._session import session
from pgwf_sdk.cli._text import printable

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
    """Wait for the end of a run, however it ends. CliError (timed out) when it does not within `timeout`."""
    from pgwf_sdk._errors import PgwfError, ResultTimeoutError

    try:
        session().client.get(run_id).result(timeout)
    except ResultTimeoutError as error:
        raise CliError(str(error), ExitCode.TIMED_OUT) from error
    except PgwfError:
        # How it ended is read from the database next; that its value needs a class nobody imported here is no matter.
        return
    except KeyboardInterrupt:
        talk(f"stopped waiting; run {run_id} goes on")
        raise


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
