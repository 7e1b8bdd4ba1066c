"""What the database needs to start a child run or to open a human task that the workflow's code asked for."""

from collections.abc import Mapping
from datetime import timedelta

from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import check_kind
from pgwf_sdk._misuse import check_names
from pgwf_sdk._names import HUMAN_PREFIX, ID_BYTES_MAX, check_id, check_storable
from pgwf_sdk.replay import HumanRequest, OpenHuman, StartChild
from pgwf_sdk.replay._child_ids import child_id, given_id, shortened
from pgwf_sdk.worker._advance import ChildStart, TaskOpening


def child_start(parent_run_id: str, command: StartChild) -> ChildStart:
    """The child run of a call. SerialisationError: an argument cannot be stored. DefinitionError: no id of a run."""
    workflow = command.call.workflow
    if command.run_id is None:
        run_id = child_id(parent_run_id, command.id.scope, workflow.name, command.id.occurrence)
    else:
        run_id = given_id(parent_run_id, check_id(command.run_id, f"child run of {workflow.name!r}"))
    return ChildStart(
        key=command.id.key,
        run_id=run_id,
        workflow=workflow.name,
        need=workflow.home,
        build=workflow.build,
        payload=command.call.encode(),
        encoding=1,
        close=None if command.on_close == "request_cancel" else command.on_close,
    )


def task_id_of(run_id: str, key: str) -> str:
    """The id of the human task of a call."""
    return shortened(f"{run_id}{key}", ID_BYTES_MAX)


def task_opening(run_id: str, command: OpenHuman) -> TaskOpening:
    """The human task of a call. SerialisationError: its subject cannot be stored. DefinitionError: what cannot
    be asked."""
    request = command.request
    if request.notify:
        raise DefinitionError(
            f"human task {request.name!r}: notify={request.notify!r}; this release has no channels to notify by."
            " Leave it out and send the message in a step before"
        )
    subject_of = f"human task {request.name!r}"
    excluded = check_names(request.exclude, used=f"{subject_of}: exclude", such_as="ann")
    named = (("title", request.title), ("assign", request.assign), *(("exclude", one) for one in excluded))
    for option, text in named:
        if text is not None:
            check_storable(text, f"{subject_of}: {option}")
    need = _need(request.name, request.need)
    _check_escalation(request, need)
    _check_expiry(request)
    subject, encoding = request.encode_subject()
    return TaskOpening(
        key=command.id.key,
        task_id=task_id_of(run_id, command.id.key),
        name=request.name,
        title=request.title,
        need=need,
        subject=(subject or b"null").decode(),
        encoding=encoding or 1,
        decision_schema=request.decision_schema(),
        prefill=_prefill(request),
        assigned=request.assign,
        excluded=excluded,
        due_seconds=_seconds(request.due),
        escalate=request.escalate,
        expires_seconds=_seconds(request.expires),
    )


def _prefill(request: HumanRequest) -> str | None:
    payload, _ = request.codec.encode(request.prefill, subject=f"prefill of {request.name}")
    return None if payload is None else payload.decode()


def _need(name: str, need: str | Mapping[str, int]) -> str:
    check_kind(need, (str, Mapping), used=f"human task {name!r}: need", expected="a text, such as 'human.risk'")
    seats = {need: 1} if isinstance(need, str) else dict(need)
    if len(seats) != 1 or set(seats.values()) != {1}:
        raise DefinitionError(
            f"human task {name!r}: needs {seats}; expected one seat. Ask each reviewer with a task of their own,"
            " side by side in ctx.parallel"
        )
    (capability,) = seats
    return _capability(name, capability, option="need")


def _check_expiry(request: HumanRequest) -> None:
    if request.on_expire is not None and request.expires is None:
        raise DefinitionError(
            f"human task {request.name!r}: on_expire without expires; say when it is to count: expires=timedelta(…)"
        )


def _check_escalation(request: HumanRequest, need: str) -> None:
    if request.escalate is None:
        return
    _capability(request.name, request.escalate, option="escalate")
    if request.due is None:
        raise DefinitionError(
            f"human task {request.name!r}: escalate={request.escalate!r} without due; say when it is to be handed on:"
            " due=timedelta(…)"
        )
    if request.escalate == need:
        raise DefinitionError(
            f"human task {request.name!r}: escalate={request.escalate!r} is its need; expected another one"
        )


def _capability(name: str, capability: str, *, option: str) -> str:
    check_id(capability, f"{option} of human task {name!r}")
    if not capability.startswith(HUMAN_PREFIX):
        raise DefinitionError(
            f"human task {name!r}: {option} {capability!r}; expected one that begins with {HUMAN_PREFIX!r},"
            " which no worker takes"
        )
    return capability


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
