"""A database of the test's own on a given server, with the schemas and the test kit installed."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgwf_sql

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PREFIX = "pgwf_testing_"


class OwnDatabase:
    """Made on enter, dropped on exit with whoever is still in it. `server` must lead to an account with CREATEDB."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._name = f"{PREFIX}{os.getpid()}_{secrets.token_hex(4)}"
        self.dsn = make_conninfo(server, dbname=self._name)

    def __enter__(self) -> Self:
        self._administer("create database {}")
        try:
            with psycopg.connect(self.dsn) as connection:
                pgwf_sql.install(connection)
                pgwf_sql.install_test_kit(connection)
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def _drop(self) -> None:
        self._administer("drop database if exists {} with (force)")

    def _administer(self, statement: LiteralString) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self._name)))
