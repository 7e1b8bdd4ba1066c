"""What both contexts can do: the logic once, without threads and coroutines. The contexts add the waiting."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast
from uuid import UUID

from pgwf_journal import ENCODING_JSON
from pgwf_sdk import _failure
from pgwf_sdk._attributes import AttributeValue, attribute_json
from pgwf_sdk._definition import Call, Step, Workflow, as_step
from pgwf_sdk._errors import ContextError, DefinitionError
from pgwf_sdk._kinds import check_counts, check_instant, check_texts, check_timedelta, check_type, described
from pgwf_sdk._misuse import check_call
from pgwf_sdk._names import annotation_text, check_name
from pgwf_sdk._serial import codec_for
from pgwf_sdk.replay._awakeable import AwakeableCall
from pgwf_sdk.replay._calls import (
    FAILURE_MARK,
    AttributeCall,
    ChildCall,
    HumanCall,
    PendingCall,
    SignalCall,
    StepCall,
    TimerCall,
    ValueCall,
)
from pgwf_sdk.replay._group import CallGroup
from pgwf_sdk.replay._human import HumanRequest
from pgwf_sdk.replay._places import line_of_caller
from pgwf_sdk.replay._plan import Plan
from pgwf_sdk.replay._policy import BranchResults, Policy, Tally, checked_policy
from pgwf_sdk.replay._polling import polling_step

if TYPE_CHECKING:
    from random import Random

    from pgwf_sdk.replay._commands import OnClose
    from pgwf_sdk.replay._machine import Machine
    from pgwf_sdk.replay._scope import Scope

__all__ = ["ContextCore", "RunLog"]

DURATION_MAX: Final = timedelta(days=3660)
"""Ten years: a longer wait is a mistake in a unit."""

SDK_PATCHES: Final = "sdk:"
"""Begins the names of patches by which the SDK itself changes what a journal means: runs on the old way keep it."""

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger("pgwf_sdk.run")


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while the code only repeats what an earlier activation logged already."""

    def __init__(self, machine: Machine, scope: Scope) -> None:
        super().__init__(_logger, {"run_id": machine.run.run_id, "workflow": machine.run.workflow, "scope": scope.path})
        self._machine = machine

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        machine = self._machine
        return not (machine.is_silent or machine.is_latched) and super().isEnabledFor(level)


