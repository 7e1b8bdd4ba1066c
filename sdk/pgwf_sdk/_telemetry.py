"""OpenTelemetry: spans are a projection of commits, so replaying a run emits nothing.

Who makes something durable reports it here afterwards, and the span is emitted then, with its times in the past:

    client   with telemetry.starting(workflow, run_id) as starting:   `start {workflow}`, PRODUCER
                 ... starting.trace goes into the run ...
    worker   trace = telemetry.run_trace(run_id, workflow, trace, lease_no=..., history=...)     at the claim
             with trace.attempt(key, step, number):                   `attempt {step}`, current while user code runs
             trace.committed(entries)                                 `step {name}`, `sleep`, `wait`, `human`, `call`;
                                                                      `workflow {workflow}` for the run's last entry
             trace.released(status)                                   `run {workflow}`, CONSUMER, one per lease

All spans of a run share the trace of whoever started it, else a trace id derived from the run id. Span ids are derived
from run id, entry key and role: whichever worker emits the children, they name the same parent, long before that parent
is emitted itself. The SDK's tracer takes these ids from a generator set on the tracer of this package alone. A tracer
of another make has ids of its own: its spans hang below the `start` span and are told apart by `pgwf.entry.key`.

A suspended run is no error, nor is a step that will be tried again: ERROR is for an attempt that raised, a step that
failed for good, a run that failed, and a lease that was lost. Without a configured provider nothing is built.
"""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from types import TracebackType
from typing import Any, Literal

import msgspec
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pgwf_journal import Entry, Kind, Phase

__all__ = ["RunTrace", "Starting", "Telemetry"]

_SCOPE = "pgwf_sdk"
_PROPAGATOR = TraceContextTextMapPropagator()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNCONFIGURED = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
_OPENED = Phase.OPENED  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.
_RUN = Kind.RUN

# What a resolved call is called, by kind; kinds that are missing are instants and get no span.
_SPAN_VERBS: Mapping[Kind, str] = {
    Kind.STEP: "step",
    Kind.TIMER: "sleep",
    Kind.SIGNAL: "wait",
    Kind.AWAKEABLE: "awakeable",
    Kind.HUMAN: "human",
    Kind.CHILD: "call",
    Kind.ATTACH: "attach",
}
_OUTCOMES: Mapping[Phase, str] = {
    Phase.COMPLETED: "success",
    Phase.FAILED: "failure",
    Phase.TIMED_OUT: "timeout",
    Phase.CANCELLED: "cancelled",
    Phase.TERMINATED: "terminated",
    Phase.CONTINUED: "continued",
}


class Starting:
    """A run being started: `trace` is the W3C traceparent to store with it, None when there is no trace to join."""

    def __init__(self, trace: str | None) -> None:
        self.trace = trace
        self.created = False
        """To be set when the start made the run; starts that found it there are not counted."""


class Telemetry:
    """Where spans and metrics go: the given providers, else those of the process, when they were last looked up."""

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer_provider = tracer_provider
        self._metrics = _Metrics(meter_provider)
        self._provider: TracerProvider | None = None  # That of the tracer.
        self._tracer: Tracer | None = None
        self.look_up()

    @contextmanager
    def starting(self, workflow: str, run_id: str) -> Generator[Starting]:
        """The span of a client that starts a run. An exception marks it as an error and goes on."""
        tracer = self.look_up()
        if tracer is None:
            starting = Starting(_traceparent(trace.get_current_span().get_span_context()))
            yield starting
        else:
            attributes = {**_messaging(run_id, "send"), "pgwf.workflow.name": workflow}
            with _planned(tracer, trace_id=_trace_id(run_id)):
                span = tracer.start_span(f"start {workflow}", kind=SpanKind.PRODUCER, attributes=attributes)
            with trace.use_span(span, end_on_exit=True):
                starting = Starting(_traceparent(span.get_span_context()))
                yield starting
                span.set_attribute("pgwf.run.created", starting.created)
        if starting.created:
            self._metrics.run_started.add(1, {"workflow": workflow})

    def run_trace(
        self,
        run_id: str,
        workflow: str,
        trace: str | None,
        *,
        lease_no: int,
        worker_id: str | None = None,
        history: Sequence[Entry] = (),
    ) -> "RunTrace":
        """The reporter of one activation. `history` is what the journal held at the claim; later calls began in it."""
        return RunTrace(
            run_id,
            workflow,
            trace,
            lease_no=lease_no,
            worker_id=worker_id,
            history=history,
            tracer=self._tracer,
            metrics=self._metrics,
        )

    def look_up(self) -> Tracer | None:
        """Trace runs from now on with the tracer that the process has by now; None: it has none."""
        # Asked once for many runs: the look at the environment takes longer than all else that a trace costs.
        provider = self._tracer_provider or trace.get_tracer_provider()
        if provider is not self._provider:
            self._provider, self._tracer = provider, None
            if not isinstance(provider, _UNCONFIGURED):
                self._tracer = provider.get_tracer(_SCOPE)
                _plan_ids(self._tracer)
        return self._tracer


