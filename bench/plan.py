"""Which cells a run measures, and how long each sample takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.commit_cells import step_latency
from bench.engine_cells import STEPS, asked
from bench.history_cells import with_a_past
from bench.queue_cells import submitting, taking
from bench.recovery_cells import resuming
from bench.replay_cells import replaying
from bench.snapshot_cells import held_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from bench.engines._engine import EngineSystem
    from bench.rounds import Cell
    from bench.server import Server
    from bench.subjects import Subjects


@dataclass(frozen=True)
class Plan:
    """How much a run measures."""

    minutes_max: float
    """After that it begins no further group of cells."""
    rounds: int
    seconds: float
    """Of one sample of a rate."""
    hold_seconds: float
    """How long each system works while a snapshot is held."""
    samples: int
    """Of one sample of a latency."""
    children: int
    past_runs: int
    idle_seconds: float


PLANS = {
    "quick": Plan(
        minutes_max=17,
        rounds=3,
        seconds=0.5,
        hold_seconds=10,
        samples=20,
        children=100,
        past_runs=100_000,
        idle_seconds=6,
    ),
    "full": Plan(
        minutes_max=600,
        rounds=9,
        seconds=2.0,
        hold_seconds=60,
        samples=100,
        children=1000,
        past_runs=1_000_000,
        idle_seconds=30,
    ),
}
# What says most first, in case time runs out.
ORDER = (
    *("claim", "enqueue", "steps", "latency", "step-latency", "snapshot", "million", "one-step", "resume", "signal"),
    *("children", "cost", "past", "replay", "start-one", "start-many", "idle"),
)
BACKLOGS = (0, 10_000)
COST_RUNS = 200


def cells(server: Server, subjects: Subjects, plan: Plan, only: Sequence[str], left_out: list[str]) -> Generator[Cell]:
    """All cells of the plan, or those whose group has one of the words `only` in its name.

    What there is no time for any more goes to `left_out`.
    """
    until = time.monotonic() + plan.minutes_max * 60
    groups = _queue_groups(server, subjects, plan) | _engine_groups(server, subjects, plan)
    for name in ORDER:
        if only and not any(word in name for word in only):
            continue
        if time.monotonic() > until:
            left_out.append(name)
            continue
        yield from groups[name]()


Groups = dict[str, "Callable[[], Iterator[Cell]]"]


def _queue_groups(server: Server, subjects: Subjects, plan: Plan) -> Groups:
    return {
        "enqueue": lambda: submitting(server, subjects.queues, seconds=plan.seconds),
        "claim": lambda: taking(server, subjects.queues, seconds=plan.seconds, backlogs=BACKLOGS),
        "million": lambda: taking(server, subjects.two_call_queues(), seconds=plan.seconds, backlogs=[1_000_000]),
        "snapshot": lambda: held_snapshot(
            server, subjects.two_call_queues(), seconds=plan.seconds, hold_seconds=plan.hold_seconds
        ),
    }


def _engine_groups(server: Server, subjects: Subjects, plan: Plan) -> Groups:
    engines, pgwf = subjects.engines, subjects.engines[:1]
    durable = [engine for engine in engines if engine.is_durable]
    one_step = "one step, or a plain job"

    def able(shape: str) -> list[EngineSystem]:
        return [engine for engine in durable if shape in engine.shapes]

    return {
        "steps": lambda: asked(
            server, durable, f"runs of {STEPS} steps", lambda bench: bench.runs_for(plan.seconds * 2, STEPS)
        ),
        "one-step": lambda: asked(
            server, engines, f"runs of {one_step}", lambda bench: bench.runs_for(plan.seconds * 2, 1)
        ),
        "start-one": lambda: asked(
            server, engines, "start one run or job a call", lambda bench: bench.starts_for(plan.seconds, 1)
        ),
        "start-many": lambda: asked(
            server, engines, "start a hundred runs or jobs at once", lambda bench: bench.starts_for(plan.seconds, 100)
        ),
        "latency": lambda: asked(
            server, engines, f"idle, start to end of {one_step}", lambda bench: bench.idle_latency(plan.samples)
        ),
        "step-latency": lambda: step_latency(server, durable, runs=plan.samples // 4, commits=plan.samples * 10),
        "signal": lambda: asked(
            server, able("signals"), "signal sent to workflow gone on", lambda bench: bench.signals(plan.samples)
        ),
        "children": lambda: asked(
            server,
            able("children"),
            f"a workflow and its {plan.children} children",
            lambda bench: bench.fan_out(plan.children),
        ),
        "resume": lambda: resuming(server, durable, rounds_max=max(plan.rounds // 3, 1)),
        "cost": lambda: asked(
            server,
            durable,
            f"written for runs of {STEPS} steps, together",
            lambda bench: bench.cost(COST_RUNS),
            rounds_max=1,
        ),
        "idle": lambda: asked(
            server,
            engines,
            "a worker that has nothing to do",
            lambda bench: bench.idle(plan.idle_seconds),
            rounds_max=1,
        ),
        "past": lambda: with_a_past(server, pgwf[0], runs=plan.past_runs, seconds=plan.seconds * 2),
        "replay": replaying,
    }
