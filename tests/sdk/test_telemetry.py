import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import Telemetry
from pgwf_sdk._failure import describe
from pgwf_sdk._telemetry import RunTrace, _Metrics

STARTED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Observed:
    """An OpenTelemetry SDK that keeps in memory what it is given."""

    sampler: Sampler | None = None
    spans_kept: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    metrics_kept: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider(sampler=self.sampler)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans_kept))
        self.meter_provider = MeterProvider(metric_readers=[self.metrics_kept])
        self.telemetry = Telemetry(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.spans_kept.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def points(self, name: str) -> list[tuple[float, dict[str, object]]]:
        data = self.metrics_kept.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return [(getattr(p, "value", getattr(p, "count", 0)), dict(p.attributes or {})) for p in points]


@pytest.fixture
def observed() -> Observed:
    return Observed()


def entry(seq: int, kind: Kind, phase: Phase, name: str, *, call: int = 0, payload: bytes | None = None) -> Entry:
    return Entry(
        seq=seq,
        call=call,
        kind=kind,
        phase=phase,
        scope="",
        name=name,
        occurrence=1,
        payload=payload,
        encoding=0 if payload is None else 1,
        recorded_at=STARTED_AT + timedelta(minutes=seq),
    )


BEGUN = entry(1, Kind.RUN, Phase.OPENED, "checkout")


def activation(
    telemetry: Telemetry, *, lease_no: int = 1, history: Sequence[Entry] = (BEGUN,), trace_text: str | None = CALLER
) -> RunTrace:
    return telemetry.run_trace("order-17", "checkout", trace_text, lease_no=lease_no, history=history)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def test_starting_gives_the_traceparent_of_its_producer_span(observed: Observed) -> None:
    with observed.telemetry.starting("checkout", "order-17") as starting:
        starting.created = True

    span = observed.span("start checkout")
    assert span.kind is SpanKind.PRODUCER
    assert span.context is not None
    assert starting.trace == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


def test_starting_joins_the_trace_of_its_caller(observed: Observed) -> None:
    with (
        observed.tracer_provider.get_tracer("shop").start_as_current_span("request") as request,
        observed.telemetry.starting("checkout", "order-17"),
    ):
        pass

    span = observed.span("start checkout")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id


def test_two_starts_of_one_id_share_a_trace_but_no_span_id(observed: Observed) -> None:
    for _ in range(2):
        with observed.telemetry.starting("checkout", "order-17"):
            pass

    first, second = observed.spans
    assert first.context is not None
    assert second.context is not None
    assert first.context.trace_id == second.context.trace_id
    assert first.context.span_id != second.context.span_id


def test_a_step_hangs_below_the_workflow_span_that_is_emitted_last(observed: Observed) -> None:
    run = activation(observed.telemetry)
    with run.attempt("/step:charge#1", "charge", 1):
        pass
    run.committed([entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1)])
    run.committed([entry(3, Kind.RUN, Phase.COMPLETED, "checkout")])
    run.released("completed")

    workflow, step = observed.span("workflow checkout"), observed.span("step charge")
    attempt, activated = observed.span("attempt charge"), observed.span("run checkout")
    assert step.parent is not None
    assert attempt.parent is not None
    assert activated.parent is not None
    assert workflow.parent is not None
    assert workflow.parent.span_id == int(CALLER.split("-")[2], 16)
    assert step.parent.span_id == id_of(workflow) == activated.parent.span_id
    assert attempt.parent.span_id == id_of(step)
    assert [link.context.span_id for link in step.links] == [id_of(activated)]
    assert {f"{span.context.trace_id:032x}" for span in observed.spans if span.context} == {CALLER.split("-")[1]}


