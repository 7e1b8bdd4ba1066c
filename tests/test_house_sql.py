"""The house rules for SQL that a machine can keep, over the files and over an installed schema."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import pgwf_sql

if TYPE_CHECKING:
    from tests.support import Databases

SQL = Path(__file__).resolve().parents[1] / "sql"
PACKAGE = SQL / "pgwf_sql"
SCHEMAS = ("pgwf", "pgwf_journal", "pgwf_sdk")
QUERIES = sorted(path.stem for path in (PACKAGE / "queries").glob("*.sql"))
FUNCTION_LINES_MAX = 150
# From the header comment (group 1, may be absent) to the end of the body.
FUNCTION = re.compile(
    r"((?:^--[^\n]*\n)*)^create (?:or replace )?(?:function|procedure) (\w+)\.(\w+)\s*\((.*?)\bas \$(\w*)\$(.*?)\$\5\$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
PARAMETER = re.compile(r"%\((\w+)\)[sb]")


def functions() -> list[tuple[str, str, str, int]]:
    """Return name, header comment, clauses before the body and length in lines of each function in the sources."""
    found: list[tuple[str, str, str, int]] = []
    for schema in SCHEMAS:
        for path in sorted((PACKAGE / schema).glob("*.sql")):
            for match in FUNCTION.finditer(path.read_text(encoding="utf-8")):
                header, in_schema, name, clauses, _, _ = match.groups()
                length = match.group().removeprefix(header).count("\n") + 1
                found.append((f"{in_schema}.{name}", header, clauses, length))
    return found


def test_what_is_installed_is_ascii_so_that_databases_of_any_encoding_take_it() -> None:
    assert pgwf_sql.script().isascii()
    assert pgwf_sql.roles().isascii()


@pytest.mark.parametrize("name", QUERIES)
def test_query_is_one_statement_that_the_schema_accepts(name: str, databases: Databases) -> None:
    text = pgwf_sql.query(name).rstrip("; \n")
    parameters = list(dict.fromkeys(PARAMETER.findall(text)))
    numbered = PARAMETER.sub(lambda match: f"${parameters.index(match.group(1)) + 1}", text)

    assert ";" not in text, "one statement"
    assert "%" not in numbered.replace("%%", ""), "only %(name)s and %(name)b placeholders"
    databases.shared.execute(f"prepare checked as {numbered.replace('%%', '%')}; deallocate checked".encode())


def test_entry_points_pin_the_search_path(db: psycopg.Connection[Any]) -> None:
    unpinned = db.execute(
        "select pronamespace::regnamespace::text || '.' || proname from pg_proc"
        " where pronamespace::regnamespace::text = any (%s) and proname not like '\\_%%'"
        " and not coalesce(proconfig, '{}') @> array['search_path=pg_catalog, pg_temp'] order by 1",
        [list(SCHEMAS)],
    ).fetchall()

    # This one goes without, and has a test of its own that no path leads it astray.
    assert unpinned == [("pgwf_sdk.append",)]


def test_calls_that_workers_repeat_without_what_is_held_wait_for_it_100_ms(db: psycopg.Connection[Any]) -> None:
    rows = db.execute(
        "select pronamespace::regnamespace::text || '.' || proname from pg_proc"
        " where pronamespace::regnamespace::text = any (%s) and proconfig @> array['lock_timeout=100ms']",
        [list(SCHEMAS)],
    ).fetchall()

    assert {name for (name,) in rows} == {
        "pgwf.complete_jobs",
        "pgwf.extend_leases",
        "pgwf.reschedule_jobs",
        "pgwf_sdk.advance",
    }


def test_entry_points_state_volatility_and_have_a_header_comment() -> None:
    public = [each for each in functions() if not each[0].split(".")[1].startswith("_")]

    assert public
    assert not [name for name, _, clauses, _ in public if not re.search(r"\b(volatile|stable|immutable)\b", clauses)]
    assert not [name for name, header, _, _ in public if not header]


def test_functions_are_short_enough_to_read() -> None:
    assert not {name: length for name, _, _, length in functions() if length > FUNCTION_LINES_MAX}


def test_every_function_of_the_schemas_was_looked_at(db: psycopg.Connection[Any]) -> None:
    """Guards the pattern the tests above find functions with."""
    installed = db.execute(
        "select distinct pronamespace::regnamespace::text || '.' || proname from pg_proc"
        " where pronamespace::regnamespace::text = any (%s)",
        [list(SCHEMAS)],
    ).fetchall()

    assert {name for (name,) in installed} == {name for name, _, _, _ in functions()}


@pytest.mark.parametrize(("schema", "letter"), [("pgwf", "F"), ("pgwf_journal", "J"), ("pgwf_sdk", "S")])
def test_error_codes_are_listed_once_and_mapped_once(schema: str, letter: str) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((PACKAGE / schema).glob("*.sql")))
    listed = re.findall(rf"^--   (W{letter}\d{{3}})  ", text, re.MULTILINE)
    raised = set(re.findall(rf"'(W{letter}\d{{3}})'", text))
    mapped: dict[str, type[Exception]] = importlib.import_module(f"{schema}._errors").ERROR_BY_SQLSTATE

    assert sorted(listed) == sorted(set(listed)), "listed once"
    assert raised == set(listed)
    assert {code for code in mapped if code.startswith(f"W{letter}")} == set(listed)


def test_install_sql_includes_the_files_of_the_script_in_its_order() -> None:
    included = re.findall(r"^\\ir pgwf_sql/(\S+)$", (SQL / "install.sql").read_text(encoding="utf-8"), re.MULTILINE)

    assert included == re.findall(r"^-- (pgwf\w*/\w+\.sql)$", pgwf_sql.script(), re.MULTILINE)
