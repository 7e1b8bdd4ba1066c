"""Ends a connection whose server does not answer in time, be it frozen or behind a network that swallows packets."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock, Timer

import psycopg

from pgwf_sql.database import shut_down


@contextmanager
def answered_within(connection: psycopg.Connection, *, seconds: float) -> Generator[None]:
    """Shut the connection down if the block takes longer; what it waits for fails then."""
    lock = Lock()
    is_over = False

    def give_up() -> None:
        with lock:
            if not is_over:
                shut_down(connection.pgconn)

    timer = Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # From here on the descriptor may be closed, and be somebody else's.
        with lock:
            is_over = True


@contextmanager
def answered_within_async(connection: psycopg.AsyncConnection, *, seconds: float) -> Generator[None]:
    """The same on the running event loop."""
    timer = asyncio.get_running_loop().call_later(seconds, shut_down, connection.pgconn)
    try:
        yield
    finally:
        timer.cancel()
