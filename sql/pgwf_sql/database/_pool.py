"""The connections a client runs its statements on: few, opened when first needed, checked once for the schema."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Lock
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from pgwf_sql.database._closing import AsyncClosing, Closing
from pgwf_sql.database._fork import forget_when_forked
from pgwf_sql.database._schema import require_schema_version, require_schema_version_async
from pgwf_sql.database._statement import Rewrite, Statement, execute, execute_async
from pgwf_sql.database._translate import Translate, raise_translated

T = TypeVar("T")

CONNECTIONS_MAX = 4
"""Connections one client holds at most, unless told otherwise."""
_IDLE_SECONDS_MAX = 60.0  # A quiet client gives its connections back to the server.
_CONNECT_SECONDS_MAX = 10  # An address that swallows packets must fail a call, not hang it.

_BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_CLOSED = "this client is closed: make a new one, or close it after its last use"

_CONNECTION_SETTINGS: dict[str, Any] = {
    "autocommit": True,
    # Named prepared statements would break behind PgBouncer in transaction mode.
    "prepare_threshold": None,
    "connect_timeout": _CONNECT_SECONDS_MAX,
    # Values that are packed here, not by psycopg, are UTF-8, whatever PGCLIENTENCODING says.
    "client_encoding": "UTF8",
}
# A network that swallows packets on the way must end a connection within a minute; by default it takes 15 minutes, or
# hours on one that only listens. The server's machine answers these, however long a statement takes.
_NETWORK_SETTINGS: dict[str, Any] = {
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def _settings(dsn: str) -> dict[str, Any]:
    """What a connection to `dsn` is made with beside what that says."""
    said = conninfo_to_dict(dsn)
    network = {name: value for name, value in _NETWORK_SETTINGS.items() if name not in said}
    return _CONNECTION_SETTINGS | network


# What psycopg reads instants and intervals in. A role or database may prefer others, and an answer that cannot be read
# comes after its leases were taken. PgBouncer keeps both for the client that set them.
_STYLES: tuple[tuple[str, str, LiteralString], ...] = (
    ("DateStyle", "ISO", "set datestyle = 'ISO'"),
    ("IntervalStyle", "postgres", "set intervalstyle = 'postgres'"),
)


def _restyling(connection: Connection[Any] | AsyncConnection[Any]) -> Sequence[LiteralString]:
    """The statements after which `connection` answers in styles that can be read; usually none."""
    found = connection.info.parameter_status
    return [statement for name, style, statement in _STYLES if (found(name) or style).split(",")[0] != style]


# A claim that finds nothing may LISTEN; nobody reads that here, and without a handler psycopg would keep it for ever.
def _prepare(connection: Connection) -> None:
    connection.add_notify_handler(lambda _: None)
    for statement in _restyling(connection):
        connection.execute(statement)


async def _prepare_async(connection: AsyncConnection) -> None:
    connection.add_notify_handler(lambda _: None)
    for statement in _restyling(connection):
        await connection.execute(statement)


class Database(Closing):
    """Runs statements on a small pool, or on the caller's own connection; safe to share between threads, and in
    processes that are forked later."""

    def __init__(
        self,
        dsn: str,
        *,
        translate: Translate,
        connections_max: int = CONNECTIONS_MAX,
        listen_dsn: str | None = None,
        rewrite: Rewrite | None = None,
        connection_class: type[Connection[Any]] = Connection,
    ) -> None:
        self._connection_class = connection_class
        self._dsn = dsn
        self._rewrite = rewrite
        self._listen_dsn = listen_dsn or dsn
        self._translate = translate
        self._connections_max = connections_max
        self._opening = Lock()
        self._pool: ConnectionPool | None = None
        self._parents_pool: ConnectionPool | None = None  # Kept, because collecting it would end its connections.
        self._is_closed = False
        forget_when_forked(self)

    def forget(self) -> None:
        """In a forked process: leave the parent's connections alone."""
        self._opening = Lock()
        self._parents_pool, self._pool = self._pool or self._parents_pool, None

    def run(self, statement: Statement[T], connection: Connection[Any] | None = None) -> T:
        """Run `statement` in a transaction of its own, or inside the transaction of `connection`.

        TypeError: `connection` is none.
        """
        if connection is not None:
            _check_connection(connection, Connection)
        if self._rewrite is not None:
            statement = self._rewrite(statement)
        try:
            if connection is not None:
                return execute(connection, statement)
            return self._run_pooled(statement)
        except psycopg.Error as error:
            raise_translated(error, self._translate)

    @contextmanager
    def savepoint(self, connection: Connection[Any] | None) -> Generator[None]:
        """What the block does on `connection` is undone if it raises, and its transaction goes on; None: nothing is.

        TypeError: `connection` is none.
        """
        if connection is None:
            yield
            return
        _check_connection(connection, Connection)
        with connection.transaction():
            yield

    def connect(self) -> Connection:
        """A new connection outside the pool, in autocommit mode; the caller closes it."""
        return self._connect(self._dsn)

    def connect_to_listen(self) -> Connection:
        """The same, for LISTEN: past a pooler, if this database was told the way."""
        return self._connect(self._listen_dsn)

    def _connect(self, dsn: str) -> Connection:
        connection = Connection.connect(dsn, **_settings(dsn))
        try:
            require_schema_version(connection)
            for statement in _restyling(connection):
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """A connection of the pool, in autocommit mode, for the time of the block."""
        with self._opened().connection() as pooled:
            yield pooled

    def close(self) -> None:
        """Close the pool; idempotent. A closed database runs nothing more, except on callers' connections."""
        with self._opening:
            self._is_closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _run_pooled(self, statement: Statement[T]) -> T:
        pool = self._opened()
        with pool.connection() as pooled:
            try:
                return execute(pooled, statement)
            except _BUSY:
                if statement.when_busy is None:
                    raise
                return execute(pooled, statement.for_busy())
            except psycopg.errors.ReadOnlySqlTransaction:
                pooled.close()  # Perhaps a standby: the next statement shall not be bound to it.
                raise
            except psycopg.OperationalError:
                if not (pooled.closed and statement.is_repeatable):
                    raise
        # The server closed that connection (a restart, an idle limit); the others of the pool are as old, so this
        # one attempt takes a new one.
        with self.connect() as fresh:
            return execute(fresh, statement)

    def _opened(self) -> ConnectionPool:
        with self._opening:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            if self._pool is None:
                # Connecting once outside the pool gives a wrong address its own clear error at once, where the pool
                # would only report a time-out.
                self.connect().close()
                self._pool = ConnectionPool(
                    self._dsn,
                    min_size=0,
                    max_size=self._connections_max,
                    timeout=_CONNECT_SECONDS_MAX,
                    max_idle=_IDLE_SECONDS_MAX,
                    kwargs=_settings(self._dsn),
                    connection_class=self._connection_class,
                    configure=_prepare,
                    open=True,
                )
            return self._pool