class _Attempt:
    """The span of one try of a step. A class, since a generator would cost more than the try of a quick step."""

    __slots__ = ("_began", "_key", "_number", "_span", "_step", "_trace")

    def __init__(self, trace: "RunTrace", key: str, step: str, number: int) -> None:
        self._trace = trace
        self._key = key
        self._step = step
        self._number = number

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._span = self._trace.attempt_began(self._key, self._step, self._number)
        if self._span is not None:
            self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._span is not None:
                self._span.__exit__(kind, error, traceback)
        finally:
            self._trace.attempt_ended(self._step, time.monotonic() - self._began, error)


class RunTrace:
    """Reports what one lease's execution of a run made durable. Made by Telemetry.run_trace; safe between threads."""

    def __init__(
        self,
        run_id: str,
        workflow: str,
        trace: str | None,
        *,
        lease_no: int,
        worker_id: str | None,
        history: Sequence[Entry],
        tracer: Tracer | None,
        metrics: "_Metrics",
    ) -> None:
        self._run_id = run_id
        self._workflow = workflow
        self._lease_no = lease_no
        self._worker_id = worker_id
        self._tracer = tracer
        self._metrics = metrics
        self._claimed_ns = time.time_ns()
        self._is_released = False
        self._attempt_ns: dict[str, int] = {}
        self._opened = {(entry.scope, entry.call): entry for entry in history if entry.phase is _OPENED}
        if tracer is not None:
            self._start = _context_of(trace)
            self._root = self._root_context(tracer)

    def attempt(self, key: str, step: str, number: int) -> AbstractContextManager[None]:
        """The span of one try of a step, current inside the block; enter it where the step is run."""
        return _Attempt(self, key, step, number)

    def attempt_began(self, key: str, step: str, number: int) -> AbstractContextManager[Any] | None:
        """An attempt begins now; its span is to be entered if there is one."""
        if self._tracer is None:
            return None
        began_ns = time.time_ns()
        self._attempt_ns.setdefault(key, began_ns)
        span = self._span(
            f"attempt {step}",
            parent=self._child_context(key),
            role=f"{key}|attempt {number}|lease {self._lease_no}",
            start_ns=began_ns,
            attributes={"pgwf.entry.key": key, "pgwf.attempt": number},
            is_linked=True,
        )
        return trace.use_span(span, end_on_exit=True)

    def attempt_ended(self, step: str, seconds: float, error: BaseException | None) -> None:
        """An attempt ended; an error that is no Exception interrupted it."""
        attributes = {"workflow": self._workflow, "step": step, "outcome": "success"}
        if isinstance(error, Exception):
            attributes |= {"outcome": "failure", "error.type": _type_name(error)}
        elif error is not None:
            attributes["outcome"] = "interrupted"
        self._metrics.step_duration.record(seconds, attributes)

    def committed(self, entries: Sequence[Entry]) -> None:
        """Emit what `entries` say. To be called once for each entry, after the commit that made it durable."""
        for entry in entries:
            if entry.phase is _OPENED:
                self._opened[entry.scope, entry.call] = entry
            elif entry.kind is _RUN:
                self._ended(entry)
            elif self._tracer is not None and entry.phase.is_resolving and entry.kind in _SPAN_VERBS:
                self._resolved(entry)

    def journal_grew_long(self, limit: Literal["warn", "max"]) -> None:
        """Count that the run's journal reached a limit of its length."""
        self._metrics.journal_long.add(1, {"workflow": self._workflow, "limit": limit})

    def released(self, status: str) -> None:
        """Emit the activation: the lease was given back, ended or lost. Only the first call counts.

        `status` says why, such as `completed`, `waiting`, `hop`, `blocked` or `lost`; `lost` and `blocked` are errors.
        """
        if self._is_released:
            return
        self._is_released = True
        end_ns = time.time_ns()
        attributes = {"workflow": self._workflow, "status": status}
        self._metrics.activation_duration.record((end_ns - self._claimed_ns) / 1e9, attributes)
        if status == "lost":
            self._metrics.lease_lost.add(1, {"workflow": self._workflow})
        if self._tracer is None:
            return
        span = self._span(
            f"run {self._workflow}",
            parent=self._root,
            role=self._activation_role,
            kind=SpanKind.CONSUMER,
            start_ns=self._claimed_ns,
            attributes={**_messaging(self._run_id, "process"), "pgwf.activation.status": status},
        )
        if status in ("lost", "blocked"):
            span.set_status(Status(StatusCode.ERROR, f"the lease was {status}" if status == "lost" else status))
        span.end(end_ns)

    @property
    def _activation_role(self) -> str:
        return f"activation|lease {self._lease_no}"

    def _resolved(self, entry: Entry) -> None:
        opened = self._opened.get((entry.scope, entry.call))
        end_ns = _nanoseconds(entry.recorded_at)
        start_ns = self._attempt_ns.pop(entry.key, end_ns) if opened is None else _nanoseconds(opened.recorded_at)
        span = self._span(
            f"{_SPAN_VERBS[entry.kind]} {entry.name}",
            parent=self._root,
            role=f"{entry.key}|call",
            kind=SpanKind.CLIENT if entry.kind is Kind.CHILD else SpanKind.INTERNAL,
            # The attempt's start is this machine's clock, the entry's time the database's.
            start_ns=min(start_ns, end_ns),
            attributes={
                "pgwf.entry.key": entry.key,
                "pgwf.entry.kind": entry.kind.label,
                "pgwf.entry.seq": entry.seq,
                "pgwf.entry.phase": entry.phase.label,
            },
            is_linked=True,
        )
        _mark_failure(span, entry)
        span.end(end_ns)

    def _ended(self, entry: Entry) -> None:
        began_at = self._opened.get((entry.scope, entry.call), entry).recorded_at
        attributes = {"workflow": self._workflow, "outcome": _OUTCOMES[entry.phase]}
        self._metrics.run_completed.add(1, attributes)
        self._metrics.run_duration.record((entry.recorded_at - began_at).total_seconds(), attributes)
        if self._tracer is None:
            return
        span = self._span(
            f"workflow {self._workflow}",
            parent=self._start,
            role="workflow",
            start_ns=_nanoseconds(began_at),
            attributes={"pgwf.run.status": entry.phase.label, "pgwf.entry.seq": entry.seq},
        )
        _mark_failure(span, entry)
        span.end(_nanoseconds(entry.recorded_at))

    def _span(
        self,
        name: str,
        *,
        parent: Context,
        role: str,
        start_ns: int,
        attributes: Mapping[str, str | int | bool],
        kind: SpanKind = SpanKind.INTERNAL,
        is_linked: bool = False,
    ) -> Span:
        assert self._tracer is not None
        common: dict[str, str | int | bool] = {
            "pgwf.run.id": self._run_id,
            "pgwf.workflow.name": self._workflow,
            "pgwf.lease.no": self._lease_no,
        }
        if self._worker_id is not None:
            common["pgwf.worker.id"] = self._worker_id
        links = [Link(self._context(self._activation_role))] if is_linked and _has_planned_ids(self._tracer) else []
        ids = {"trace_id": _trace_id(self._run_id), "span_id": _span_id(self._run_id, role)}
        with _planned(self._tracer, **ids):
            return self._tracer.start_span(
                name, context=parent, kind=kind, attributes={**common, **attributes}, links=links, start_time=start_ns
            )

    def _root_context(self, tracer: Tracer) -> Context:
        """What children of the run name as their parent: its `workflow` span, which is emitted last."""
        started = trace.get_current_span(self._start).get_span_context()
        if started.is_valid:
            self._trace_id, self._flags = started.trace_id, started.trace_flags
        else:
            self._trace_id = _trace_id(self._run_id)
            self._flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(tracer) else TraceFlags.DEFAULT)
        return self._child_context_of("workflow") if _has_planned_ids(tracer) else self._start

    def _is_sampled(self, tracer: Tracer) -> bool:
        # Decided from the trace id alone, so that every activation on every worker decides alike.
        sampler = getattr(tracer, "sampler", None)
        if sampler is None:
            return True
        return bool(sampler.should_sample(None, self._trace_id, f"workflow {self._workflow}").decision.is_sampled())

    def _child_context(self, key: str) -> Context:
        assert self._tracer is not None
        return self._child_context_of(f"{key}|call") if _has_planned_ids(self._tracer) else self._start

    def _child_context_of(self, role: str) -> Context:
        return trace.set_span_in_context(NonRecordingSpan(self._context(role)), Context())

    def _context(self, role: str) -> SpanContext:
        return SpanContext(self._trace_id, _span_id(self._run_id, role), is_remote=True, trace_flags=self._flags)