def test_the_workflow_span_begins_when_the_run_was_started(observed: Observed) -> None:
    run = activation(observed.telemetry)

    run.committed([entry(9, Kind.RUN, Phase.COMPLETED, "checkout")])

    span = observed.span("workflow checkout")
    assert span.start_time == int(BEGUN.recorded_at.timestamp()) * 10**9
    assert span.end_time is not None
    assert span.end_time - span.start_time == timedelta(minutes=8).total_seconds() * 10**9


def test_a_wait_spans_the_activations_from_its_opening_to_its_end(observed: Observed) -> None:
    opened = entry(2, Kind.TIMER, Phase.OPENED, "cool-down", call=1)
    activation(observed.telemetry).committed([opened])

    later = activation(observed.telemetry, lease_no=2, history=(BEGUN, opened))
    later.committed([entry(5, Kind.TIMER, Phase.COMPLETED, "cool-down", call=1)])

    span = observed.span("sleep cool-down")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == timedelta(minutes=3).total_seconds() * 10**9


def test_replaying_what_is_recorded_emits_nothing(observed: Observed) -> None:
    history = (BEGUN, entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1))

    activation(observed.telemetry, lease_no=2, history=history)

    assert observed.spans == ()


def test_no_two_spans_of_a_run_have_one_id(observed: Observed) -> None:
    for lease_no in (1, 2):
        run = activation(observed.telemetry, lease_no=lease_no)
        for number in (1, 2):
            with run.attempt("/step:charge#1", "charge", number):
                pass
        run.released("waiting")
        run.released("waiting")
    run.committed([entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1)])
    run.committed([entry(3, Kind.RUN, Phase.COMPLETED, "checkout")])

    assert len({id_of(span) for span in observed.spans}) == len(observed.spans) == 8


def test_spans_of_user_code_nest_below_the_attempt_and_keep_their_own_ids(observed: Observed) -> None:
    run = activation(observed.telemetry)

    with (
        run.attempt("/step:charge#1", "charge", 1),
        observed.tracer_provider.get_tracer("shop").start_as_current_span("POST"),
    ):
        pass

    post, attempt = observed.span("POST"), observed.span("attempt charge")
    assert post.parent is not None
    assert post.parent.span_id == id_of(attempt)
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_attempt_that_raised_is_an_error_though_the_step_went_well_later(observed: Observed) -> None:
    run = activation(observed.telemetry)
    with pytest.raises(ValueError, match="declined"), run.attempt("/step:charge#1", "charge", 1):
        raise ValueError("declined")
    run.committed([entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1)])

    assert observed.span("attempt charge").status.status_code is StatusCode.ERROR
    assert observed.span("step charge").status.status_code is StatusCode.UNSET


def test_a_step_that_failed_for_good_is_an_error_with_its_type(observed: Observed) -> None:
    run = activation(observed.telemetry)

    run.committed([entry(2, Kind.STEP, Phase.FAILED, "charge", call=1, payload=describe(ValueError("declined")))])

    span = observed.span("step charge")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "builtins:ValueError"


@pytest.mark.parametrize(("status", "code"), [("waiting", StatusCode.UNSET), ("lost", StatusCode.ERROR)])
def test_an_activation_is_an_error_only_when_it_did_not_end_by_itself(
    observed: Observed, status: str, code: StatusCode
) -> None:
    activation(observed.telemetry).released(status)

    assert observed.span("run checkout").status.status_code is code


def test_a_run_that_was_started_without_a_trace_gets_one_from_its_id(observed: Observed) -> None:
    for lease_no in (1, 2):
        activation(observed.telemetry, lease_no=lease_no, trace_text=None).released("waiting")
    activation(observed.telemetry, trace_text=None).committed([entry(2, Kind.RUN, Phase.COMPLETED, "checkout")])

    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    assert observed.span("workflow checkout").parent is None


def test_a_run_whose_caller_is_not_sampled_emits_no_span(observed: Observed) -> None:
    run = activation(observed.telemetry, trace_text=CALLER[:-2] + "00")
    run.committed([entry(2, Kind.RUN, Phase.COMPLETED, "checkout")])
    run.released("completed")

    assert observed.spans == ()


