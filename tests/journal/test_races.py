"""Two sessions, both orders: who opens a journal, appends to it, or numbers lines of code, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.support import Session

ends = pytest.mark.parametrize("end", ["commit", "rollback"])
OPEN: Any = "select pgwf_journal.open('order-1')"
APPEND: Any = 'select pgwf_journal.append(\'order-1\', %s, \'[{"name": "charge"}, {"name": "ship"}]\')'
NUMBERS: Any = "select line, code from pgwf_journal.code_numbers('build', %s, %s) order by line"


def numbered(*lines: int) -> list[Any]:
    return [["shop.py"] * len(lines), list(lines)]


@ends
def test_of_two_that_open_one_journal_the_second_waits_and_finds_it(
    db: psycopg.Connection[Any], two_sessions: tuple[Session, Session], end: Any
) -> None:
    first, second = two_sessions
    first.run("begin")
    ((n,),) = first.run(OPEN)

    opening = second.start_blocked(OPEN)
    first.run(end)

    ((found,),) = opening.result(timeout=20)
    assert (found == n) == (end == "commit")
    assert db.execute("select n from pgwf_journal.journal").fetchall() == [(found,)]


@ends
def test_of_two_that_append_without_an_expectation_the_second_goes_behind_the_first(
    db: psycopg.Connection[Any], two_sessions: tuple[Session, Session], end: Any
) -> None:
    db.execute(OPEN)
    first, second = two_sessions
    first.run("begin")
    assert first.run(APPEND, [None]) == [(2,)]

    appending = second.start_blocked(APPEND, [None])
    first.run(end)

    head = 4 if end == "commit" else 2
    assert outcome(appending) == [(head,)]
    assert db.execute("select seq from pgwf_journal.entry order by seq").fetchall() == [(i + 1,) for i in range(head)]


@ends
def test_of_two_that_append_behind_the_same_entry_the_second_waits_and_is_refused(
    db: psycopg.Connection[Any], two_sessions: tuple[Session, Session], end: Any
) -> None:
    db.execute(OPEN)
    first, second = two_sessions
    first.run("begin")
    assert first.run(APPEND, [0]) == [(2,)]

    appending = second.start_blocked(APPEND, [0])
    first.run(end)

    assert outcome(appending) == ("WJ001" if end == "commit" else [(2,)])


def test_two_that_number_the_same_lines_in_opposite_orders_do_not_deadlock(session: Callable[[], Session]) -> None:
    """Somebody else holds up the one while it has numbered some of its lines, and the other comes in between."""
    holder, first, second = (session() for _ in range(3))
    holder.run("begin")
    holder.run(NUMBERS, numbered(2))

    numbering = []
    for racer, lines in ((first, (1, 2, 3)), (second, (3, 2, 1))):
        numbering.append(racer.start_blocked(NUMBERS, numbered(*lines)))
    holder.run("rollback")

    one, other = (outcome(call) for call in numbering)
    assert one == other
    assert [row[0] for row in one if isinstance(row, tuple)] == [1, 2, 3]
