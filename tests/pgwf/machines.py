"""How models of the core are played: Hypothesis chooses calls, PGWF_MODEL_EXAMPLES says how many sequences of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

T = TypeVar("T")

EXAMPLES = int(os.environ.get("PGWF_MODEL_EXAMPLES", "25"))


def play(model: type[RuleBasedStateMachine], *, dsn: str, reset: str) -> None:
    """Play sequences of calls on the database at `dsn`, which `reset` empties before each."""
    run_state_machine_as_test(
        type("Machine", (model,), {"dsn": dsn, "reset": reset}),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def pick(number: int, *groups: Sequence[T]) -> T:
    """One of a group; each group that is not empty has the same chance."""
    filled = [group for group in groups if group]
    chosen = filled[number % len(filled)]
    return chosen[number // len(filled) % len(chosen)]