class AsyncDatabase(AsyncClosing):
    """Like `Database`, for one event loop."""

    def __init__(
        self,
        dsn: str,
        *,
        translate: Translate,
        connections_max: int = CONNECTIONS_MAX,
        listen_dsn: str | None = None,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._dsn = dsn
        self._rewrite = rewrite
        self._listen_dsn = listen_dsn or dsn
        self._translate = translate
        self._connections_max = connections_max
        self._opening = asyncio.Lock()
        self._pool: AsyncConnectionPool | None = None
        self._is_closed = False

    async def run(self, statement: Statement[T], connection: AsyncConnection[Any] | None = None) -> T:
        """Run `statement` in a transaction of its own, or inside the transaction of `connection`.

        TypeError: `connection` is none.
        """
        if connection is not None:
            _check_connection(connection, AsyncConnection)
        if self._rewrite is not None:
            statement = self._rewrite(statement)
        try:
            if connection is not None:
                return await execute_async(connection, statement)
            return await self._run_pooled(statement)
        except psycopg.Error as error:
            raise_translated(error, self._translate)

    @asynccontextmanager
    async def savepoint(self, connection: AsyncConnection[Any] | None) -> AsyncGenerator[None]:
        """Like Database.savepoint."""
        if connection is None:
            yield
            return
        _check_connection(connection, AsyncConnection)
        async with connection.transaction():
            yield

    async def connect(self) -> AsyncConnection:
        """A new connection outside the pool, in autocommit mode; the caller closes it."""
        return await self._connect(self._dsn)

    async def connect_to_listen(self) -> AsyncConnection:
        """The same, for LISTEN: past a pooler, if this database was told the way."""
        return await self._connect(self._listen_dsn)

    async def _connect(self, dsn: str) -> AsyncConnection:
        connection = await AsyncConnection.connect(dsn, **_settings(dsn))
        try:
            await require_schema_version_async(connection)
            for statement in _restyling(connection):
                await connection.execute(statement)
        except BaseException:
            await connection.close()
            raise
        return connection

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """A connection of the pool, in autocommit mode, for the time of the block."""
        pool = await self._opened()
        async with pool.connection() as pooled:
            yield pooled

    async def close(self) -> None:
        """Close the pool; idempotent. A closed database runs nothing more, except on callers' connections."""
        async with self._opening:
            self._is_closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _run_pooled(self, statement: Statement[T]) -> T:
        pool = await self._opened()
        async with pool.connection() as pooled:
            try:
                return await execute_async(pooled, statement)
            except _BUSY:
                if statement.when_busy is None:
                    raise
                return await execute_async(pooled, statement.for_busy())
            except psycopg.errors.ReadOnlySqlTransaction:
                await pooled.close()
                raise
            except psycopg.OperationalError:
                if not (pooled.closed and statement.is_repeatable):
                    raise
        async with await self.connect() as fresh:
            return await execute_async(fresh, statement)

    async def _opened(self) -> AsyncConnectionPool:
        async with self._opening:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            if self._pool is None:
                await (await self.connect()).close()
                self._pool = AsyncConnectionPool(
                    self._dsn,
                    min_size=0,
                    max_size=self._connections_max,
                    timeout=_CONNECT_SECONDS_MAX,
                    max_idle=_IDLE_SECONDS_MAX,
                    kwargs=_settings(self._dsn),
                    configure=_prepare_async,
                    open=False,
                )
                await self._pool.open()
            return self._pool


def _check_connection(found: object, kind: type) -> None:
    if not isinstance(found, kind):
        raise TypeError(
            f"connection=…: found an object of {type(found).__name__}; expected a psycopg.{kind.__name__}, in whose"
            " transaction it is done"
        )
