"""What the clients ask of the database, as values: no I/O, so that the sync and the async client share all of it."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import psycopg
from msgspec import Struct

from pgwf_journal import ENCODING_JSON
from pgwf_sdk import _failure, _serial
from pgwf_sdk._attributes import AttributeValue, attribute_json, attributes_json
from pgwf_sdk._definition import Call, Workflow
from pgwf_sdk._ends import error_of_end
from pgwf_sdk._errors import (
    ERROR_BY_SQLSTATE,
    AwakeableFailedError,
    DefinitionError,
    InvalidArgumentError,
    ResultTimeoutError,
    RunExpiredError,
    RunNotFoundError,
    SealedError,
    SerialisationError,
    UndecodableError,
)
from pgwf_sdk._misuse import check_timedelta
from pgwf_sdk._names import check_id
from pgwf_sdk._places import input_place
from pgwf_sdk._sealing import Sealing
from pgwf_sdk._wording import duration_words, stuck_words
from pgwf_sdk.ops._filters import RunFilter
from pgwf_sdk.ops._rows import FINAL_STATUSES, STATUSES, ForkPrice, RunSummary, TaskSummary
from pgwf_sdk.ops._statements import run_statement, runs_statement, tasks_statement
from pgwf_sql.database import Row, Statement, message_of, read_nothing, read_value

R = TypeVar("R")
S = TypeVar("S", bound=Struct)

TASK_STATES = ("open", "claimed", "decided", "expired", "cancelled")
"""Every state a human task can have."""
PAGE_RUNS = 100
"""Runs that one transaction of `resume_all` or `retry_all` is about."""
_JSON_NULL = b"null"
_POLL_SECONDS_MIN = 1.0
_POLL_SECONDS_MAX = 5.0
_POLL_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Started:
    """Which run a start or a retry led to; `created` is False when an equal start had made it before."""

    n: int
    run_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """How far a run is; `payload` and `encoding` hold its result or its error once `status` is final."""

    n: int
    run_id: str
    status: str
    payload: bytes | None
    encoding: int
    finished_at: datetime | None
    addressed_n: int
    """The number of the run with exactly the id that was asked for, of whose chain `n` is the live end."""

    @property
    def is_final(self) -> bool:
        """True when the run is over."""
        return self.status in FINAL_STATUSES


def translate(error: psycopg.Error) -> Exception:
    """The SDK's error for a SQLSTATE of schema pgwf_sdk; any other database error as it is."""
    kind = ERROR_BY_SQLSTATE.get(error.sqlstate or "")
    return error if kind is None else kind(message_of(error))


def start(
    call: Call[Any],
    *,
    run_id: str,
    start_at: datetime | None,
    deadline: datetime | None,
    priority: int,
    attributes: Mapping[str, AttributeValue] | None,
    singleton_key: str | None,
    trace: str | None,
    by: str,
) -> Statement[Started]:
    """Start `call` as `run_id`; repeatable, because the same id with the same input leads to the same run."""
    return Statement(
        "sdk_start_run",
        {
            "run_id": run_id,
            "workflow": call.workflow.name,
            "need": call.workflow.home,
            "input": call.encode(),
            "encoding": ENCODING_JSON,
            "priority": priority,
            "start_at": start_at,
            "deadline": deadline,
            "build": call.workflow.build,
            "trace": trace,
            "started_by": by,
            "attributes": attributes_json(attributes, used="client.start(attributes=…)"),
            "singleton_key": _checked_key(singleton_key),
        },
        _read_started,
        is_repeatable=True,
    )


def _checked_key(singleton_key: str | None) -> str | None:
    try:
        return None if singleton_key is None else check_id(singleton_key, "singleton_key")
    except DefinitionError as error:
        raise InvalidArgumentError(str(error)) from None


def known_start(start: Statement[Started], sealing: Sealing) -> Statement[Started | None]:
    """The run that a start found its id taken by; None: it has another workflow or another input."""
    wanted = start.parameters

    def read(rows: Sequence[Row]) -> Started | None:
        if not rows or rows[0]["workflow"] != wanted["workflow"]:
            return None
        payload, _ = sealing.open(rows[0]["payload"], rows[0]["encoding"], input_place(rows[0]["workflow"]))
        return Started(rows[0]["n"], rows[0]["run_id"], created=False) if payload == wanted["input"] else None

    return Statement("sdk_known_start", {"run_id": wanted["run_id"]}, read, is_repeatable=True)


