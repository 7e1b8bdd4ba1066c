"""Measuring subjects in turn: A B C A B C, with the machine's own commit rate and load beside each round."""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Probe(Protocol):
    """Tells what the machine can do just now."""

    def commits_per_second(self) -> float:
        """Single-row inserts that one connection commits in a second."""
        ...


class Metric(NamedTuple):
    """What a number says."""

    unit: str
    more_is_better: bool


JOBS = Metric("jobs/s", more_is_better=True)
SERVER_CPU = Metric("server CPU µs a job", more_is_better=False)

Sample = dict[Metric, float]


@dataclass(frozen=True)
class Cell:
    """One comparison: what each subject is asked to do once a round."""

    title: str
    subjects: Mapping[str, Callable[[], Sample]]
    rounds_max: int | None = None
    """For what hardly differs from round to round, such as counts."""


@dataclass
class Measured:
    """The samples of a cell, by subject and round."""

    title: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """Why a subject has fewer samples, or none."""
    commits_per_second: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)

    def metrics(self) -> list[Metric]:
        """The metrics that were sampled, in the order in which they first came."""
        return list(dict.fromkeys(metric for samples in self.samples.values() for one in samples for metric in one))

    def values(self, subject: str, metric: Metric) -> list[float]:
        """All samples of one number, by round."""
        return [one[metric] for one in self.samples.get(subject, []) if metric in one]

    def median(self, subject: str, metric: Metric) -> float | None:
        """The median over the rounds."""
        values = self.values(subject, metric)
        return statistics.median(values) if values else None

    def ratio(self, subject: str, to: str, metric: Metric) -> float | None:
        """How many times `to` this subject is: the median of the ratios within each round."""
        pairs = zip(self.values(subject, metric), self.values(to, metric), strict=False)
        ratios = [mine / other for mine, other in pairs if other]
        return statistics.median(ratios) if ratios else None


def measure(cell: Cell, *, rounds: int, probe: Probe) -> Measured:
    """Ask each subject once a round. One that fails is left out from then on, and the reason noted."""
    measured = Measured(cell.title, {name: [] for name in cell.subjects})
    started = time.monotonic()
    for _ in range(min(rounds, cell.rounds_max or rounds)):
        measured.commits_per_second.append(probe.commits_per_second())
        measured.load.append(os.getloadavg()[0])
        for name, sample in cell.subjects.items():
            if name in measured.faults:
                continue
            try:
                measured.samples[name].append(sample())
            except Exception as error:  # noqa: BLE001 - a peer's fault is a result, and must not end the others' run
                measured.faults[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                say(f"  {name}: {measured.faults[name]}")
    say(f"{cell.title}: {time.monotonic() - started:.0f} s")
    for name in measured.samples:
        said = [f"{measured.median(name, metric) or 0:,.1f} {metric.unit}" for metric in measured.metrics()]
        say(f"  {name:<28} {', '.join(said)}")
    return measured


def say(text: str) -> None:
    """Tell the one who waits."""
    print(text, file=sys.stderr, flush=True)
