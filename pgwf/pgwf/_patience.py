"""Ends a connection whose server does not answer in time, be it frozen or behind a network that swallows packets.

Waiting for an answer cannot be given up from within: psycopg would wait for the end of what it has sent. Whoever shuts
the socket down makes that wait end at once, with an OperationalError.
"""

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Lock, Timer

import psycopg


@contextmanager
def answered_within(connection: psycopg.Connection, *, seconds: float) -> Generator[None]:
    """Shut the connection down if the block takes longer; what it waits for fails then."""
    lock = Lock()
    is_over = False

    def give_up() -> None:
        with lock:
            if not is_over:
                _shut_down(connection.pgconn)

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
    timer = asyncio.get_running_loop().call_later(seconds, _shut_down, connection.pgconn)
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(pgconn: psycopg.pq.abc.PGconn) -> None:
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(pgconn.socket)) as side:
        side.shutdown(socket.SHUT_RDWR)
