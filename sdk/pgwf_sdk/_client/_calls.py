"""What the clients ask of the database, as values: no I/O, so that the sync and the async client share all of it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
import psycopg

from pgwf_journal import ENCODING_JSON
from pgwf_sdk import _failure, _serial
from pgwf_sdk._attributes import AttributeValue, attribute_json, attributes_json, check_attributes
from pgwf_sdk._definition import Call, Workflow
from pgwf_sdk._ends import error_of_end
from pgwf_sdk._errors import (
    ERROR_BY_SQLSTATE,
    AwakeableFailedError,
    DefinitionError,
    InvalidArgumentError,
    RunExpiredError,
    RunNotFoundError,
    SealedError,
    SerialisationError,
    UndecodableError,
)
from pgwf_sdk._kinds import check_counts, check_instants, check_kind, check_text, check_texts, check_timedelta
from pgwf_sdk._misuse import check_names, check_workflow
from pgwf_sdk._names import check_id
from pgwf_sdk._places import input_place
from pgwf_sdk._sealing import Sealing
from pgwf_sdk._wording import shell_word
from pgwf_sdk.ops._decisions import DecisionError, DecisionForm
from pgwf_sdk.ops._filters import RunFilter
from pgwf_sdk.ops._rows import FINAL_STATUSES, STATUSES, ForkPrice, RunSummary, TaskSummary
from pgwf_sdk.ops._statements import run_statement, runs_statement, tasks_statement
from pgwf_sql.database import Row, Statement, message_of, read_nothing, read_value

R = TypeVar("R")

TASK_STATES = ("open", "claimed", "decided", "expired", "cancelled")
"""Every state a human task can have."""
PAGE_RUNS = 100
"""Runs that one transaction of `resume_all` or `retry_all` is about."""
WITH_START = "client.signal_with_start"
_JSON_NULL = b"null"
_LIST_RUNS = "`client.list()` shows which there are"


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
    if kind is RunNotFoundError and error.diag.message_hint is not None:  # It shows the SQL that lists them.
        return RunNotFoundError(f"{error.diag.message_primary}; {_LIST_RUNS}")
    return error if kind is None else kind(message_of(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What a start says beside the call and its id; as in `Client.start`."""

    start_at: datetime | None
    deadline: datetime | None
    priority: int
    attributes: Mapping[str, AttributeValue] | None
    singleton_key: str | None


def start(
    call: Call[Any],
    run_id: str,
    options: StartOptions,
    *,
    trace: str | None,
    by: str,
    sending: Statement[bool] | None = None,
) -> Statement[Started]:
    """Start `call` as `run_id` and, if there is something to send, do both or neither.

    Repeatable, because the same id with the same input leads to the same run, unless the sending is not.
    """
    used = "client.start" if sending is None else WITH_START
    check_texts(used, run_id=run_id, singleton_key=options.singleton_key)
    check_instants(used, start_at=options.start_at, deadline=options.deadline)
    check_counts(used, priority=options.priority)
    if not 1 <= options.priority <= 4:  # Larger numbers are of types that the SQL function does not take.
        raise InvalidArgumentError(f"{used}(priority=…): found {options.priority}; expected 1 (most urgent) to 4")
    parameters = {
        "run_id": run_id,
        "workflow": call.workflow.name,
        "need": call.workflow.home,
        "input": call.encode(),
        "encoding": ENCODING_JSON,
        "priority": options.priority,
        "start_at": options.start_at,
        "deadline": options.deadline,
        "build": call.workflow.build,
        "trace": trace,
        "started_by": by,
        "attributes": attributes_json(options.attributes, used=f"{used}(attributes=…)"),
        "singleton_key": _checked_key(options.singleton_key),
    }
    if sending is None:
        return Statement("sdk_start_run", parameters, _read_started, is_repeatable=True)
    sent = sending.parameters
    parameters |= {"signal": sent["name"], "payload": sent["payload"], "payload_encoding": sent["encoding"]}
    parameters |= {"dedup_id": sent["dedup_id"]}
    return Statement("sdk_signal_with_start_run", parameters, _read_started, is_repeatable=sending.is_repeatable)


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


def run_summary(run_id: str, workflow: Workflow[..., Any] | None = None) -> Statement[RunSummary]:
    """The live end of a run's chain as it is now; `workflow` is what its result is to be read by."""
    _check_run(run_id, workflow, used="client.get")
    statement = run_statement(run_id, is_chain=True)

    def read(rows: Sequence[Row]) -> RunSummary:
        found = statement.read(rows)
        if found is None:
            raise RunNotFoundError(f"no run {run_id!r}; {_LIST_RUNS}")
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
    check_texts("client.list", workflow=workflow, need=need, parent_run_id=parent_run_id)
    check_counts("client.list", before=before, limit=limit)
    check_attributes(attributes, used="client.list(attributes=…)")
    _check_known(statuses, STATUSES, used="client.list(statuses=…)")
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