class ContextCore(ABC):
    """Calls of one scope of one run."""

    __slots__ = ("_log", "_machine", "_scope")

    def __init__(self, machine: Machine, scope: Scope) -> None:
        self._machine = machine
        self._scope = scope
        self._log: RunLog | None = None

    @abstractmethod
    def _check(self) -> None:
        """ContextError: this context must not be used here and now."""

    # -- public, not awaited in either context

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._machine.run.run_id

    @property
    def is_replaying(self) -> bool:
        """True while the code repeats what an earlier activation did. For logs and metrics only: never branch on it."""
        return self._machine.history.is_replaying

    @property
    def random(self) -> Random:
        """A generator whose numbers are the same in every replay, and others in every run and branch."""
        self._check()
        return self._scope.random

    @property
    def log(self) -> RunLog:
        """A logger that says each line once however often the run is replayed; it adds run_id, workflow and scope."""
        if self._log is None:
            self._log = RunLog(self._machine, self._scope)
        return self._log

    def now(self) -> datetime:
        """Return the database's time of what happened to this run last: it stands still between two calls."""
        self._check()
        return self._machine.now

    def uuid4(self) -> UUID:
        """Return a random UUID that is the same in every replay."""
        self._check()
        return UUID(int=self._scope.random.getrandbits(128), version=4)

    def patched(self, name: str, /) -> bool:
        """Return True where a run takes the new way at a changed place, False where it took the old way before.

        Decided when a run first gets there, and recorded: runs that had passed the place before keep the old way.
        """
        self._check()
        return self._machine.patched(_check_patch(name, "ctx.patched"))

    def deprecate_patch(self, name: str, /) -> None:
        """Say that no run is left on the old way of `name`; then the old code can go, and later this line too."""
        self._check()
        self._machine.patched(_check_patch(name, "ctx.deprecate_patch"))

    def set_attribute(self, name: str, value: AttributeValue | None, /) -> None:
        """Record what people and programs can search runs by, as in `client.list(attributes={"customer": 17})`.

        Written with the next step or wait; a later value takes the place of an earlier one, None takes it away. Short:
        it is for searching, not for keeping data. SerialisationError: it is no text, number or the like.
        """
        self._check()
        call = AttributeCall(self._scope, name, codec_for(None))
        if self._machine.open(call):
            if value is not None:
                call.payload, call.encoding = attribute_json(name, value, used="ctx.set_attribute"), ENCODING_JSON
            self._machine.record_before_end(call)

    def on_exit(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Plan a step for the end of the run, however it ends; not if it is terminated. The last planned is done first.

        It is done once, unlike code in `finally`, which runs in every activation; and recorded, like every step.
        """
        self._check()
        step = self._as_step(fn, "ctx.on_exit")
        step.parameters.check(args, kwargs)
        if step.is_deferred:
            raise DefinitionError(
                f'ctx.on_exit: step {step.name!r} has durability="deferred"; expected one whose end is recorded at'
                " once, so that it is not repeated"
            )
        self._machine.plans.append(Plan(step, args, kwargs, None, line_of_caller()))

    # -- calls, for the contexts to wait for

    def _open_step(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepCall:
        step: Step[..., Any] = cast("Any", fn) if type(fn) is Step else self._as_step(fn, "ctx.step")
        call = StepCall(self._scope, step, args, kwargs)
        if step.undo is not None:
            call.code = line_of_caller()  # A replay looks for it too: the entry of the undo is yet to name it.
        if self._machine.open(call):
            _check_arguments(call)
        return call

    def _open_transaction(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepCall:
        key = (fn, "transaction")
        step = self._machine.steps.get(key)
        if step is None:
            plain = self._as_step(fn, "ctx.transaction")
            step = self._machine.steps[key] = Step(
                plain.fn,
                plain.name,
                plain.need,
                plain.retry,
                plain.timeout,
                plain.total_timeout,
                undo=plain.undo,
                on_cancel=plain.on_cancel,
                durability=plain.durability,
                is_transaction=True,
            )
        return self._open_step(step, args, kwargs)

    def _as_step(self, fn: Callable[..., Any], used: str) -> Step[..., Any]:
        try:
            known = self._machine.steps.get(fn)
            if known is None:
                known = self._machine.steps[fn] = as_step(fn, used=used)
        except TypeError:  # A callable object that cannot be hashed.
            return as_step(fn, used=used)
        return known

    def _open_sleep(self, duration: timedelta) -> TimerCall:
        check_duration(duration, "ctx.sleep")
        call = TimerCall(self._scope, "sleep", duration=max(duration, timedelta(0)))
        self._machine.open(call)
        return call

    def _open_sleep_until(self, until: datetime) -> TimerCall:
        check_instant(until, used="ctx.sleep_until")
        check_duration(max(until - self._machine.now, timedelta(0)), "ctx.sleep_until")
        call = TimerCall(self._scope, "sleep", until=until)
        self._machine.open(call)
        return call

    def _open_signal(self, name: str, annotation: Any, timeout: timedelta | None) -> SignalCall:
        check_type(annotation, used="ctx.wait_signal")
        call = SignalCall(self._scope, name, codec_for(annotation), timeout)
        if timeout is not None:
            check_duration(timeout, "ctx.wait_signal(timeout=…)")
        if self._machine.open(call):
            check_name(name, "ctx.wait_signal")
        return call

    def _open_awakeable(
        self, name: str, annotation: Any, timeout: timedelta | None, *, used: str = "ctx.awakeable"
    ) -> AwakeableCall:
        check_type(annotation, used=used)
        if timeout is not None:
            check_duration(timeout, f"{used}(timeout=…)")
        call = AwakeableCall(self._scope, name, codec_for(annotation), timeout)
        if self._machine.open(call):
            check_name(name, used)
        self._machine.record_first(call)
        return call

    def _open_callback(
        self, start: Callable[..., Any], annotation: Any, args: tuple[Any, ...], timeout: timedelta | None
    ) -> tuple[AwakeableCall, StepCall]:
        used = "ctx.wait_for_callback"
        step: Step[..., Any] = cast("Any", start) if type(start) is Step else self._as_step(start, used)
        awakeable = self._open_awakeable(step.name, annotation, timeout, used=used)
        try:
            return awakeable, self._open_step(step, (awakeable.token, *args), {})
        except TypeError:
            awakeable.abandon()
            raise

    def _open_poll(
        self,
        check: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        until: Callable[[Any], object],
        every: timedelta,
        timeout: timedelta,
    ) -> StepCall:
        if not callable(until):
            raise TypeError(f"ctx.poll(until=…): found {described(until)}; expected a function that accepts an answer")
        for option, duration in (("every", every), ("timeout", timeout)):
            check_duration(duration, f"ctx.poll({option}=…)")
            if duration <= timedelta(0):
                raise ValueError(f"ctx.poll({option}={duration}): expected longer than nothing")
        step: Step[..., Any] = cast("Any", check) if type(check) is Step else self._as_step(check, "ctx.poll")
        return self._open_step(polling_step(step, until=until, every=every, timeout=timeout), args, {})

    def _open_child(
        self,
        call: Call[Any],
        excess: tuple[object, ...],
        run_id: str | None,
        *,
        is_spawned: bool,
        on_close: OnClose = "request_cancel",
    ) -> ChildCall:
        check_call(call, excess, used="ctx.spawn" if is_spawned else "ctx.call")
        if on_close not in ("request_cancel", "terminate", "abandon"):
            raise ContextError(f"ctx.spawn(on_close={on_close!r}): expected 'request_cancel', 'terminate' or 'abandon'")
        check_texts("ctx.spawn" if is_spawned else "ctx.call", run_id=run_id)
        pending = ChildCall(self._scope, call, run_id, is_spawned=is_spawned, on_close=on_close)
        self._machine.open(pending)
        if is_spawned:
            self._machine.record_before_end(pending)
        return pending

    def _open_human(
        self,
        name: str,
        subject: object,
        decision: Any,
        *,
        need: str | Mapping[str, int],
        title: str | None,
        due: timedelta | None,
        escalate: str | None,
        expires: timedelta | None,
        on_expire: Any,
        prefill: Any,
        exclude: Sequence[str],
        assign: str | None,
        notify: Sequence[str],
    ) -> HumanCall:
        for duration, option in ((due, "due"), (expires, "expires")):
            if duration is not None:
                check_duration(duration, f"ctx.human({option}=…)")
        request = HumanRequest(
            name, subject, decision, need, title, due, escalate, expires, on_expire, prefill, exclude, assign, notify
        )
        call = HumanCall(self._scope, request)
        if self._machine.open(call):
            check_name(name, "ctx.human")
            for value, option in ((on_expire, "on_expire"), (prefill, "prefill")):
                if not request.codec.accepts(value):
                    expected = annotation_text(decision)
                    raise TypeError(f"ctx.human({name!r}, {option}=…): found {described(value)}; expected {expected}")
        return call

    def _open_value(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ValueCall:
        if not callable(fn):
            raise TypeError(f"ctx.side_effect: found {described(fn)}; expected a function, uncalled, and its arguments")
        named = getattr(fn, "__name__", "<lambda>")
        step = None if named == "<lambda>" else self._as_step(fn, "ctx.side_effect")
        name = "side_effect" if step is None else step.name
        call = ValueCall(self._scope, name, codec_for(None) if step is None else step.codec)
        if self._machine.open(call) and not self._machine.run.is_trial:
            try:
                value = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - recorded, and raised in the workflow from the record
                call.payload, call.encoding = FAILURE_MARK + _failure.describe(error) + b"}", 2
            else:
                call.payload, call.encoding = call.codec.encode(value, subject=name)
        return call

    def _open_map(self, each: Any, items: Sequence[Any], width: int | None, policy: Policy | None) -> CallGroup:
        """A map over a Step or Workflow needs no code of its own between calls, hence no branch to run it."""
        path = self._machine.open_branches("map", self._scope)
        # The calls are made on behalf of this line, also when results come that make room for more.
        code = line_of_caller()

        def make_child(scope: Scope, item: Any) -> PendingCall:
            return ChildCall(scope, each(item), None)

        def make_step(scope: Scope, item: Any) -> PendingCall:
            return StepCall(scope, each, (item,), {})

        make = make_child if isinstance(each, Workflow) else make_step
        tally = map_tally(policy, len(items), path)
        return CallGroup(self._machine, path, items, make, tally=tally, width=width, code=code)


def map_tally(policy: Policy | None, count: int, path: str) -> Tally:
    """The tally of a `map`: its value is a list, or results with a policy."""
    return Tally(policy, count, path=path, shape=list if policy is None else BranchResults)


def check_parallel(branches: Sequence[object], policy: Policy | None, max_concurrency: int | None) -> None:
    """TypeError: a branch is no function of a context. Further errors as `_check_branches`."""
    for branch in branches:
        check_body(branch, used="ctx.parallel")
    _check_branches(policy, max_concurrency, used="ctx.parallel")


def check_body(found: object, *, used: str) -> None:
    """TypeError: no function that a branch, or a shielded part, could run with a context of its own."""
    if isinstance(found, Step | Workflow) or not callable(found):
        raise TypeError(
            f"{used}: found {described(cast('Any', found))}; expected functions of a context, uncalled and not in a"
            f" list: {used}(lambda ctx: ctx.step(charge, order))"
        )


def checked_items(each: object, items: Iterable[T], policy: Policy | None, max_concurrency: int | None) -> list[T]:
    """Return the items of a `map` as a list. ContextError: they have no order. TypeError: a text, or nothing to run."""
    _check_branches(policy, max_concurrency, used="ctx.map")
    if not callable(each):
        raise TypeError(
            f"ctx.map: found {described(each)}; expected what is run for each item, a step, a workflow or a function"
            " of a context and an item: ctx.map(charge, orders)"
        )
    if isinstance(items, set | frozenset):
        raise ContextError(
            "ctx.map was given a set, whose order differs from process to process; expected a list: sorted(items)"
        )
    if isinstance(items, str | bytes) or not isinstance(cast("object", items), Iterable):
        raise TypeError(f"ctx.map: found {described(items)}; expected a list of items, such as ['order-17']")
    return list(items)


def _check_branches(policy: Policy | None, max_concurrency: int | None, *, used: str) -> None:
    """ValueError: fewer than one at a time. TypeError: no number, or no policy."""
    checked_policy(policy, used)
    check_counts(used, max_concurrency=max_concurrency)
    if max_concurrency is not None and max_concurrency < 1:
        raise ValueError(f"{used}(max_concurrency={max_concurrency}): expected 1 or more, or None for all at once")


def _check_arguments(call: StepCall) -> None:
    try:
        call.step.parameters.check(call.args, call.kwargs)
    except TypeError:
        call.scope.machine.withdraw(call)
        raise


def _check_patch(name: str, subject: str) -> str:
    if check_name(name, subject).startswith(SDK_PATCHES):
        raise ValueError(f"{subject}({name!r}): names that begin with {SDK_PATCHES!r} are the SDK's own")
    return name


def check_duration(duration: timedelta, subject: str) -> None:
    """TypeError: no timedelta. ValueError: longer than ten years, whether ahead or past."""
    check_timedelta(duration, used=subject)
    if abs(duration) > DURATION_MAX:
        raise ValueError(f"{subject}: {duration} is longer than ten years, which looks like a mistake in the unit")
