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
_SESSION: Statement[str] = Statement("sdk_session", {}, read_value, is_repeatable=True)
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
    """Let the connection keep its statements prepared, which spares the server to parse and plan them in each call, and
    give its session the settings that other functions bring with them, for one that is too short to.

    Not behind a pooler, where each transaction may run in another session, which has not prepared them. A pooler gives
    itself away: the process number it told the client at the start is not that of the process that answers.
    """
    if await execute_async(connection, _BACKEND) == connection.info.backend_pid:
        connection.prepare_threshold = 0
        await execute_async(connection, _SESSION)


def is_direct(connection: AsyncConnection[Any]) -> bool:
    """Whether `prepare_if_direct` found that statements can be prepared."""
    return connection.prepare_threshold == 0


class PreparedCall:
    """A small statement of one row that is run very often: prepared, and without a cursor, which would cost more time
    than the server takes. Each of its parameters has a cast in the text.

    For who alone uses a direct connection, in autocommit mode, and calls `stop` before it uses that otherwise or closes
    it. It is answered in a callback, since waking a task for it would take a tenth of the time the server needs; and it
    goes on listening for the answer of the next call, since to begin and to end that takes as long as all else here.
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
        self._pgconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._socket: int | None = None  # At which it listens.
        self._is_flushing = False
        self._results: list[pq.abc.PGresult] = []
        self._then: Callable[[list[Any] | psycopg.Error], None] | None = None
        self._values: list[bytes | None] = []

    def _numbered(self, placeholder: re.Match[str]) -> str:
        parameter, type_name = placeholder.groups()
        self._packers[parameter] = _PACKERS[type_name]
        return f"${len(self._packers)}::{type_name}"

    def start(self, parameters: Mapping[str, Any], then: Callable[[list[Any] | psycopg.Error], None]) -> None:
        """Run it, and call `then` on the running loop with the row, once it has committed, or with the error.

        One call at a time. Raises at once, and has sent nothing, when a parameter cannot be packed.
        """
        self._values = [
            None if (value := parameters[name]) is None else pack(value) for name, pack in self._packers.items()
        ]
        self._then = then
        if self._is_prepared:
            self._run()
        else:
            self._send(self._pgconn.send_prepare, self._name, self._text)

    def stop(self) -> None:
        """Listen no more. An answer that is under way does not come: the connection is only good to be closed then."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._end_flushing()
            self._socket = None

    def _run(self) -> None:
        self._send(self._pgconn.send_query_prepared, self._name, self._values, self._formats, _BINARY)

    def _send(self, send: Callable[..., None], *what: Any) -> None:
        self._results = []
        try:
            if self._socket is None:
                self._socket = self._pgconn.socket
                self._loop.add_reader(self._socket, self._receive)
            send(*what)
            if self._pgconn.flush():
                self._is_flushing = True
                self._loop.add_writer(self._socket, self._flush)
        except psycopg.Error as error:
            self.stop()
            self._loop.call_soon(self._end, error)

    def _flush(self) -> None:
        try:
            if self._pgconn.flush() == 0:
                self._end_flushing()
        except psycopg.Error:
            self._end_flushing()  # Whoever reads is told.

    def _end_flushing(self) -> None:
        if self._is_flushing and self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._is_flushing = False

    def _receive(self) -> None:
        """Gather what the server says, up to its last word: only that tells that the commit is done."""
        if self._then is None:  # Something is wrong with the connection, as the next call will find out.
            self.stop()
            return
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    self._end()
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self.stop()
            self._end(error)

    def _end(self, error: psycopg.Error | None = None) -> None:
        for result in self._results:
            if error is None and result.status not in _FINE:
                error = errors.error_from_result(result, encoding=self.connection.info.encoding)
        if error is None and not self._is_prepared:
            self._is_prepared = True
            self._run()
            return
        then, self._then = self._then, None
        assert then is not None
        then(self._row() if error is None else error)

    def _row(self) -> list[Any]:
        (row,) = self._results
        self._loads = self._loads or [self._load_of(row.ftype(column)) for column in range(row.nfields)]
        return [
            None if (data := row.get_value(0, column)) is None else load(data)
            for column, load in enumerate(self._loads)
        ]

    def _load_of(self, oid: int) -> Callable[[bytes], Any]:
        loader = self.connection.adapters.get_loader(oid, _BINARY)
        assert loader is not None, f"psycopg loads no type {oid} in binary format"
        return loader(oid, self.connection).load