def signal_with_start(
    starting: Statement[Started], name: str, value: object, *, dedup_id: str | None
) -> Statement[Started]:
    """Do what `starting` does and send the run a signal, both or neither."""
    payload, encoding = _stored(value, of=f"signal {name!r} to run {starting.parameters['run_id']}")
    parameters = {
        **starting.parameters,
        "signal": name,
        "payload": payload,
        "payload_encoding": encoding,
        "dedup_id": dedup_id,
    }

    def read(rows: Sequence[Row]) -> Started:
        row = rows[0]
        return Started(row["n"], row["run_id"], row["created"])

    return Statement("sdk_signal_with_start_run", parameters, read, is_repeatable=dedup_id is not None)


def run_summary(run_id: str) -> Statement[RunSummary]:
    """The live end of a run's chain as it is now."""
    statement = run_statement(run_id, is_chain=True)

    def read(rows: Sequence[Row]) -> RunSummary:
        found = statement.read(rows)
        if found is None:
            raise RunNotFoundError(f"no run {run_id!r}; `client.list()` shows which there are")
        return found

    return Statement(statement.query, statement.parameters, read, is_repeatable=True)


def runs(
    *,
    statuses: Collection[str],
    workflow: str | None,
    need: str | None,
    parent_run_id: str | None,
    attributes: Mapping[str, AttributeValue] | None,
    before: int | None,
    limit: int,
) -> Statement[tuple[RunSummary, ...]]:
    """Runs, newest first."""
    _require_known("status", statuses, STATUSES)
    chosen = RunFilter(
        statuses=tuple(statuses),
        workflows=() if workflow is None else (workflow,),
        needs=() if need is None else (need,),
        parent=parent_run_id,
        attributes=tuple(
            (name, attribute_json(name, value, used="client.list(attributes=…)").decode())
            for name, value in (attributes or {}).items()
        ),
    )
    page = runs_statement(chosen, before=before, limit=limit)
    return Statement(page.query, page.parameters, lambda rows: page.read(rows).runs, is_repeatable=True)


def ending(run_id: str, *, n: int | None = None) -> Statement[Ending]:
    """How far a run is, with its result or error when it is over. RunExpiredError: it has not number `n` any more."""

    def read(rows: Sequence[Row]) -> Ending:
        found = Ending(**rows[0])
        if n is not None and found.addressed_n != n:
            raise expired(run_id)
        return found

    return Statement("sdk_run_result", {"run_id": run_id}, read, is_repeatable=True)


def expired(run_id: str) -> RunExpiredError:
    """What a handle says of a run that there was once."""
    return RunExpiredError(f"run {run_id} is over, and retention has removed it with its result; keep runs for longer")


def signal(run_id: str, name: str, value: object, *, dedup_id: str | None) -> Statement[bool]:
    """Send a signal; False when one with the same `dedup_id` had been sent before."""
    payload, encoding = _stored(value, of=f"signal {name!r} to run {run_id}")
    parameters = {
        "run_id": run_id,
        "name": name,
        "payload": payload,
        "encoding": encoding,
        "dedup_id": dedup_id,
    }
    return Statement("sdk_signal_run", parameters, read_value, is_repeatable=dedup_id is not None)


def complete_awakeable(token: str, value: object) -> Statement[bool]:
    """Complete an awakeable; False when it had been completed or failed before."""
    payload, encoding = _stored(value, of="awakeable")
    return _settle_awakeable(token, payload, encoding, is_failed=False)


def fail_awakeable(token: str, error: Exception | str) -> Statement[bool]:
    """Fail an awakeable; False when it had been completed or failed before."""
    raised = AwakeableFailedError(error) if isinstance(error, str) else error
    return _settle_awakeable(token, _failure.describe(raised), ENCODING_JSON, is_failed=True)


def _settle_awakeable(token: str, payload: bytes | None, encoding: int, *, is_failed: bool) -> Statement[bool]:
    parameters = {"token": token, "payload": payload, "encoding": encoding, "is_failed": is_failed}
    return Statement("sdk_settle_awakeable", parameters, read_value, is_repeatable=True)


