"""Steps and workflows as frozen definitions. Making one registers nothing and runs nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, Protocol, TypeVar, cast, overload

import msgspec
from typing_extensions import ParamSpec

from pgwf_sdk._errors import ContextError, DefinitionError, SerialisationError, UndecodableError
from pgwf_sdk._kinds import described
from pgwf_sdk._names import check_name, check_need, check_storable, name_of
from pgwf_sdk._parameters import Parameters, annotations_of
from pgwf_sdk._retry import RetryPolicy
from pgwf_sdk._serial import Codec, codec_for
from pgwf_sdk._step_options import Durability, OnCancel, check_options
from pgwf_sdk._wording import without_addresses

if TYPE_CHECKING:
    from pgwf_sdk.replay import AsyncContext, Context

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

DEFAULT_RETRY: Final = RetryPolicy()

inside_workflow: Final[ContextVar[str | None]] = ContextVar("pgwf_inside_workflow", default=None)
"""Name of the workflow whose body this thread or task runs; set by the replay, read by `Step.__call__`."""


@dataclass(frozen=True, eq=False)
class Step(Generic[P, R_co]):
    """A function whose result is recorded once: `ctx.step(charge, order)` runs it, or returns what it returned before.

    `timeout` bounds one attempt, `total_timeout` all of them together with the pauses, `heartbeat_timeout` the silence
    between two heartbeats. `at_most_once` records that an attempt begins before it begins, so that it is never repeated
    after a crash: the workflow then sees StepInterruptedError. `isolate="process"` runs a plain step in a process of
    its own, which is killed when its time is over or nobody wants its result. A step with a `need` runs only on a
    worker that offers it. `undo` is called with the result, as a step of its own, if the run fails or is cancelled
    later. `on_cancel` says what happens to an attempt that nobody waits for any more: "abort" tells it to stop,
    "finish" lets it end and be recorded first (default: finish with an `undo`, abort without). `durability="deferred"`
    gives the code the result at once and records it with what the run records next: cheap, and only for steps without
    effects, because one whose worker dies in between is executed again. Calling a Step calls its function; inside a
    workflow's body that is an error.
    """

    fn: Callable[..., Any]
    name: str
    need: str | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: timedelta | None = None
    total_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None
    at_most_once: bool = False
    isolate: Literal["process"] | None = None
    undo: Callable[..., object] | None = None
    on_cancel: OnCancel | None = None
    durability: Durability | None = None
    is_transaction: bool = False

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        workflow = inside_workflow.get()
        if workflow is not None:
            raise ContextError(
                f"step {self.name!r} was called directly in the body of workflow {workflow!r}, so nothing would be"
                f" recorded; expected ctx.step({self.name}, …)"
            )
        return cast("R_co", self.fn(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    @property
    def _pgwf_step(self) -> bool:
        """Tells a Step from a branch function in the signatures of `ctx.map`."""
        return True

    def options(
        self,
        *,
        name: str | None = None,
        need: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        total_timeout: timedelta | None = None,
        heartbeat_timeout: timedelta | None = None,
        at_most_once: bool | None = None,
        isolate: Literal["process"] | None = None,
        undo: Callable[[R_co], object] | None = None,
        on_cancel: OnCancel | None = None,
        durability: Durability | None = None,
    ) -> Step[P, R_co]:
        """Return a copy with these options; None leaves an option as it is."""
        changes: dict[str, Any] = {
            "name": None if name is None else check_name(name, repr(self)),
            "need": need,
            "retry": retry,
            "timeout": timeout,
            "total_timeout": total_timeout,
            "heartbeat_timeout": heartbeat_timeout,
            "at_most_once": at_most_once,
            "isolate": isolate,
            "undo": undo,
            "on_cancel": on_cancel,
            "durability": durability,
        }
        return replace(self, **{option: value for option, value in changes.items() if value is not None})

    @cached_property
    def undo_step(self) -> Step[..., Any]:
        """The step that takes the effect back; only where there is an `undo`."""
        assert self.undo is not None
        return as_step(self.undo, used=f"step {self.name!r}: undo")

    @property
    def is_deferred(self) -> bool:
        """True when the code sees the result before it is recorded."""
        return self.durability is not None

    @property
    def finishes(self) -> bool:
        """True when an attempt under way is let come to its end although nobody wants its result any more."""
        return self.on_cancel == "finish" or (self.on_cancel is None and self.undo is not None)

    @cached_property
    def codec(self) -> Codec:
        """The codec of the result, by the function's return annotation."""
        return codec_for(annotations_of(self.fn).get("return"))

    @cached_property
    def parameters(self) -> Parameters:
        """What a call must fit; without the connection that a transaction's step gets first."""
        return Parameters(self.fn, f"step {self.name!r}", self.name, given_count=int(self.is_transaction))

    @cached_property
    def is_async(self) -> bool:
        """True when the function is declared `async def`."""
        return is_coroutine_function(self.fn)


