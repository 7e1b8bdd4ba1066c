"""Whatever a caller passes, a function does its part, or refuses with an error that its header names.

Every function that callers may use is tried with one argument after the other replaced by what should not come.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.sql.hostile import CASES, TOKENS, USUAL, WORLD, filled, hostile
from tests.test_house_sql import SCHEMAS, functions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Databases

Conn = psycopg.Connection[Any]

MIXTURES = 40


@dataclass(frozen=True, slots=True)
class Function:
    """A function as callers see it: its arguments with their types, and the SQLSTATEs its header names."""

    name: str
    arguments: dict[str, str]
    errors: frozenset[str]


def documented() -> dict[str, frozenset[str]]:
    """The SQLSTATEs of each function's header comment; of all headers, where a name is overloaded."""
    found: dict[str, set[str]] = {}
    for name, header, _, _ in functions():
        found.setdefault(name, set()).update(re.findall(r"\b(W[FJS]\d{3}|23502|23505|42501)\b", header))
    return {name: frozenset(codes) for name, codes in found.items()}


def public_functions(conn: Conn) -> list[Function]:
    errors = documented()
    rows = conn.execute(
        """
        select p.pronamespace::regnamespace || '.' || p.proname, p.proargnames[:p.pronargs],
          array(select format_type(t.type, null) from unnest(p.proargtypes) with ordinality t(type, ord) order by t.ord)
        from pg_proc p
        where p.pronamespace::regnamespace::text = any (%s) and p.proname not like '\\_%%'
        order by 1
        """,
        [list(SCHEMAS)],
    ).fetchall()
    return [Function(name, dict(zip(names or [], types, strict=True)), errors[name]) for name, names, types in rows]


def brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)})"


@pytest.fixture(scope="module")
def world(databases: Databases) -> Iterator[Conn]:
    """A database with a little of everything; whatever is called in it is undone."""
    with databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for statement in WORLD:
            conn.execute(statement.encode())
        conn.execute("set statement_timeout = '30s'")
        yield conn


def call(conn: Conn, function: Function, arguments: dict[str, Any]) -> str | None:
    """The SQLSTATE of a call in a transaction that is undone; an invariant that it broke is an error of its own."""
    statement = sql.SQL("select count(*) from {}({})").format(
        sql.Identifier(*function.name.split(".")),
        sql.SQL(", ").join(
            sql.SQL("{} => {}::" + function.arguments[name]).format(sql.Identifier(name), sql.Placeholder(name))
            for name in arguments
        ),
    )
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                conn.execute(statement, arguments)
        except psycopg.Error as error:
            return error.sqlstate or type(error).__name__
        broken = conn.execute("select * from pgwf.check()").fetchall()
    return f"broken: {broken}" if broken else None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_hostile_argument_is_accepted_or_refused_with_an_error_that_the_header_names(
    world: Conn, schema: str
) -> None:
    tokens: dict[str, str] = dict(world.execute(TOKENS).fetchall())
    surprises: list[str] = []
    for function in public_functions(world):
        if not function.name.startswith(f"{schema}."):
            continue
        assert function.name in CASES, f"{function.name} has no cases: add its arguments to tests/sql/hostile.py"
        for turn, case in enumerate(CASES[function.name]):
            if not case.keys() <= function.arguments.keys():
                continue
            usual = {**USUAL, **case}
            base = {name: filled(usual[name], tokens) for name in function.arguments if name in usual}
            state = call(world, function, base)
            if state is not None and state not in function.errors:
                surprises.append(f"{function.name} as usual: {state}")
            for name, kind in function.arguments.items():
                for value in hostile(kind, is_first=turn == 0):
                    state = call(world, function, {**base, name: value})
                    if state is not None and state not in function.errors:
                        surprises.append(f"{function.name} {name} = {brief(value)}: {state}")
    assert not surprises, "\n".join(surprises)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_so_are_several_hostile_arguments_at_once(world: Conn, schema: str) -> None:
    tokens: dict[str, str] = dict(world.execute(TOKENS).fetchall())
    surprises: list[str] = []
    for function in public_functions(world):
        if not function.name.startswith(f"{schema}."):
            continue
        chance = random.Random(function.name)
        values = {name: list(hostile(kind, is_first=False)) for name, kind in function.arguments.items()}
        for case in CASES[function.name]:
            if not case.keys() <= function.arguments.keys():
                continue
            usual = {**USUAL, **case}
            base = {name: filled(usual[name], tokens) for name in function.arguments if name in usual}
            for _ in range(MIXTURES):
                changed = chance.sample(sorted(values), chance.randint(0, len(values)))
                arguments = {**base, **{name: chance.choice(values[name]) for name in changed}}
                state = call(world, function, arguments)
                if state is not None and state not in function.errors:
                    told = ", ".join(f"{name} = {brief(arguments[name])}" for name in changed)
                    surprises.append(f"{function.name} {told}: {state}")
    assert not surprises, "\n".join(surprises)