def signal(
    run_id: str, name: str, value: object, *, dedup_id: str | None, used: str = "client.signal"
) -> Statement[bool]:
    """Send a signal; False when one with the same `dedup_id` had been sent before."""
    _check_run(run_id, used=used)
    check_text(name, used=f"{used}(…, name)", such_as="paid")
    check_texts(used, dedup_id=dedup_id)
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
    check_text(token, used="client.complete_awakeable(token)")
    payload, encoding = _stored(value, of="awakeable")
    return _settle_awakeable(token, payload, encoding, is_failed=False)


def fail_awakeable(token: str, error: Exception | str) -> Statement[bool]:
    """Fail an awakeable; False when it had been completed or failed before."""
    check_text(token, used="client.fail_awakeable(token)")
    check_kind(error, (str, Exception), used="client.fail_awakeable(…, error)", expected="an exception or a text")
    raised = AwakeableFailedError(error) if isinstance(error, str) else error
    return _settle_awakeable(token, _failure.describe(raised), ENCODING_JSON, is_failed=True)


def _settle_awakeable(token: str, payload: bytes | None, encoding: int, *, is_failed: bool) -> Statement[bool]:
    parameters = {"token": token, "payload": payload, "encoding": encoding, "is_failed": is_failed}
    return Statement("sdk_settle_awakeable", parameters, read_value, is_repeatable=True)


def cancel(run_id: str, *, reason: str | None, by: str, grace: timedelta | None) -> Statement[str]:
    """Ask a run to stop and clean up."""
    _check_run(run_id, used="client.cancel")
    check_texts("client.cancel", reason=reason, by=by)
    if grace is not None:
        check_timedelta(grace, used="client.cancel(grace=…)")
    grace_seconds = None if grace is None else grace.total_seconds()
    parameters = {"run_id": run_id, "by": by, "reason": reason, "grace_seconds": grace_seconds}
    return Statement("sdk_cancel_run", parameters, read_value, is_repeatable=True)


def terminate(run_id: str, *, reason: str | None, by: str) -> Statement[str]:
    """Stop a run without running any more of its code."""
    _check_run(run_id, used="client.terminate")
    check_texts("client.terminate", reason=reason, by=by)
    parameters = {"run_id": run_id, "by": by, "reason": reason}
    return Statement("sdk_terminate_run", parameters, read_value, is_repeatable=True)


def pause(run_id: str, *, by: str) -> Statement[str]:
    """Keep a run from being worked on until it is resumed."""
    _check_run(run_id, used="client.pause")
    check_texts("client.pause", by=by)
    return Statement("sdk_pause_run", {"run_id": run_id, "by": by}, read_value, is_repeatable=True)


def resume(run_id: str, *, by: str) -> Statement[str]:
    """Let a paused or blocked run go on."""
    _check_run(run_id, used="client.resume")
    check_texts("client.resume", by=by)
    return Statement("sdk_resume_run", {"run_id": run_id, "by": by}, read_value, is_repeatable=True)


def retry(run_id: str, workflow: Workflow[..., Any] | None = None, *, by: str) -> Statement[Started]:
    """Start a new run that takes over what a failed one had recorded before its failing entry."""
    _check_run(run_id, workflow, used="client.retry")
    check_texts("client.retry", by=by)
    return Statement("sdk_retry_run", {"run_id": run_id, "by": by}, _read_retried, is_repeatable=True)


def fork(
    run_id: str,
    workflow: Workflow[..., Any] | None = None,
    *,
    before: str | int,
    new_run_id: str | None,
    by: str,
) -> Statement[Started]:
    """Start a new run with what another one had recorded before an entry; repeatable when it is told its id."""
    _check_run(run_id, workflow, used="client.fork")
    check_texts("client.fork", run_id=new_run_id, by=by)
    _check_before(before, used="client.fork")
    parameters = {"run_id": run_id, "before": str(before), "new_run_id": new_run_id, "by": by}
    return Statement("sdk_fork_run", parameters, _read_started, is_repeatable=new_run_id is not None)


def fork_price(run_id: str, *, before: str | int) -> Statement[ForkPrice]:
    """What a fork would copy and do again."""
    _check_run(run_id, used="client.fork_price")
    _check_before(before, used="client.fork_price")
    return Statement("sdk_fork_price", {"run_id": run_id, "before": str(before)}, _read_price, is_repeatable=True)


class Pages:
    """Does one thing to many runs, the newest first, page by page; `count` is how many it was done to."""

    def __init__(self, query: str, *, workflow: str | None, by: str, used: str) -> None:
        check_texts(used, workflow=workflow, by=by)
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
    return Pages("sdk_resume_runs", workflow=workflow, by=by, used="client.resume_all")


