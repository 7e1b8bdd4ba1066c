"""Installing the schemas, the roles, and what holds of every function."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgwf_sql
from tests.pgwf.leasing import Leasing, refused, run_psql
from tests.support import Session

ROOT = Path(__file__).resolve().parents[2]
SQL = ROOT / "sql"
ROLES = {"pgwf_owner", "pgwf_worker", "pgwf_client", "pgwf_reader", "pgwf_console"}
FUNCTIONS = """
select p.proname as name, p.provolatile as volatility, p.proconfig as settings, p.proargnames as arguments,
  p.oid::regprocedure::text as signature, l.lanname as language
from pg_proc as p
join pg_language as l on l.oid = p.prolang
where p.pronamespace = 'pgwf'::regnamespace
order by 1
"""


def dump(dsn: str) -> set[tuple[Any, ...]]:
    """Everything in the catalog that an installation makes, as comparable rows."""
    with psycopg.connect(dsn) as conn:
        return set(
            conn.execute(
                "select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)) from pg_proc as p"
                " where p.pronamespace::regnamespace::text like 'pgwf%'"
                " union all"
                " select 'column', a.attrelid::regclass::text || '.' || a.attname, format_type(a.atttypid, a.atttypmod)"
                " from pg_attribute as a join pg_class as c on c.oid = a.attrelid"
                " where c.relnamespace::regnamespace::text like 'pgwf%' and a.attnum > 0 and not a.attisdropped"
                " union all"
                " select 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)"
                " from pg_constraint where connamespace::regnamespace::text like 'pgwf%'"
                " union all"
                " select 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index as i"
                " join pg_class as c on c.oid = i.indrelid where c.relnamespace::regnamespace::text like 'pgwf%'"
                " union all"
                " select 'view', viewname, definition from pg_views where schemaname like 'pgwf%'"
            ).fetchall()
        )


def test_the_install_script_of_psql_names_every_file_of_the_package_in_order() -> None:
    named = re.findall(r"^\\ir pgwf_sql/(\S+)$", (SQL / "install.sql").read_text(), re.M)

    assert named == re.findall(r"^-- (pgwf\S*/\S+\.sql)$", pgwf_sql.script(), re.M)


def test_the_roles_script_of_psql_names_every_file_of_roles() -> None:
    named = re.findall(r"^\\ir pgwf_sql/(\S+)$", (SQL / "roles.sql").read_text(), re.M)

    assert named == re.findall(r"^-- (pgwf\S*/\S+\.sql)$", pgwf_sql.roles(), re.M)


def test_psql_and_python_install_the_same_schema(own_database: str, empty_database: str) -> None:
    run_psql(empty_database, SQL / "install.sql")

    assert dump(empty_database) == dump(own_database)


def test_psql_shows_no_results_of_an_installation_whether_or_not_there_is_one(empty_database: str) -> None:
    assert [run_psql(empty_database, SQL / "install.sql") for _ in range(2)] == ["", ""]


def test_installing_again_changes_no_setting_and_loses_nothing(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        pgwf = Leasing(conn)
        pgwf.value("set_crash_concern_threshold", threshold=17)
        conn.execute("select pgwf.set_trace(false), pgwf.set_notify(true)")
        pgwf.submit("a")
        pgwf.submit("live", "other")
        pgwf.complete(pgwf.take())
        before = dump(own_database)

        pgwf_sql.install(conn)

        assert dump(own_database) == before
        assert pgwf.rows("select count(*) as count from pgwf.setting") == [{"count": 1}]
        assert pgwf.value("crash_concern_threshold") == 17
        assert (pgwf.value("is_trace_enabled"), pgwf.value("is_notify_enabled")) == (False, True)
        assert (pgwf.status("a"), pgwf.status("live")) == ("completed", "READY")
        assert conn.execute("show search_path").fetchone() == ('"$user", public',)


def test_installing_again_removes_functions_of_an_older_version_and_no_other(own_database: str) -> None:
    before = dump(own_database)
    with psycopg.connect(own_database) as conn:
        conn.execute("create function pgwf._requeue(p_n bigint) returns void language sql as ''")
        conn.execute("create function pgwf_sdk.forgotten() returns void language sql as ''")

    with psycopg.connect(own_database) as conn:
        conn.execute("select txid_current()")
        pgwf_sql.install(conn)

    assert dump(own_database) == before


def test_two_installers_at_once_both_succeed(empty_database: str) -> None:
    errors: list[BaseException] = []

    def install() -> None:
        try:
            with psycopg.connect(empty_database) as conn:
                pgwf_sql.install(conn)
        except BaseException as error:  # noqa: BLE001  reported by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=install) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    with psycopg.connect(empty_database) as conn:
        assert pgwf_sql.schema_version(conn) == pgwf_sql.SCHEMA_VERSION


LOCKED = """
select l.relation::regclass::text, l.mode
from pg_locks as l
join pg_class as c on c.oid = l.relation
where l.pid = pg_backend_pid()
  and c.relnamespace::regnamespace::text like 'pgwf%'
  and c.relkind in ('r', 'p')
  and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


