"""The result of a run: as JSON, as Markdown tables, and as a plot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.plot import Bar, plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.rounds import Measured, Metric

REFERENCE = "pgwf"


@dataclass(frozen=True)
class Result:
    """Everything a run found."""

    about: Mapping[str, Any]
    limits: Mapping[str, float]
    cells: Sequence[Measured]
    left_out: Sequence[str] = ()
    """Groups of cells there was no time for."""


def write(result: Result, folder: Path) -> list[Path]:
    """Write results.json, results.md and results.svg into `folder`, and return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "results.json": json.dumps(as_json(result), indent=1) + "\n",
        "results.md": as_markdown(result),
        "results.svg": as_plot(result),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def as_json(result: Result) -> dict[str, Any]:
    """Every sample, with what it is to be compared with."""
    return {
        "about": dict(result.about),
        "limits": {name: round(value, 2) for name, value in result.limits.items()},
        "left_out": list(result.left_out),
        "cells": [_cell_as_json(cell) for cell in result.cells],
    }


def _cell_as_json(cell: Measured) -> dict[str, Any]:
    return {
        "title": cell.title,
        "commits_per_second": [round(value) for value in cell.commits_per_second],
        "load": [round(value, 2) for value in cell.load],
        "faults": cell.faults,
        "metrics": [
            {
                "unit": metric.unit,
                "more_is_better": metric.more_is_better,
                "subjects": {
                    name: {
                        "median": _rounded(cell.median(name, metric)),
                        "ratio": _rounded(cell.ratio(name, REFERENCE, metric)),
                        "samples": [_rounded(value) for value in cell.values(name, metric)],
                    }
                    for name in cell.samples
                },
            }
            for metric in cell.metrics()
        ],
    }


def as_markdown(result: Result) -> str:
    """A table a cell, with the median of the ratios to pgwf within each round."""
    lines = ["# Results", ""]
    lines += [f"- {name}: {value}" for name, value in result.about.items()]
    lines += [f"- {name}: {value:,.0f}" for name, value in result.limits.items()]
    if result.left_out:
        lines += [f"- left out, as there was no time: {', '.join(result.left_out)}"]
    for cell in result.cells:
        lines += ["", f"## {cell.title}", "", *_table(cell)]
        commits, load = median(cell.commits_per_second or [0]), median(cell.load or [0])
        lines += ["", f"One connection then committed {commits:,.0f} single-row inserts a second; load {load:.1f}."]
        lines += [f"{name}: {fault}." for name, fault in cell.faults.items()]
    return "\n".join(lines) + "\n"


def _table(cell: Measured) -> list[str]:
    metrics = cell.metrics()
    head = "| | " + " | ".join(f"{metric.unit} | least to most | times pgwf" for metric in metrics) + " |"
    rows = [head, "| --- |" + " ---: | ---: | ---: |" * len(metrics)]
    for name, samples in cell.samples.items():
        if samples:
            rows.append(f"| {name} | " + " | ".join(_figures(cell, name, metric) for metric in metrics) + " |")
    return rows


def _figures(cell: Measured, name: str, metric: Metric) -> str:
    middle, ratio, values = cell.median(name, metric), cell.ratio(name, REFERENCE, metric), cell.values(name, metric)
    if middle is None:
        return " | | "
    against = "" if ratio is None else f"{ratio:.2f}"
    return f"{figure(middle)} | {figure(min(values))} to {figure(max(values))} | {against}"


def as_plot(result: Result) -> str:
    """How every subject stands to pgwf, by the first metric of each cell; to the right is better."""
    groups: list[tuple[str, list[Bar]]] = []
    for cell in result.cells:
        bars: list[Bar] = []
        for metric in cell.metrics()[:1]:
            for name in cell.samples:
                ratio, middle = cell.ratio(name, REFERENCE, metric), cell.median(name, metric)
                if ratio and middle is not None:
                    better = ratio if metric.more_is_better else 1 / ratio
                    bars.append(Bar(name, better, f"{figure(middle)} {metric.unit}"))
        groups.append((cell.title, bars))
    return plot([group for group in groups if len(group[1]) > 1])


def figure(value: float) -> str:
    """A number with as many digits as it is worth."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