class _Metrics:
    """The instruments; without a configured provider each of them does nothing."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter(_SCOPE, meter_provider=provider)
        self.run_started = meter.create_counter("pgwf.run.started", "{run}", "Runs that clients started")
        self.run_completed = meter.create_counter("pgwf.run.completed", "{run}", "Runs that ended, by outcome")
        self.run_duration = meter.create_histogram("pgwf.run.duration", "s", "From a run's start to its end")
        self.step_duration = meter.create_histogram("pgwf.step.duration", "s", "One attempt of a step")
        self.activation_duration = meter.create_histogram("pgwf.activation.duration", "s", "One lease of a run")
        self.journal_long = meter.create_counter(
            "pgwf.journal.long", "{run}", "Runs whose journal reached a limit of its length, by limit"
        )
        self.lease_lost = meter.create_counter("pgwf.lease.lost", "{lease}", "Leases that ended under their holder")


class _PlannedIds:
    """The id generator of this package's tracer: hands out the planned ids, else those of the generator before it."""

    def __init__(self, others: Any) -> None:
        self._others = others
        self.planned = threading.local()

    def generate_span_id(self) -> int:
        planned: int | None = getattr(self.planned, "span_id", None)
        return planned or int(self._others.generate_span_id())

    def generate_trace_id(self) -> int:
        planned: int | None = getattr(self.planned, "trace_id", None)
        return planned or int(self._others.generate_trace_id())

    def is_trace_id_random(self) -> bool:
        return False


