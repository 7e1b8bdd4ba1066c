"""Prepared statements, where they are safe: on a connection that is one session of the server from end to end."""

import asyncio
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, Final

import psycopg
from psycopg import AsyncConnection, errors, pq

from pgwf_sql._queries import query
from pgwf_sql.database._statement import Statement, execute_async, read_value

_BACKEND: Statement[int] = Statement("sdk_backend", {}, read_value, is_repeatable=True)
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)[sb]::(\w+)")
_PACKERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "bigint": struct.Struct("!q").pack,
    "int": struct.Struct("!i").pack,
    "smallint": struct.Struct("!h").pack,
    "text": str.encode,
    "bytea": bytes,
    "uuid": attrgetter("bytes"),
}
_BINARY: Final = pq.Format.BINARY
_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


async def prepare_if_direct(connection: AsyncConnection[Any]) -> None:
    """Let the connection keep its statements prepared, which spares the server to parse and plan them in each call.

    Not behind a pooler, where each transaction may run in another session, which has not prepared them. A pooler gives
    itself away: the process number it told the client at the start is not that of the process that answers.
    """
    if await execute_async(connection, _BACKEND) == connection.info.backend_pid:
        connection.prepare_threshold = 0


def is_direct(connection: AsyncConnection[Any]) -> bool:
    """Whether `prepare_if_direct` found that statements can be prepared."""
    return connection.prepare_threshold == 0


class PreparedCall:
    """A small statement of one row that is run very often: prepared, and without a cursor, which would cost more time
    than the server takes. Each of its parameters has a cast in the text.

    For who alone uses a direct connection, in autocommit mode. It is answered in a callback, since waking a task for it
    would take a tenth of the time the server needs.
    """

    _numbers: ClassVar[Iterator[int]] = count(1)

    def __init__(self, connection: AsyncConnection[Any], name: str) -> None:
        self.connection = connection
        # A connection may outlive the call that was prepared on it, and a name is prepared once.
        self._name = f"{name}_{next(self._numbers)}".encode()
        self._packers: dict[str, Callable[[Any], bytes]] = {}
        self._text = _PLACEHOLDER.sub(self._numbered, query(name)).encode()
        self._formats = [_BINARY] * len(self._packers)
        self._is_prepared = False
        self._loads: list[Callable[[bytes], Any]] = []
        self._stop_waiting: Callable[[], None] | None = None

    def _numbered(self, placeholder: re.Match[str]) -> str:
        parameter, type_name = placeholder.groups()
        self._packers[parameter] = _PACKERS[type_name]
        return f"${len(self._packers)}::{type_name}"

    def start(self, parameters: Mapping[str, Any], then: Callable[[list[Any] | psycopg.Error], None]) -> None:
        """Run it, and call `then` on the running loop with the row, once it has committed, or with the error.

        One call at a time. Raises at once, and has sent nothing, when a parameter cannot be packed.
        """
        pgconn = self.connection.pgconn
        values = [None if (value := parameters[name]) is None else pack(value) for name, pack in self._packers.items()]

        def run(prepared: list[pq.abc.PGresult] | psycopg.Error) -> None:
            if isinstance(prepared, psycopg.Error):
                then(prepared)
                return
            self._is_prepared = True
            self._send(pgconn.send_query_prepared, (self._name, values, self._formats, _BINARY), answered)

        def answered(results: list[pq.abc.PGresult] | psycopg.Error) -> None:
            then(results if isinstance(results, psycopg.Error) else self._row(results))

        if self._is_prepared:
            run([])
        else:
            self._send(pgconn.send_prepare, (self._name, self._text), run)

    def stop(self) -> None:
        """Wait no longer for an answer that is under way; the connection is good for nothing but to be closed."""
        if self._stop_waiting is not None:
            self._stop_waiting()

    def _row(self, results: list[pq.abc.PGresult]) -> list[Any]:
        (row,) = results
        self._loads = self._loads or [self._load_of(row.ftype(column)) for column in range(row.nfields)]
        return [
            None if (data := row.get_value(0, column)) is None else load(data)
            for column, load in enumerate(self._loads)
        ]

    def _load_of(self, oid: int) -> Callable[[bytes], Any]:
        loader = self.connection.adapters.get_loader(oid, _BINARY)
        assert loader is not None, f"psycopg loads no type {oid} in binary format"
        return loader(oid, self.connection).load

    def _send(
        self,
        send: Callable[..., None],
        what: tuple[Any, ...],
        then: Callable[[list[pq.abc.PGresult] | psycopg.Error], None],
    ) -> None:
        """`then` gets what the server says to it, up to its last word: only that tells that the commit is done."""
        pgconn, loop = self.connection.pgconn, asyncio.get_running_loop()
        socket = pgconn.socket
        results: list[pq.abc.PGresult] = []

        def receive() -> None:
            try:
                pgconn.consume_input()
                while not pgconn.is_busy():
                    if (result := pgconn.get_result()) is None:
                        end()
                        return
                    results.append(result)
            except psycopg.Error as error:
                end(error)

        def flush() -> None:
            try:
                if pgconn.flush() == 0:
                    loop.remove_writer(socket)
            except psycopg.Error:
                loop.remove_writer(socket)  # Whoever reads is told.

        def stop() -> None:
            self._stop_waiting = None
            loop.remove_reader(socket)
            if is_large:
                loop.remove_writer(socket)

        def end(error: psycopg.Error | None = None) -> None:
            stop()
            for result in results:
                if error is None and result.status not in _FINE:
                    error = errors.error_from_result(result, encoding=self.connection.info.encoding)
            then(results if error is None else error)

        is_large = False
        try:
            send(*what)
            is_large = pgconn.flush() != 0
        except psycopg.Error as error:
            loop.call_soon(then, error)
            return
        if is_large:
            loop.add_writer(socket, flush)
        loop.add_reader(socket, receive)
        self._stop_waiting = stop