def cancel(run_id: str, *, reason: str | None, by: str, grace: timedelta | None) -> Statement[str]:
    """Ask a run to stop and clean up."""
    if grace is not None:
        check_timedelta(grace, used=f"run {run_id}: cancel(grace=…)")
    grace_seconds = None if grace is None else grace.total_seconds()
    parameters = {"run_id": run_id, "by": by, "reason": reason, "grace_seconds": grace_seconds}
    return Statement("sdk_cancel_run", parameters, read_value, is_repeatable=True)


def terminate(run_id: str, *, reason: str | None, by: str) -> Statement[str]:
    """Stop a run without running any more of its code."""
    parameters = {"run_id": run_id, "by": by, "reason": reason}
    return Statement("sdk_terminate_run", parameters, read_value, is_repeatable=True)


def pause(run_id: str, *, by: str) -> Statement[str]:
    """Keep a run from being worked on until it is resumed."""
    return Statement("sdk_pause_run", {"run_id": run_id, "by": by}, read_value, is_repeatable=True)


def resume(run_id: str, *, by: str) -> Statement[str]:
    """Let a paused or blocked run go on."""
    return Statement("sdk_resume_run", {"run_id": run_id, "by": by}, read_value, is_repeatable=True)


def retry(run_id: str, *, by: str) -> Statement[Started]:
    """Start a new run that takes over what a failed one had recorded before its failing entry."""
    return Statement("sdk_retry_run", {"run_id": run_id, "by": by}, _read_retried, is_repeatable=True)


def fork(run_id: str, *, before: str | int, new_run_id: str | None, by: str) -> Statement[Started]:
    """Start a new run with what another one had recorded before an entry; repeatable when it is told its id."""
    parameters = {"run_id": run_id, "before": str(before), "new_run_id": new_run_id, "by": by}
    return Statement("sdk_fork_run", parameters, _read_started, is_repeatable=new_run_id is not None)


def fork_price(run_id: str, *, before: str | int) -> Statement[ForkPrice]:
    """What a fork would copy and do again."""
    return Statement("sdk_fork_price", {"run_id": run_id, "before": str(before)}, _read_price, is_repeatable=True)


class Pages:
    """Does one thing to many runs, the newest first, page by page; `count` is how many it was done to."""

    def __init__(self, query: str, *, workflow: str | None, by: str) -> None:
        self.count = 0
        self._query = query
        self._parameters: dict[str, object] = {"workflow": workflow, "by": by, "before": None, "limit": PAGE_RUNS}

    def next(self) -> Statement[bool]:
        """The statement for the next page; its answer is True when there may be a further one."""

        def read(rows: Sequence[Row]) -> bool:
            self.count += len(rows)
            self._parameters["before"] = min((row["n"] for row in rows), default=None)
            return len(rows) == PAGE_RUNS

        return Statement(self._query, dict(self._parameters), read)


def resume_all(*, workflow: str | None, by: str) -> Pages:
    """Let all blocked runs go on."""
    return Pages("sdk_resume_runs", workflow=workflow, by=by)


def retry_all(*, workflow: str, by: str) -> Pages:
    """Retry all failed runs of a workflow."""
    return Pages("sdk_retry_runs", workflow=workflow, by=by)


def tasks(
    *, need: str | None, states: Collection[str], holder: str | None, limit: int
) -> Statement[tuple[TaskSummary, ...]]:
    """Human tasks, those due first on top."""
    _require_known("state", states, TASK_STATES)
    return tasks_statement(
        states=tuple(states) or None, need=need, holder=holder, is_overdue=False, run_n=None, limit=limit
    )


def claim_task(task_id: str, *, by: str, duration: timedelta) -> Statement[datetime]:
    """Take a task for `duration`; taking one's own again begins the time anew."""
    check_timedelta(duration, used=f"claim of task {task_id}, duration=…")
    parameters = {"task_id": task_id, "by": by, "seconds": duration.total_seconds()}
    return Statement("sdk_claim_task", parameters, read_value, is_repeatable=True)


def release_task(task_id: str, *, by: str) -> Statement[None]:
    """Give a claimed task back undecided."""
    return Statement("sdk_release_task", {"task_id": task_id, "by": by}, read_nothing)