def _plan_ids(tracer: Tracer) -> None:
    generator = getattr(tracer, "id_generator", None)
    if generator is not None and not isinstance(generator, _PlannedIds):
        # A provider keeps one tracer per scope name, so this one serves nobody but this package.
        tracer.id_generator = _PlannedIds(generator)  # type: ignore[attr-defined]


def _has_planned_ids(tracer: Tracer) -> bool:
    return isinstance(getattr(tracer, "id_generator", None), _PlannedIds)


@contextmanager
def _planned(tracer: Tracer, *, trace_id: int, span_id: int | None = None) -> Generator[None]:
    """Spans that this thread starts inside the block get these ids; `trace_id` only counts where there is no parent."""
    generator = getattr(tracer, "id_generator", None)
    if not isinstance(generator, _PlannedIds):
        yield
        return
    generator.planned.trace_id, generator.planned.span_id = trace_id, span_id
    try:
        yield
    finally:
        generator.planned.trace_id = generator.planned.span_id = None


def _trace_id(run_id: str) -> int:
    return int(blake2b(run_id.encode(), digest_size=16).hexdigest(), 16) or 1


def _span_id(run_id: str, role: str) -> int:
    return int(blake2b(f"{run_id}\0{role}".encode(), digest_size=8).hexdigest(), 16) or 1


def _traceparent(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(NonRecordingSpan(context), Context()))
    return carrier.get("traceparent")


def _context_of(traceparent: str | None) -> Context:
    return _PROPAGATOR.extract({} if traceparent is None else {"traceparent": traceparent}, Context())


def _messaging(run_id: str, operation: str) -> dict[str, str]:
    return {
        "pgwf.run.id": run_id,
        "messaging.system": "postgresql",
        "messaging.operation.type": operation,
        "messaging.message.id": run_id,
    }


def _mark_failure(span: Span, entry: Entry) -> None:
    if entry.phase is not Phase.FAILED:
        return
    failure = msgspec.json.decode(entry.payload or b"{}")
    span.set_attribute("error.type", str(failure.get("type", "unknown")))
    span.set_status(Status(StatusCode.ERROR, str(failure.get("message", ""))))


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}:{type(error).__qualname__}"


def _nanoseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1) * 1000
