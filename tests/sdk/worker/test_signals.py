"""SIGTERM and SIGINT while a worker ends."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from pgwf_sdk import Client, Context, Worker, workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@workflow
def nothing(ctx: Context) -> None: ...


class Late(logging.Handler):
    """Sends a signal when a worker says that it has stopped: its loop does not go round again."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().endswith(": stopped"):
            signal.raise_signal(self._number)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Signals that reach whoever runs the worker."""
    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals are for the main thread")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop_factory", ["asyncio.new_event_loop", "uvloop.new_event_loop"])
def test_a_signal_that_comes_when_a_worker_has_stopped_is_heard_by_whoever_goes_on(
    client: Client, heard: list[int], number: signal.Signals, loop_factory: str
) -> None:
    module, _, name = loop_factory.rpartition(".")
    make: Callable[[], asyncio.AbstractEventLoop] = getattr(importlib.import_module(module), name)
    logger = logging.getLogger("pgwf_sdk.worker")
    handler = Late(number)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        worker = Worker(client, workflows=[nothing])
        worker.stop()
        worker.run(loop_factory=make)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

    assert heard == [number]
