"""Writes of values that are known as JSON only, such as what a person typed: no Python type names them.

They go through the same functions as a client's. The JSON is stored byte for byte, to be read by the annotation of
whoever receives it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import psycopg

from pgwf_sdk._attributes import AttributeValue, attributes_json
from pgwf_sdk._errors import ERROR_BY_SQLSTATE
from pgwf_sdk.ops._source import Source, run
from pgwf_sql.database import Row, Statement, message_of, read_nothing, read_value

T = TypeVar("T")

_PLAIN_JSON = 1  # The encoding that the reader's annotation explains.


def start_from_json(
    source: Source,
    workflow: str,
    payload: bytes,
    *,
    run_id: str,
    need: str | None = None,
    priority: int = 3,
    start_at: datetime | None = None,
    deadline: datetime | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    singleton_key: str | None = None,
    by: str,
) -> bool:
    """Start a run by the name of its workflow; `payload` is `{"args": […], "kwargs": {…}}`.

    Without `need` the run asks for what the workflow's latest run asked for, and if there was none for the workflow's
    own name. False, and nothing changes, when the same start had made that run before; RunConflictError when another
    run has the id.
    """
    parameters = {
        "run_id": run_id,
        "workflow": workflow,
        "need": need or _need_of_workflow(source, workflow),
        "input": payload,
        "encoding": _PLAIN_JSON,
        "priority": priority,
        "start_at": start_at,
        "deadline": deadline,
        "build": None,
        "trace": None,
        "started_by": by,
        "attributes": attributes_json(attributes, used="start"),
        "singleton_key": singleton_key,
    }
    return write(source, Statement("sdk_start_run", parameters, lambda rows: bool(rows[0]["created"])))


def signal_json(source: Source, run_id: str, name: str, payload: bytes, *, dedup_id: str | None = None) -> bool:
    """Send a signal; False when one with the same `dedup_id` was sent before. RunFinishedError: the run is over."""
    parameters = {
        "run_id": run_id,
        "name": name,
        "payload": payload,
        "encoding": _PLAIN_JSON,
        "dedup_id": dedup_id,
    }
    is_new: bool = write(source, Statement("sdk_signal_run", parameters, read_value))
    return is_new


def decide_json(source: Source, task_id: str, payload: bytes, *, by: str) -> None:
    """Decide a human task. TaskUnavailableError: it is decided already, or somebody else holds it."""
    parameters: Mapping[str, object] = {
        "task_id": task_id,
        "by": by,
        "payload": payload,
        "encoding": _PLAIN_JSON,
    }
    write(source, Statement("sdk_decide_task", parameters, read_nothing))


def _need_of_workflow(source: Source, workflow: str) -> str:
    def read(rows: Sequence[Row]) -> str:
        return str(rows[0]["need"]) if rows else workflow

    return run(source, Statement("ops_need_of_workflow", {"workflow": workflow}, read))


def write(source: Source, statement: Statement[T]) -> T:
    """Run a statement that changes something; errors of schema pgwf_sdk arrive as their classes."""
    try:
        return run(source, statement)
    except psycopg.Error as error:
        kind = ERROR_BY_SQLSTATE.get(error.sqlstate or "")
        if kind is None:
            raise
        raise kind(message_of(error)) from None
