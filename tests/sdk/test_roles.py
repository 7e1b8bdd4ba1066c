"""The roles: each can do its part without a right on any table, and nothing else."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgwf_sql
from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sdk.cli._app import run_command
from tests.sdk.worker.conftest import Running
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = timedelta(seconds=20)
ROLES = ("pgwf_worker", "pgwf_client", "pgwf_reader", "pgwf_console")
READERS = {"pgwf_reader", "pgwf_console"}
SCHEMAS = ["pgwf", "pgwf_journal", "pgwf_sdk"]
DENIED = "42501"
SEQUENCE = ("sequence", ("usage", "update"))
TABLE = ("table", ("select", "insert", "update", "delete", "truncate"))

Conn = psycopg.Connection[Any]


@step
def double(x: int) -> int:
    return 2 * x


@workflow
def leaf(ctx: Context, x: int) -> int:
    return ctx.step(double, x)


@workflow
def everything(ctx: Context, x: int) -> int:
    ctx.sleep(timedelta(seconds=0))
    (doubled,) = ctx.map(leaf, [x])
    more = ctx.wait_signal("more", int)
    verdict = ctx.human("fine", {"total": doubled}, bool, need="human.review")
    return doubled + more if verdict.value else 0


SECRET = {"pgwf_sdk.token_key"}  # Who knows it can complete every promise.


class Roles:
    """The roles of one database, and the connections made in their names."""

    def __init__(self, database: str, closing: ExitStack) -> None:
        self._database = database
        self._closing = closing

    def dsn(self, role: str) -> str:
        return make_conninfo(self._database, options=f"-c role={role}")

    def connect(self, role: str) -> Conn:
        conn: Conn = psycopg.connect(self.dsn(role), autocommit=True)
        self._closing.callback(conn.close)
        return conn

    def client(self, role: str) -> Client:
        return self._closing.enter_context(Client(self.dsn(role)))


@pytest.fixture
def roles(db: Conn, database: str) -> Iterator[Roles]:
    for _ in range(2):
        with db.transaction():
            db.execute(pgwf_sql.roles().encode())
    with ExitStack() as closing:
        yield Roles(database, closing)


def test_a_worker_a_client_and_a_person_work_as_their_roles(roles: Roles) -> None:
    client, console = roles.client("pgwf_client"), roles.client("pgwf_console")
    running = Running(Worker(roles.client("pgwf_worker"), workflows=[everything, leaf], poll=timedelta(seconds=1)))
    try:
        run = client.start(everything(20), run_id="order-1")
        run.signal("more", 2)
        (task,) = wait_until(console.human.list, "the question is asked")
        client.human.decide(task.task_id, True, by="ann")

        assert run.result(SOON) == 42
        refused = client.start(everything(1), run_id="order-2")
        assert refused.cancel() in ("requested", "cancelled")
        assert console.terminate("order-2") in ("terminated", "cancelled")
    finally:
        running.stop()


def test_a_reader_sees_everything_and_changes_nothing(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    roles.client("pgwf_client").start(everything(20), run_id="order-1")
    reader = roles.client("pgwf_reader")
    monkeypatch.setenv("PGWF_DSN", roles.dsn("pgwf_reader"))

    assert [run.run_id for run in reader.list()] == ["order-1"]
    assert reader.get("order-1").status() == "ready"
    for command in ("list", "show order-1", "why order-1", "needs", "worker list", "human list"):
        assert (command, run_command(command.split())) == (command, 0)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.cancel("order-1")


def functions(db: Conn, *, public: bool) -> list[tuple[str, int]]:
    """Signatures with their number of arguments."""
    return db.execute(
        "select oid::regprocedure::text, pronargs::int from pg_proc"
        " where pronamespace::regnamespace::text = any (%s) and (proname like '\\_%%') <> %s order by 1",
        [SCHEMAS, public],
    ).fetchall()


@pytest.mark.parametrize("role", ROLES)
def test_a_call_is_refused_at_the_door_or_needs_no_right_on_what_is_behind_it(
    roles: Roles, db: Conn, role: str
) -> None:
    """With NULL arguments most calls are refused in the end; but by their own rules."""
    conn = roles.connect(role)
    for signature, arguments in functions(db, public=True):
        name, _, types = signature.rstrip(")").partition("(")
        nulls = ", ".join(f"null::{each}" for each in types.split(",")) if arguments else ""
        (may,) = db.execute("select has_function_privilege(%s, %s, 'execute')", [role, signature]).fetchone() or (None,)
        state = None
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(f"select {name}({nulls})".encode())
        except psycopg.Error as error:
            state = error.sqlstate

        assert (signature, state != DENIED) == (signature, may)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_writes_to_a_table_calls_a_helper_or_reads_what_it_may_not(roles: Roles, db: Conn, role: str) -> None:
    conn = roles.connect(role)
    relations = db.execute(
        "select oid::regclass::text, relkind::text, oid from pg_class"
        " where relnamespace::regnamespace::text = any (%s) and relkind in ('r', 'p', 'v', 'S')",
        [SCHEMAS],
    ).fetchall()

    rights: set[tuple[str, str]] = set()
    for name, kind, oid in relations:
        which, each = SEQUENCE if kind == "S" else TABLE
        for right in each:
            ask = f"select has_{which}_privilege(%s, %s::oid, %s)".encode()
            if db.execute(ask, [role, oid, right]).fetchone() == (True,):
                rights.add((name, right))
    readable = {(name, "select") for name, kind, _ in relations if kind != "S" and name not in SECRET}
    assert rights == (readable if role in READERS else set())
    helpers = {
        signature
        for signature, _ in functions(db, public=False)
        for (has,) in db.execute("select has_function_privilege(%s, %s, 'execute')", [role, signature])
        if has
    }
    assert helpers == {f"{schema}._now()" for schema in SCHEMAS}
    for schema in SCHEMAS:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(sql.SQL("create table {} ()").format(sql.Identifier(schema, "mine")))


def test_workers_make_partitions_that_belong_to_the_owner_and_readers_see(roles: Roles, db: Conn) -> None:
    db.execute("select setval('pgwf.pos', 7000000)")

    assert roles.connect("pgwf_worker").execute("select pgwf_sdk.add_partitions()").fetchone() == (2,)

    made = db.execute("select tableowner from pg_tables where tablename in ('entry_10000000', 'archive_10000000')")
    assert made.fetchall() == [("pgwf_owner",)] * 2
    assert roles.connect("pgwf_reader").execute("select from pgwf_journal.entry_10000000").fetchall() == []


def test_a_worker_without_the_right_to_make_partitions_says_so_once(
    db: Conn, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    db.execute("create role plain_worker")
    try:
        for schema in SCHEMAS:
            name = sql.Identifier(schema)
            db.execute(sql.SQL("grant usage on schema {} to plain_worker").format(name))
            db.execute(sql.SQL("grant all on all tables in schema {} to plain_worker").format(name))
            db.execute(sql.SQL("grant all on all sequences in schema {} to plain_worker").format(name))
        db.execute("select setval('pgwf.pos', 7000000)")
        with (
            caplog.at_level("INFO", "pgwf_sdk.worker"),
            Client(make_conninfo(database, options="-c role=plain_worker")) as client,
        ):
            running = Running(Worker(client, workflows=[leaf], poll=timedelta(seconds=1)))
            try:
                assert client.start(leaf(21)).result(SOON) == 42
                wait_until(lambda: "pgwf_sdk.add_partitions()" in caplog.text, "the worker has said so")
            finally:
                running.stop()
        assert caplog.text.count("has no right to make partitions ahead") == 1
    finally:
        db.execute("drop owned by plain_worker")
        db.execute("drop role plain_worker")


def test_roles_are_made_by_an_installer_that_is_no_superuser(db: Conn, databases: Any) -> None:
    db.execute("create role plain_installer createrole")
    try:
        for role in (*ROLES, "pgwf_owner"):  # Other databases of this server may have them already.
            if db.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone():
                db.execute(sql.SQL("grant {} to plain_installer with admin option").format(sql.Identifier(role)))
        with databases.fresh(template="template0") as dsn, psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(
                sql.SQL("grant create on database {} to plain_installer").format(sql.Identifier(admin.info.dbname))
            )
            with psycopg.connect(make_conninfo(dsn, options="-c role=plain_installer")) as conn:
                for _ in range(2):
                    pgwf_sql.install(conn)
                    conn.execute(pgwf_sql.roles().encode())
                    conn.commit()
            with psycopg.connect(make_conninfo(dsn, options="-c role=pgwf_client"), autocommit=True) as conn:
                assert conn.execute("select pgwf_sdk.start('checkout', '[]', 'order-1')").fetchone() == ("order-1",)
            admin.execute("drop owned by plain_installer")
    finally:
        db.execute("drop owned by plain_installer")
        db.execute("drop role plain_installer")
