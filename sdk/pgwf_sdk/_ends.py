"""How a run ended otherwise than with a value, as the error that whoever waits for it gets."""

from __future__ import annotations

from pgwf_sdk import _failure
from pgwf_sdk._errors import RunCancelledError, RunFailedError, RunTerminatedError
from pgwf_sdk._wording import shell_word


def error_of_end(status: str, payload: bytes | None, *, run_id: str) -> Exception:
    """The error for a run that `failed`, was `cancelled` or `terminated`; `payload` is its error envelope.

    SealedError: the envelope is sealed, and nobody has opened it.
    """
    if status == "terminated":
        said = _failure.message_of(payload) or "terminated"
        advice = f"`client.retry({run_id!r})` starts it anew"
        return RunTerminatedError(f"run {run_id} was {said}", run_id=run_id, advice=advice)
    cause = None if payload is None else _failure.rebuild(payload)
    error: Exception
    if status == "cancelled":
        said = _failure.message_of(payload) or f"run {run_id} was cancelled"
        error = RunCancelledError(said, run_id=run_id)
    else:
        what = "an unknown error" if cause is None else _failure.line_of(cause)
        advice = f"see `pgwf show {shell_word(run_id)}`, and `client.retry({run_id!r})` once it is mended"
        error = RunFailedError(f"run {run_id} failed with {what}", run_id=run_id, advice=advice)
    error.__cause__ = cause
    return error