def test_a_sampler_that_takes_nothing_is_obeyed_in_every_activation() -> None:
    observed = Observed(sampler=ALWAYS_OFF)

    run = activation(observed.telemetry, trace_text=None)
    with run.attempt("/step:charge#1", "charge", 1):
        pass
    run.released("completed")

    assert observed.spans == ()


class ForeignTracer(trace.Tracer):
    """A tracer that is not the SDK's: nobody can give it ids."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(self, name: str, *arguments: Any, **options: Any) -> trace.Span:
        return self._tracer.start_span(name, *arguments, **options)

    def start_as_current_span(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._tracer.start_as_current_span(name, *arguments, **options)


class ForeignProvider(trace.TracerProvider):
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider

    def get_tracer(self, *arguments: Any, **options: Any) -> trace.Tracer:
        return ForeignTracer(self._provider.get_tracer(*arguments, **options))


def test_spans_of_a_provider_of_another_make_hang_below_the_start_span(observed: Observed) -> None:
    run = activation(Telemetry(tracer_provider=ForeignProvider(observed.tracer_provider)))
    with run.attempt("/step:charge#1", "charge", 1):
        pass
    run.committed([entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1)])
    run.committed([entry(3, Kind.RUN, Phase.COMPLETED, "checkout")])
    run.released("completed")

    assert len(observed.spans) == 4
    assert {span.parent.span_id for span in observed.spans if span.parent} == {int(CALLER.split("-")[2], 16)}
    attributes = observed.span("step charge").attributes
    assert attributes is not None
    assert attributes["pgwf.entry.key"] == "/step:charge#1"


def test_without_a_configured_provider_no_span_is_built_and_user_code_runs() -> None:
    run = activation(Telemetry(tracer_provider=NoOpTracerProvider()))

    with run.attempt("/step:charge#1", "charge", 1):
        assert not trace.get_current_span().get_span_context().is_valid
    run.committed([entry(2, Kind.RUN, Phase.COMPLETED, "checkout")])
    run.released("completed")


def test_metrics_count_runs_by_workflow_and_outcome_and_name_no_run(observed: Observed) -> None:
    with observed.telemetry.starting("checkout", "order-17") as starting:
        starting.created = True
    run = activation(observed.telemetry)
    with run.attempt("/step:charge#1", "charge", 1):
        pass
    run.committed([entry(2, Kind.STEP, Phase.COMPLETED, "charge", call=1)])
    run.committed([entry(3, Kind.RUN, Phase.COMPLETED, "checkout")])
    run.journal_grew_long("warn")
    run.released("lost")

    assert observed.points("pgwf.journal.long") == [(1, {"workflow": "checkout", "limit": "warn"})]
    assert observed.points("pgwf.run.started") == [(1, {"workflow": "checkout"})]
    assert observed.points("pgwf.run.completed") == [(1, {"workflow": "checkout", "outcome": "success"})]
    assert observed.points("pgwf.run.duration") == [(1, {"workflow": "checkout", "outcome": "success"})]
    assert observed.points("pgwf.step.duration") == [
        (1, {"workflow": "checkout", "step": "charge", "outcome": "success"})
    ]
    assert observed.points("pgwf.activation.duration") == [(1, {"workflow": "checkout", "status": "lost"})]
    assert observed.points("pgwf.lease.lost") == [(1, {"workflow": "checkout"})]


def test_a_start_that_found_its_run_is_not_counted(observed: Observed) -> None:
    with observed.telemetry.starting("checkout", "order-17"):
        pass

    assert observed.points("pgwf.run.started") == []


def test_operators_are_told_of_every_metric_by_its_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(pgwf\.[a-z.]+)`", page.partition("## Traces and metrics")[2]))

    assert told == {instrument.name for instrument in vars(_Metrics(MeterProvider())).values()}
