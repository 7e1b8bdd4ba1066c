"""A worker that begins its claims at a position, because a held snapshot makes whole looks slow."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from pgwf_sdk import Client, Context, workflow
from pgwf_sdk.worker._position import Position
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    import pytest

    from tests.sdk.worker.conftest import StartWorker
    from tests.support import Connect

SOON = timedelta(seconds=30)
DEAD_ROWS = 50_000


@workflow
def twice(ctx: Context, x: int) -> int:
    return 2 * x


@contextmanager
def graveyard(connect: Connect) -> Generator[None]:
    """Dead entries of work long finished, which nobody may clear away while a snapshot is held."""
    reader, writer = connect(), connect()
    reader.execute("begin isolation level repeatable read")
    reader.execute("select count(*) from pgwf.ready")
    writer.execute(
        "insert into pgwf.ready (pos, n, priority, need, ready_at)"
        " select nextval('pgwf.pos'), currval('pgwf.pos'), 3, 'twice', '-infinity' from generate_series(1, %s)",
        [DEAD_ROWS],
    )
    writer.execute("delete from pgwf.ready where ready_at = '-infinity'")
    yield
    reader.execute("rollback")


def test_a_run_committed_late_is_executed_although_the_worker_is_past_its_position(
    client: Client, start_worker: StartWorker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[bool] = []
    told = Position.told

    def watched(position: Position, rows: Sequence[tuple[Any, ...]]) -> None:
        told(position, rows)
        parts.append(not position.is_whole)

    monkeypatch.setattr(Position, "told", watched)
    with graveyard(connect):
        submitter = connect()
        with submitter.transaction():
            late = client.start(twice(21), run_id="late", connection=submitter)
            start_worker(twice, poll=SOON)
            for i in range(5):
                assert client.start(twice(i), run_id=f"timely-{i}").result(timeout=SOON) == 2 * i
            wait_until(lambda: any(parts), "the worker begins its claims at a position")

        assert late.result(timeout=SOON) == 42
