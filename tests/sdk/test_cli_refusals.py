"""What the command line refuses: each time pgwf says so by its name, with a code that scripts can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.sdk.test_cli_commands import Pgwf, pgwf

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pgwf"]

Conn = psycopg.Connection[Any]

LONG = "x" * 513
REFUSED: list[tuple[Sequence[str], int, str]] = [
    (["keys", "limit", "", "--active", "2"], 2, "Invalid value for 'KEY': found '', expected a name of 1 to 512 bytes"),
    (
        ["needs", "limit", "", "--active", "2"],
        2,
        "Invalid value for 'NEED': found '', expected a name of 1 to",
    ),
    (["needs", "pause", ""], 2, "Invalid value for 'NEED...': found '', expected a name of 1 to 512 bytes"),
    (["keys", "limit", LONG, "--active", "2"], 6, "key must have 1 to 512 bytes, not 513"),
    (["needs", "limit", LONG, "--active", "2"], 6, "need must have at most 512 bytes, not 513"),
    (["needs", "limit", "gpu"], 2, "give --active, --rate or both; or --none to lift the limits"),
    (["cancel", "nobody"], 4, "no run 'nobody'; `pgwf list id:nobo*` shows those that begin alike"),
    (["retry", "nobody"], 4, "no run 'nobody'; `pgwf list id:nobo*` shows those that begin alike"),
    (["worker", "drain", "nobody"], 4, "no worker 'nobody' has been heard of; `pgwf worker list` shows those"),
    (["show", "nobody"], 4, "no run 'nobody'; `pgwf list id:nobo*` shows those that begin alike"),
    (["dance"], 2, "No such command 'dance'."),
    (["list", "--dance"], 2, "No such option"),
    (["fork", "nobody"], 2, "Missing option '--before'"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSED, ids=[" ".join(one[0])[:40] for one in REFUSED])
def test_a_refusal_bears_the_name_of_pgwf_and_its_code(
    pgwf: Pgwf, arguments: Sequence[str], code: int, said: str
) -> None:
    refused = pgwf(*arguments)

    assert (refused.code, refused.out) == (code, "")
    assert refused.err.splitlines()[-1].startswith(f"pgwf: {said}")


def test_a_wrong_call_shows_the_usage_of_its_command(pgwf: Pgwf) -> None:
    usage, help_, *_ = pgwf("needs", "limit", "gpu").err.splitlines()

    assert usage == "Usage: pgwf needs limit [OPTIONS] NEED"
    assert help_ == "Try 'pgwf needs limit --help' for help."


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PGWF_DSN", "localhost", "PGWF_DSN: found 'localhost'; expected a PostgreSQL connection string"),
        ("PGWF_DSN", "mysql://ann:s3cret@h/d", "PGWF_DSN: found a text that is none; it is not shown"),
        ("PGWF_LISTEN_DSN", "localhost", "PGWF_LISTEN_DSN: found 'localhost'; expected a PostgreSQL connection string"),
    ],
)
def test_a_text_that_is_no_connection_string_is_named_by_where_it_stands(
    pgwf: Pgwf, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, said: str
) -> None:
    monkeypatch.setenv(variable, text)

    refused = pgwf("list")

    assert refused.code == 2
    assert refused.err.startswith(f"pgwf: {said}")
    assert "s3cret" not in refused.err


def test_the_option_is_named_when_it_is_what_is_wrong(pgwf: Pgwf) -> None:
    for command in (["list"], ["migrate", "--check"]):
        refused = pgwf(*command, "--dsn", "localhost")

        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith("pgwf: --dsn: found 'localhost'; expected a PostgreSQL connection string")


def test_an_error_of_the_database_is_shown_with_what_the_database_proposes(pgwf: Pgwf, db: Conn) -> None:
    db.execute(
        sql.SQL("alter database {} set default_transaction_isolation = 'repeatable read'").format(
            sql.Identifier(db.info.dbname)
        )
    )

    refused = pgwf("needs", "pause", "gpu")

    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "pgwf: database: pgwf needs READ COMMITTED, this transaction is REPEATABLE READ; make this call in a"
        " transaction of its own, and see default_transaction_isolation of the role and the database; submit_job and"
        " the views work at any level (SQLSTATE WF020)\n"
    )


def test_a_connection_that_is_refused_is_told_with_what_the_database_proposes(pgwf: Pgwf, db: Conn, dsn: str) -> None:
    name = db.info.dbname
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as other:
        # As a server marks one whose removal it could not end.
        other.execute("update pg_database set datconnlimit = -2 where datname = %s", [name])
        refused = pgwf("list")
        other.execute("update pg_database set datconnlimit = -1 where datname = %s", [name])

    assert (refused.code, refused.out) == (1, "")
    assert (
        f'cannot connect to invalid database "{name}"; use DROP DATABASE to drop invalid databases; check --dsn'
        in refused.err
    )
