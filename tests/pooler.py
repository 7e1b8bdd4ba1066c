"""PgBouncer in transaction mode between the clients of a test and its server: each transaction may be served by another
server session, so nothing may live in a session."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgwf_sdk.embedded._account import server_account
from tests.support import wait_until

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PROGRAM_VARIABLE = "PGWF_TEST_PGBOUNCER"  # the program's path; unset: no pooler
PORT = 6432  # a Unix socket's name has a port
STOP_SECONDS_MAX = 10.0
# Round robin makes sure that a session's next transaction meets another server session.
SETTINGS = """\
[databases]
* = host={server_folder} port={server_port} user={user}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
admin_users = {user}
pool_mode = transaction
server_round_robin = 1
default_pool_size = 20
max_client_conn = 500
query_wait_timeout = 5
server_login_retry = 1
logfile = {folder}/pgbouncer.log
ignore_startup_parameters = extra_float_digits
"""


class Pooler:
    """A PgBouncer of its own in front of a server; as root it runs under the account servers run under."""

    def __init__(self, program: Path, folder: Path, server_dsn: str) -> None:
        self._program = program
        self._folder = folder
        self._server = conninfo_to_dict(server_dsn)
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, dsn: str) -> str:
        """The way through the pooler to the database that `dsn` names."""
        return make_conninfo(dsn, host=str(self._folder), port=PORT)

    def forget(self, dsn: str) -> None:
        """End all connections to the database that `dsn` names, on both sides."""
        database = str(conninfo_to_dict(dsn)["dbname"])
        with suppress(psycopg.ProgrammingError):  # Nobody has used that database yet.
            self._administrate(sql.SQL("kill {}").format(sql.Identifier(database)))
            self._administrate(sql.SQL("resume {}").format(sql.Identifier(database)))

    def __enter__(self) -> Self:
        account = server_account()
        self._folder.mkdir(mode=0o755)
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(
                folder=self._folder,
                port=PORT,
                server_folder=self._server["host"],
                server_port=self._server.get("port", 5432),
                user=self._server["user"],
            )
        )
        if account is not None:
            os.chown(self._folder, account.uid, account.gid)
        self._process = subprocess.Popen(
            [self._program, "--quiet", settings],
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        wait_until((self._folder / f".s.PGSQL.{PORT}").exists, "the pooler has its socket")
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _administrate(self, command: sql.Composed) -> None:
        # The console speaks the simple protocol only, and knows no transactions.
        console: psycopg.Connection[Any] = psycopg.connect(
            self.dsn(make_conninfo(dbname="pgbouncer", user=self._server["user"])), autocommit=True
        )
        with closing(console):
            console.execute(command)


def pooler_program() -> Path | None:
    """The PgBouncer the tests are to run through, None for none."""
    program = os.environ.get(PROGRAM_VARIABLE)
    return Path(program) if program else None