def retry_all(*, workflow: str, by: str) -> Pages:
    """Retry all failed runs of a workflow."""
    return Pages("sdk_retry_runs", workflow=workflow, by=by, used="client.retry_all")


def tasks(
    *, need: str | None, states: Collection[str], holder: str | None, limit: int
) -> Statement[tuple[TaskSummary, ...]]:
    """Human tasks, those due first on top."""
    check_texts("client.human.list", need=need, holder=holder)
    check_counts("client.human.list", limit=limit)
    _check_known(states, TASK_STATES, used="client.human.list(states=…)")
    return tasks_statement(
        states=tuple(states) or None, need=need, holder=holder, is_overdue=False, run_n=None, limit=limit
    )


def claim_task(task_id: str, *, by: str, duration: timedelta) -> Statement[datetime]:
    """Take a task for `duration`; taking one's own again begins the time anew."""
    _check_task(task_id, by, used="client.human.claim")
    check_timedelta(duration, used="client.human.claim(duration=…)")
    parameters = {"task_id": task_id, "by": by, "seconds": duration.total_seconds()}
    return Statement("sdk_claim_task", parameters, read_value, is_repeatable=True)


def release_task(task_id: str, *, by: str) -> Statement[None]:
    """Give a claimed task back undecided."""
    _check_task(task_id, by, used="client.human.release")
    return Statement("sdk_release_task", {"task_id": task_id, "by": by}, read_nothing)


class Answer:
    """A value that is to decide a task. SerialisationError: it cannot be stored."""

    def __init__(self, task_id: str, value: object, *, by: str) -> None:
        _check_task(task_id, by, used="client.human.decide")
        payload, encoding = (
            (_JSON_NULL, ENCODING_JSON) if value is None else _stored(value, of=f"decision of task {task_id}")
        )
        self._task_id = task_id
        self._value = value
        self._parameters = {"task_id": task_id, "by": by, "payload": payload, "encoding": encoding}

    def form(self) -> Statement[DecisionForm]:
        """What may decide the task."""

        def read(rows: Sequence[Row]) -> DecisionForm:
            return DecisionForm(read_value(rows), is_typed=True)

        return Statement("sdk_decision_schema", {"task_id": self._task_id}, read, is_repeatable=True)

    def deciding(self, form: DecisionForm) -> Statement[None]:
        """Decide the task. InvalidArgumentError: the value does not fit the form."""
        try:
            form.check(_serial.in_json(self._value))
        except DecisionError as error:
            raise InvalidArgumentError(
                f"client.human.decide: task {self._task_id}: {error}; nothing was decided,"
                f" `pgwf human show {shell_word(self._task_id)}` lists what it takes"
            ) from error
        except SerialisationError:
            pass  # Plain JSON has no form for it; the workflow checks it by its type.
        return Statement("sdk_decide_task", self._parameters, read_nothing)


def watch(n: int, *, listener: str) -> Statement[list[str]]:
    """Ask to be notified when run `n` ends; gives the channels to listen on."""
    parameters = {"listener": listener, "channels": [f"run.{n}"]}
    return Statement("pgwf_sleep_on", parameters, lambda rows: [row["channel"] for row in rows], is_repeatable=True)


def unwatch(*, listener: str) -> Statement[None]:
    """Take back what `watch` asked for."""
    return Statement("pgwf_wake_up", {"listener": listener}, read_nothing, is_repeatable=True)


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
                f" or `pgwf result {shell_word(run_id)}`"
            ) from error
        return value
    raise error_of_end(ending.status, ending.payload, run_id=run_id)


def _check_run(run_id: object, workflow: object = None, *, used: str) -> None:
    """TypeError: no id of a run, or what should tell its workflow does not."""
    check_text(run_id, used=f"{used}(run_id)", such_as="order-17")
    if workflow is not None:
        check_workflow(workflow, used=f"{used}({run_id!r}, …)")


def _check_before(before: object, *, used: str) -> None:
    """TypeError: neither the key of a call nor the number of an entry."""
    check_kind(
        before,
        (str, int),
        used=f"{used}(before=…)",
        expected="a call's key, such as '/step:charge#1', or a number",
    )


def _check_task(task_id: object, by: object, *, used: str) -> None:
    check_text(task_id, used=f"{used}(task_id)", such_as="order-17/human:approve#1")
    check_texts(used, by=by)


def _read_started(rows: Sequence[Row]) -> Started:
    return Started(rows[0]["n"], rows[0]["run_id"], rows[0]["created"])


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


def _check_known(given: Collection[str], known: Sequence[str], *, used: str) -> None:
    """TypeError: no list of texts. ValueError: one that is none of `known`."""
    for found in check_names(given, used=used, such_as=known[0]):
        if found not in known:
            raise ValueError(f"{used}: found {found!r}; expected some of {', '.join(known)}")