@dataclass(frozen=True, eq=False)
class Workflow(Generic[P, R_co]):
    """A function that takes a context and is made durable by its journal. Calling it builds a Call and runs nothing."""

    fn: Callable[..., Any]
    name: str
    need: str
    build: str | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        self.parameters.check(args, kwargs)
        return Call(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"

    @property
    def home(self) -> str:
        """The need its runs start with and come back to: `need`, of one build only when it is pinned to one."""
        return pinned(self.need, self.build)

    @cached_property
    def codec(self) -> Codec:
        """The codec of the result, by the function's return annotation."""
        return codec_for(annotations_of(self.fn).get("return"))

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters after the context."""
        return Parameters(self.fn, f"workflow {self.name!r}", self.name, given_count=1)

    @cached_property
    def is_async(self) -> bool:
        """True when the function is declared `async def`."""
        return is_coroutine_function(self.fn)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return `{"args": […], "kwargs": {…}}`, each argument encoded by its parameter's annotation (encoding 1).

        TypeError: the arguments do not fit. SerialisationError: one cannot be stored, and which.
        """
        parameters = self.parameters
        parameters.check(args, kwargs)
        try:
            encoded = {
                "args": [
                    msgspec.Raw(parameters.codec_at(i).embed(value, subject=parameters.name_at(i)))
                    for i, value in enumerate(args)
                ],
                "kwargs": {
                    name: msgspec.Raw(parameters.codec_named(name).embed(value, subject=name))
                    for name, value in kwargs.items()
                },
            }
        except SerialisationError as error:
            raise SerialisationError(f"workflow {self.name!r}: argument {error}", path=error.path) from None
        return msgspec.json.encode(encoded)

    def decode_call(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) of an encoded call. UndecodableError: it does not fit this version of the workflow."""
        try:
            encoded = _calls.decode(payload)
        except msgspec.MsgspecError as error:
            raise UndecodableError(
                f"input of workflow {self.name!r}: {error}; expected an object with args and kwargs"
            ) from error
        parameters = self.parameters
        args = tuple([self._argument(parameters.codec_at(i), raw, i) for i, raw in enumerate(encoded.args)])
        kwargs = {name: self._argument(parameters.codec_named(name), raw, name) for name, raw in encoded.kwargs.items()}
        try:
            parameters.check(args, kwargs)
        except TypeError as error:
            raise UndecodableError(
                f"{error}; deploy a version that accepts the stored input, then resume the run"
            ) from error
        return args, kwargs

    def _argument(self, codec: Codec, raw: msgspec.Raw, place: int | str) -> Any:
        try:
            return codec.extract(bytes(raw))
        except UndecodableError as error:
            name = place if isinstance(place, str) else self.parameters.name_at(place)
            raise UndecodableError(f"workflow {self.name!r}: argument {name}: {error}") from error


class SyncWorkflow(Workflow[P, R_co]):
    """A workflow written as `def`."""

    if TYPE_CHECKING:
        fn: Callable[Concatenate[Context, P], R_co]


class AsyncWorkflow(Workflow[P, R_co]):
    """A workflow written as `async def`."""

    if TYPE_CHECKING:
        fn: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R_co]]


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A workflow with its arguments, not yet started: what `client.start` and `ctx.call` take."""

    workflow: Workflow[..., R_co]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        return f"<Call of {self.workflow.name}>"

    def encode(self) -> bytes:
        """Return the payload of the run's first entry. SerialisationError: an argument cannot be stored."""
        return self.workflow.encode_call(self.args, self.kwargs)


class StepLike(Protocol[T_contra, R_co]):
    """A Step that takes one argument; its other parameters have defaults."""

    @property
    def _pgwf_step(self) -> bool: ...
    def __call__(self, item: T_contra, /) -> R_co: ...


class StepDecorator(Protocol):
    """What `step(…)` with options returns."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class WorkflowDecorator(Protocol):
    """What `workflow(…)` with options returns."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncWorkflow[P, R]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    need: str | None = None,
    retry: RetryPolicy = DEFAULT_RETRY,
    timeout: timedelta | None = None,
    total_timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    at_most_once: bool = False,
    isolate: Literal["process"] | None = None,
    undo: Callable[..., object] | None = None,
    on_cancel: OnCancel | None = None,
    durability: Durability | None = None,
) -> StepDecorator: ...
def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    need: str | None = None,
    retry: RetryPolicy = DEFAULT_RETRY,
    timeout: timedelta | None = None,
    total_timeout: timedelta | None = None,
    heartbeat_timeout: timedelta | None = None,
    at_most_once: bool = False,
    isolate: Literal["process"] | None = None,
    undo: Callable[..., object] | None = None,
    on_cancel: OnCancel | None = None,
    durability: Durability | None = None,
) -> Any:
    """Define a step, as `@step` or `@step(option=…)`; what the options mean stands at Step.

    Its name in journals is the tail of the function's qualified name unless `name` is given: renaming a function that
    open runs have recorded needs `name="old_name"`. DefinitionError: no usable name.
    """
    if fn is None:
        return partial(
            step,
            name=name,
            need=need,
            retry=retry,
            timeout=timeout,
            total_timeout=total_timeout,
            heartbeat_timeout=heartbeat_timeout,
            at_most_once=at_most_once,
            isolate=isolate,
            undo=undo,
            on_cancel=on_cancel,
            durability=durability,
        )
    if isinstance(fn, Step | Workflow):
        raise DefinitionError(f"{fn!r} is a definition already; expected a function, or {fn!r}.options(…) of a Step")
    _check_function(fn, used="step")
    made: Step[..., Any] = Step(
        fn,
        name_of(fn) if name is None else check_name(name, without_addresses(repr(fn))),
        need,
        retry,
        timeout,
        total_timeout,
        heartbeat_timeout,
        at_most_once,
        isolate,
        undo,
        on_cancel,
        durability,
    )
    return made