def decide_task(task_id: str, value: object, *, by: str) -> Statement[None]:
    """Decide a task."""
    payload, encoding = (
        (_JSON_NULL, ENCODING_JSON) if value is None else _stored(value, of=f"decision of task {task_id}")
    )
    parameters = {"task_id": task_id, "by": by, "payload": payload, "encoding": encoding}
    return Statement("sdk_decide_task", parameters, read_nothing)


def watch(n: int, *, listener: str) -> Statement[list[str]]:
    """Ask to be notified when run `n` ends; gives the channels to listen on."""
    parameters = {"listener": listener, "channels": [f"run.{n}"]}
    return Statement("pgwf_sleep_on", parameters, lambda rows: [row["channel"] for row in rows], is_repeatable=True)


def unwatch(*, listener: str) -> Statement[None]:
    """Take back what `watch` asked for."""
    return Statement("pgwf_wake_up", {"listener": listener}, read_nothing, is_repeatable=True)


class Patience:
    """How long a wait for a run's end goes on: polls from 1 s growing to 5 s, until the timeout (None: for ever)."""

    def __init__(self, run_id: str, timeout: timedelta | None) -> None:
        if timeout is not None:
            check_timedelta(timeout, used=f"run {run_id}: result(timeout=…)")
        self._run_id = run_id
        self._waited_seconds = 0.0 if timeout is None else timeout.total_seconds()
        self._end = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        self._pause_seconds = _POLL_SECONDS_MIN

    def pause_seconds(self, seen: Ending) -> float:
        """How long to wait at most before looking again. ResultTimeoutError when the time is over."""
        if self._left_seconds() <= 0:
            goes_on = f"it goes on: ask again later, or see why with `pgwf why {self._run_id}`"
            raise ResultTimeoutError(
                f"run {self._run_id} is {seen.status} after {duration_words(self._waited_seconds)}, expected it to be"
                f" over; {stuck_words(seen.status, self._run_id) or goes_on}",
                run_id=self._run_id,
                status=seen.status,
            )
        return self._next_pause_seconds()

    def pause_seconds_after(self, error: psycopg.OperationalError) -> float:
        """The same after a look that failed: a restart or failover ends, the run goes on. `error` when it does not."""
        if self._left_seconds() <= 0:
            raise error
        return self._next_pause_seconds()

    def _left_seconds(self) -> float:
        return self._end - time.monotonic()

    def _next_pause_seconds(self) -> float:
        pause_seconds = min(self._pause_seconds, max(0.0, self._left_seconds()))
        self._pause_seconds = min(self._pause_seconds * _POLL_GROWTH, _POLL_SECONDS_MAX)
        return pause_seconds


def result_of(ending: Ending, workflow: Workflow[..., R] | None) -> R:
    """The value a run completed with, as `workflow` declares it; otherwise the error that says how it ended."""
    run_id = ending.run_id
    if ending.status == "completed":
        codec = _serial.codec_for(None) if workflow is None else workflow.codec
        try:
            value: R = codec.decode(ending.payload, ending.encoding)
        except SealedError:
            raise
        except UndecodableError as error:
            raise UndecodableError(
                f"run {run_id}: its result cannot be read: {error}; expected a return annotation that accepts it,"
                f" or `pgwf result {run_id}`"
            ) from error
        return value
    raise error_of_end(ending.status, ending.payload, run_id=run_id)


def _read_started(rows: Sequence[Row]) -> Started:
    return Started(**rows[0])


def _read_price(rows: Sequence[Row]) -> ForkPrice:
    return msgspec.convert(rows[0], ForkPrice)


def _read_retried(rows: Sequence[Row]) -> Started:
    return Started(**rows[0], created=True)


def _stored(value: object, *, of: str) -> tuple[bytes | None, int]:
    """`value` as (payload, encoding). SerialisationError: it cannot be stored; the message begins with `of`."""
    try:
        return _serial.encode(value)
    except SerialisationError as error:
        raise SerialisationError(f"{of}: {error}", path=error.path) from None


def _require_known(what: str, given: Collection[str], known: Collection[str]) -> None:
    # A string is a collection of strings, one for each of its letters.
    unknown = [given] if isinstance(given, str) else sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no list of what a {what} can be: {', '.join(known)}")
