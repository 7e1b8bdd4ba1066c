"""How models of the core are played: Hypothesis chooses calls, PGWF_MODEL_EXAMPLES says how many sequences of them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.pgwf.leasing import Leasing
from tests.support import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

T = TypeVar("T")

EXAMPLES = int(os.environ.get("PGWF_MODEL_EXAMPLES", "25"))


class CoreMachine(RuleBasedStateMachine):
    """Calls of one empty core whose clock stands still; each rule makes them, and does the same to its model."""

    dsn: str
    reset: str

    def __init__(self) -> None:
        super().__init__()
        self._closing = ExitStack()
        self.pgwf = Leasing(self.connect())
        self.pgwf.conn.execute(self.reset)
        self.clock = Clock(self.pgwf.conn)
        self.count = 0

    def connect(self) -> psycopg.Connection[Any]:
        return self._closing.enter_context(psycopg.connect(self.dsn, autocommit=True))

    def teardown(self) -> None:
        self._closing.close()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @invariant()
    def no_invariant_is_broken(self) -> None:
        assert self.pgwf.broken() == []


def play(model: type[CoreMachine], *, dsn: str, reset: str) -> None:
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