@overload
def workflow(fn: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...
@overload
def workflow(fn: Callable[Concatenate[Context, P], R], /) -> SyncWorkflow[P, R]: ...
@overload
def workflow(
    fn: None = None, /, *, name: str | None = None, need: str | None = None, build: str | None = None
) -> WorkflowDecorator: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    need: str | None = None,
    build: str | None = None,
) -> Any:
    """Define a workflow, as `@workflow` or `@workflow(option=…)`, from a function whose first parameter is the context.

    `need` is what a worker must offer to run it; without one the workflow's name, which every worker that knows the
    workflow offers. `build` pins its runs to workers of that build. DefinitionError: no usable name, or no parameter.
    """
    if fn is None:
        return partial(workflow, name=name, need=need, build=build)
    if isinstance(fn, Step | Workflow):
        raise DefinitionError(f"{fn!r} is a definition already; expected a function")
    _check_function(fn, used="workflow")
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise DefinitionError(
            f"workflow {without_addresses(repr(fn))} takes no context; expected `ctx` as its first parameter"
        )
    own_name = name_of(fn) if name is None else check_name(name, without_addresses(repr(fn)))
    is_async = is_coroutine_function(fn)
    _check_context(own_name, parameters[0], is_async=is_async)
    kind: Any = AsyncWorkflow if is_async else SyncWorkflow
    if build is not None:
        check_storable(build, f"build of workflow {own_name!r}")
    made: Workflow[..., Any] = kind(fn, own_name, own_name if need is None else need, build)
    check_need(made.home, f"need of workflow {own_name!r}")
    return made


def _check_function(found: object, *, used: str) -> None:
    if not callable(found):
        raise DefinitionError(
            f'@{used}: found {described(found)}; expected a function, and options by name: @{used}(name="…")'
        )


def _check_context(name: str, parameter: inspect.Parameter, *, is_async: bool) -> None:
    """Type checkers cannot tell `async def` with a Context from a `def` that returns a coroutine."""
    written = parameter.annotation
    found = written.__name__ if isinstance(written, type) else str(written).rpartition(".")[2]
    expected, mistaken = ("AsyncContext", "Context") if is_async else ("Context", "AsyncContext")
    if found == mistaken:
        raise DefinitionError(
            f"workflow {name!r} is declared {'async def' if is_async else 'def'} and its context {found};"
            f" expected {parameter.name}: {expected}"
        )


def pinned(need: str, build: str | None) -> str:
    """Return the need of a run that is pinned to `build`; a worker of that build offers it beside the plain one."""
    return f"{need}@{build}" if build else need


def as_step(fn: Callable[..., Any], *, used: str = "ctx.step") -> Step[..., Any]:
    """Return `fn` if it is a Step, else one of it without options. DefinitionError: it is no function with a name.

    `used` is what it was handed to, such as `ctx.step`.
    """
    if isinstance(fn, Step):
        return cast("Step[..., Any]", fn)
    if isinstance(fn, Workflow | Call):
        raise DefinitionError(f"{used}: found {fn!r}; expected a step: ctx.call and ctx.spawn are for workflows")
    if not callable(fn):
        raise DefinitionError(
            f"{used}: found {described(fn)}; expected the step itself, uncalled: its arguments stand after it, as in"
            " ctx.step(charge, order)"
        )
    try:
        return Step(fn, name_of(fn))
    except DefinitionError as error:
        raise DefinitionError(f"{used}: {error}") from None


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """True for `async def`, also inside partials and for objects whose `__call__` is one."""
    while isinstance(fn, partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


class _EncodedCall(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_calls = msgspec.json.Decoder(_EncodedCall)
