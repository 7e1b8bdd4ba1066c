"""The connection of an attempt on a thread, for whoever gives that attempt up: a thread cannot be told to stop."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection
from psycopg.abc import PQGen

from pgwf_sql.database import shut_down

log = logging.getLogger("pgwf_sdk.worker")

_CANCEL_SECONDS: Final = 5.0


class GivenUpError(Exception):
    """Nobody waits for this attempt any more."""


T = TypeVar("T")


class StepConnection(Connection[Any]):
    """A connection that begins no statement any more once it is cut: code may go on after one that was cancelled."""

    is_cut = False

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        if self.is_cut:
            raise psycopg.OperationalError("the attempt was given up, and its connection is cut")
        return super().wait(gen, *args, **options)


class Tether:
    """Ends what an attempt does on its connection, and with it the connection, once nobody wants that any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: StepConnection | None = None
        self._is_cut = False

    @contextmanager
    def on(self, connection: Connection[Any]) -> Generator[None]:
        """Let `cut` reach this connection as long as the block lasts, and never afterwards: others have it then.

        GivenUpError: it was cut before.
        """
        with self._lock:
            self.require_uncut()
            assert isinstance(connection, StepConnection), "the pool of transactions makes no others"
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None
                if self._is_cut:
                    connection.close()

    def require_uncut(self) -> None:
        """GivenUpError: it was cut."""
        if self._is_cut:
            raise GivenUpError("nobody waits for this attempt any more")

    def cut(self) -> None:
        """Give the attempt up, from another thread and without waiting for it."""
        self._is_cut = True
        threading.Thread(target=self._end, name="pgwf-cut", daemon=True).start()

    def _end(self) -> None:
        with self._lock:
            connection = self._connection
            if connection is None or connection.closed:
                return
            connection.is_cut = True
            try:
                # The server looks for a client that is gone only when its statement has ended.
                connection.cancel_safe(timeout=_CANCEL_SECONDS)
            except psycopg.Error as error:
                log.warning("a statement of a step that was given up could not be cancelled: %s", error)
            shut_down(connection.pgconn)  # A server that does not answer is not waited for either.