def test_installing_again_locks_no_table_that_workers_write(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        conn.execute(pgwf_sql.roles().encode())
        conn.execute("select pgwf_sdk.add_partitions()")
        with conn.transaction():
            conn.execute(pgwf_sql.script().encode())
            conn.execute(pgwf_sql.roles().encode())

            assert conn.execute(LOCKED).fetchall() == []


def test_an_installation_that_waits_for_a_view_keeps_nobody_from_the_view_beneath(own_database: str) -> None:
    with Session(own_database) as reader, Session(own_database) as installer:
        reader.run("begin")
        reader.run("alter view pgwf.jobs reset (security_barrier)")
        installed = installer.start(pgwf_sql.script())
        installer.wait_blocked()

        assert reader.run("select count(*) from pgwf.jobs_with_status") == [(0,)]
        reader.run("commit")
        assert installed.exception(timeout=20) is None


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_installation_with_a_snapshot_of_before_is_refused(own_database: str, level: str) -> None:
    before = dump(own_database)
    with psycopg.connect(own_database) as conn:
        conn.execute(f"set transaction isolation level {level}".encode())
        with refused("WF020", f"this transaction is {level.upper()}"):
            pgwf_sql.install(conn)

    assert dump(own_database) == before


def test_the_schema_version_is_known_only_after_installation(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert pgwf_sql.schema_version(conn) is None
        pgwf_sql.install(conn)
        assert pgwf_sql.schema_version(conn) == pgwf_sql.SCHEMA_VERSION == 2


VERSION_1 = """
delete from pgwf.schema_version;
insert into pgwf.schema_version (version) values (1);
alter table pgwf.held drop constraint held_pkey, add constraint held_pkey primary key (singleton_key);
drop table pgwf.key_setting, pgwf.bucket;
create table pgwf.bucket (need text, gen bigint generated always as identity, tokens float8, filled_at timestamptz);
drop function pgwf._complete, pgwf._free_keys;
create function pgwf._complete(p_job_ids text[], p_lease_ids text[], p_worker_id text, p_now timestamptz)
returns table (ord int, status text) language plpgsql as 'begin end';
create function pgwf._free_keys(p_keys text[]) returns void language plpgsql as 'begin end';
"""


def test_a_database_of_version_1_is_upgraded_with_its_leases_in_place(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        pgwf = Leasing(conn)
        for job_id in "abc":
            pgwf.submit(job_id, singleton_key="K")
        lease = pgwf.take()
        assert pgwf.get_work(limit=5) == []
        conn.execute(VERSION_1)

        with conn.transaction():
            pgwf_sql.install(conn)

        assert pgwf_sql.schema_version(conn) == pgwf_sql.SCHEMA_VERSION
        assert pgwf.broken() == []
        pgwf.limit_key(max_active=2)
        assert [row["job_id"] for row in pgwf.get_work(limit=5)] == ["b"]
        assert pgwf.complete(lease)
        assert [row["job_id"] for row in pgwf.get_work(limit=5)] == ["c"]
        assert pgwf.broken() == []


def test_an_index_of_an_older_installation_is_kept_like_a_new_one(own_database: str) -> None:
    options = "select reloptions from pg_class where oid = 'pgwf.ready_lane'::regclass"
    with psycopg.connect(own_database, autocommit=True) as conn:
        new = conn.execute(options).fetchone()
        conn.execute("alter index pgwf.ready_lane reset (fillfactor)")
        older = conn.execute(options).fetchone()

        pgwf_sql.install(conn)

        assert conn.execute(options).fetchone() == new != older


def test_a_newer_schema_is_left_alone(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as conn:
        conn.execute("insert into pgwf.schema_version (version) values (99)")

        with pytest.raises(pgwf_sql.SchemaVersionError, match="found version 99"):
            pgwf_sql.install(conn)
        with refused("WF090", "schema pgwf is at version 99"):
            conn.execute(pgwf_sql.script().encode())


def test_installation_needs_no_superuser(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as admin:
        name = conninfo_to_dict(empty_database)["dbname"]
        admin.execute(f"create role plain_{name} login password 'plain'")
        admin.execute(f"grant create on database {name} to plain_{name}")
        try:
            with psycopg.connect(make_conninfo(empty_database, user=f"plain_{name}", password="plain")) as conn:
                pgwf_sql.install(conn)
                assert Leasing(conn).submit("a")["job_id"] == "a"
        finally:
            admin.execute(f"drop owned by plain_{name}")
            admin.execute(f"drop role plain_{name}")


def test_every_entry_point_pins_its_search_path_and_helpers_have_an_underscore(own_database: str) -> None:
    with psycopg.connect(own_database) as conn:
        rows = Leasing(conn).rows(FUNCTIONS)

    unpinned = [
        row["signature"]
        for row in rows
        if not row["name"].startswith("_") and "search_path=pg_catalog, pg_temp" not in (row["settings"] or [])
    ]
    assert unpinned == []


def test_entry_points_that_reach_hot_tables_pin_their_plans(own_database: str) -> None:
    """A helper inherits the pins of whoever calls it; SQL functions are for one-off looks and keep no plan."""
    with psycopg.connect(own_database) as conn:
        rows = Leasing(conn).rows(
            "select p.proname as name, p.proconfig as settings, p.prosrc as body from pg_proc as p"
            " join pg_language as l on l.oid = p.prolang"
            " where p.pronamespace = 'pgwf'::regnamespace and l.lanname = 'plpgsql'"
        )
    bodies = {row["name"]: row["body"] for row in rows}

    def reaches_hot_tables(name: str, seen: frozenset[str] = frozenset()) -> bool:
        body = bodies.get(name, "")
        return bool(
            re.search(r"(from|join|update|into) pgwf\.(job|ready|lease|timer|parked|held|edge)\b", body)
        ) or any(
            reaches_hot_tables(called, seen | {name})
            for called in set(re.findall(r"pgwf\.(_\w+)\(", body)) - seen - {name}
        )

    pins = {"enable_seqscan=off", "enable_bitmapscan=off", "plan_cache_mode=force_generic_plan", "jit=off"}
    unpinned = {
        row["name"]
        for row in rows
        if not row["name"].startswith("_")
        and reaches_hot_tables(row["name"])
        and not pins <= {setting.replace(" ", "") for setting in row["settings"] or []}
    }
    # These run rarely and may read tables whole.
    assert unpinned == {"set_crash_concern_threshold", "limit_need", "retain"}


def test_every_parameter_is_named_and_prefixed(own_database: str) -> None:
    with psycopg.connect(own_database) as conn:
        rows = Leasing(conn).rows(
            "select p.oid::regprocedure::text as signature, name from pg_proc as p,"
            " unnest(p.proargnames, p.proargmodes) as a(name, mode)"
            " where p.pronamespace = 'pgwf'::regnamespace and coalesce(mode, 'i') in ('i', 'b', 'v')"
        )

    assert {row["name"] for row in rows if not row["name"].startswith("p_")} == {"enabled"}


# As the specification gives them, of which callers may make use by position.
SPECIFIED = {
    "submit_job": "job_id, worker_id, next_need, wait_for, singleton_key, available_at, expires_at",
    "get_work": "worker_id, worker_caps, lease_seconds, limit_jobs",
    "extend_lease": "job_id, lease_id, worker_id, additional_seconds",
    "reschedule_job": "job_id, lease_id, worker_id, next_need, wait_for, singleton_key, available_at",
    "reschedule_unheld_job": "job_id, worker_id, next_need, wait_for, singleton_key, available_at",
    "complete_job": "job_id, lease_id, worker_id",
    "complete_unheld_job": "job_id, worker_id",
    "cancel_job": "job_id, worker_id, reason",
    "archive_cancelled_jobs": "worker_id, limit",
    "clear_crash_concern": "job_id, worker_id, reason",
    "set_crash_concern_threshold": "threshold",
}


def test_arguments_keep_their_places_and_others_come_behind_them(db: psycopg.Connection[Any]) -> None:
    rows = Leasing(db).rows(
        "select proname, proargnames[1:pronargs] as names, pronargs - pronargdefaults as required from pg_proc"
        " where pronamespace = 'pgwf'::regnamespace and proname = any (%s)",
        [list(SPECIFIED)],
    )

    assert len(rows) == len(SPECIFIED)
    for row in rows:
        specified = [f"p_{name}" for name in SPECIFIED[row["proname"]].split(", ")]
        assert row["names"][: len(specified)] == specified
        assert row["required"] <= len(specified), row


def test_every_function_named_without_underscore_is_in_the_reference(own_database: str) -> None:
    text = (ROOT / "docs" / "sql-reference.md").read_text()
    with psycopg.connect(own_database) as conn:
        names = {row["name"] for row in Leasing(conn).rows(FUNCTIONS) if not row["name"].startswith("_")}

    assert {name for name in names if f"`{name}(" not in text} == set()


def test_every_sqlstate_raised_is_listed_and_every_listed_one_is_raised() -> None:
    bodies = "\n".join(path.read_text() for path in sorted((SQL / "pgwf_sql" / "pgwf").glob("*.sql")))
    header, _, code = bodies.partition("do $$")
    listed = set(re.findall(r"^--   (WF\d{3})  ", header, re.M))

    assert listed == set(re.findall(r"'(WF\d{3})'", code))
    reference = (ROOT / "docs" / "sql-reference.md").read_text()
    assert listed == set(re.findall(r"^\| `(WF\d{3})` \|", reference, re.M))


@pytest.fixture
def roles(own_database: str) -> str:
    """The connection string of a database in which the roles are installed, twice."""
    with psycopg.connect(own_database, autocommit=True) as conn:
        for _ in range(2):
            with conn.transaction():
                conn.execute(pgwf_sql.roles().encode())
    return own_database


def as_role(dsn: str, role: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, options=f"-c role={role}")


def test_each_role_can_do_its_part_without_rights_on_any_table(roles: str) -> None:
    with (
        as_role(roles, "pgwf_client") as client,
        as_role(roles, "pgwf_worker") as worker,
        as_role(roles, "pgwf_reader") as reader,
        as_role(roles, "pgwf_console") as console,
    ):
        Leasing(client).submit("a", wait_for=[])
        Leasing(client).submit("b", wait_for=["a"], singleton_key="K")
        lease = Leasing(worker).take()
        Leasing(worker).extend(lease)
        assert Leasing(reader).status("b") == "PENDING_JOBS"
        assert len(Leasing(reader).rows("select * from pgwf.jobs_friendly_status")) == 2
        assert len(Leasing(reader).rows("select * from pgwf.jobs_trace")) == 4
        Leasing(worker).complete(lease)
        assert Leasing(reader).archived("a")["outcome"] == "completed"
        Leasing(console).call("pause_need", need="python", worker_id="ops")
        Leasing(console).value("set_crash_concern_threshold", threshold=3)
        assert Leasing(console).broken() == []


def test_a_client_cannot_take_work_and_a_worker_cannot_operate(roles: str) -> None:
    with as_role(roles, "pgwf_client") as client, pytest.raises(psycopg.errors.InsufficientPrivilege):
        Leasing(client).get_work()
    with as_role(roles, "pgwf_worker") as worker, pytest.raises(psycopg.errors.InsufficientPrivilege):
        Leasing(worker).call("pause_need", need="python", worker_id="w")
