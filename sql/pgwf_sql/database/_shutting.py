"""Ends the wait for an answer that does not come."""

import os
import socket
from contextlib import suppress

import psycopg


def shut_down(pgconn: psycopg.pq.abc.PGconn) -> None:
    """Make whoever waits for the server on this connection fail at once, with an OperationalError. From any thread.

    Waiting for an answer cannot be given up from within: psycopg would wait for the end of what it has sent.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(pgconn.socket)) as side:
        side.shutdown(socket.SHUT_RDWR)
