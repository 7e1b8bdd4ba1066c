"""How fast a journal is replayed, in this process; needs no database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench import replay
from bench.rounds import Cell, Metric, Sample
from pgwf_sdk.replay import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENTRIES = Metric("entries/s of CPU time", more_is_better=True)
COUNT = 5000


def replaying() -> Iterator[Cell]:
    """Journals of 5,000 steps, one after the other and side by side."""
    yield Cell(
        f"replay of {COUNT:,} entries",
        {
            "pgwf": _replay(replay.async_sequence, replay.in_sequence),
            "pgwf, def": _replay(replay.sequence, replay.in_sequence),
            "pgwf, gather": _replay(replay.async_gather, replay.in_sequence),
            "pgwf, map": _replay(replay.async_mapped, replay.in_branches),
        },
    )


def _replay(definition: Any, entry: Callable[[int], Any]) -> Callable[[], Sample]:
    history = [replay.opening(definition, COUNT), *(entry(index) for index in range(COUNT))]

    def sample() -> Sample:
        started = time.process_time()
        outcome = replay.replay(definition, history)
        seconds = time.process_time() - started
        assert isinstance(outcome, Completed), outcome
        return {ENTRIES: COUNT / seconds}

    return sample
