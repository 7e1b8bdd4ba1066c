"""Attributes in SQL: set at the start and by entries, found by lists through an index, taken over by retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, NewEntry, Phase
from pgwf_sdk import ops
from tests.sdk.sql.hand import Hand, rows, start, value

if TYPE_CHECKING:
    from collections.abc import Sequence

Conn = psycopg.Connection[Any]


def attribute(name: str, payload: bytes | None, occurrence: int = 1) -> NewEntry:
    encoding = 0 if payload is None else 1
    return NewEntry(occurrence, Kind.ATTRIBUTE, Phase.COMPLETED, "", name, occurrence, payload, encoding)


def attributes(conn: Conn, run_id: str = "order-1") -> Any:
    return value(conn, "select attributes from pgwf_sdk.runs where run_id = %s", run_id)


def found(conn: Conn, *words: str) -> list[str]:
    return [run.run_id for run in ops.list_runs(conn, ops.parse_filter(words)).runs]


def test_attributes_of_a_start_are_those_of_the_run_it_created(db: Conn) -> None:
    start(db, attributes={"customer": "ann", "cents": 1200, "vip": True, "nothing": None})

    assert start(db, attributes={"customer": "bob"})[2] is False
    assert attributes(db) == {"customer": "ann", "cents": 1200, "vip": True}


@pytest.mark.parametrize(
    "given",
    [{"": 1}, {"x" * 201: 1}, {"a": [1]}, {"a": {}}, {"a": "x" * 1025}, ["a"], "a"],
    ids=lambda given: str(given)[:20],
)
def test_attributes_that_no_list_could_find_are_refused(db: Conn, given: Any) -> None:
    with pytest.raises(psycopg.errors.Error, match=r"attribute") as refused:
        start(db, attributes=given)

    assert refused.value.sqlstate == "WS004"
    assert rows(db, "select from pgwf_sdk.run") == []


def test_the_last_entry_of_an_attribute_counts_and_one_without_value_takes_it_away(db: Conn, hand: Hand) -> None:
    start(db, attributes={"phase": "new", "customer": "ann"})
    held = hand.take()

    first = [attribute("phase", b'"paid"'), attribute("phase", b'"sent"', 2), attribute("customer", None)]
    assert hand.say(held.item("keep", *first)) == ["ok"]
    assert attributes(db) == {"phase": "sent"}

    assert hand.say(held.item("keep", attribute("phase", None, 3), attribute("phase", b"7", 4))) == ["ok"]
    assert attributes(db) == {"phase": 7}


def test_an_item_that_is_refused_sets_nothing(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()

    assert hand.say(held.item("keep", attribute("phase", b"1"), expected_seq=5)) == ["conflict"]

    assert attributes(db) == {}


def test_a_retried_run_is_found_by_the_attributes_of_the_first(db: Conn, hand: Hand) -> None:
    start(db, attributes={"customer": "ann"})
    held = hand.take()
    assert hand.say(held.end("fail", b'{"type":"x","message":"y"}', entries=[attribute("phase", b"1")])) == ["ok"]

    rows(db, "select pgwf_sdk.retry_run('order-1', 'ann')")

    assert found(db, "attr:customer=ann", "attr:phase=1") == ["order-1~2", "order-1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["attr:customer=ann"], ["c", "a"]),
        (["attr:customer=ann", "attr:cents=1200"], ["a"]),
        (["attr:cents=1200", "status:ready"], ["b", "a"]),
        (["attr:cents=1200", "status:completed"], []),
        (["attr:cents=1200", "workflow:refund"], []),
        (["attr:vip=true"], ["b"]),
        (["attr:note=a=b"], ["c"]),
        (["attr:customer=Ann"], []),
        (["attr:nothing="], []),
    ],
)
def test_a_list_finds_runs_by_all_their_attributes_newest_first(
    db: Conn, words: Sequence[str], expected: list[str]
) -> None:
    start(db, "a", attributes={"customer": "ann", "cents": 1200})
    start(db, "b", attributes={"customer": "bob", "cents": "1200", "vip": True})
    start(db, "c", attributes={"customer": "ann", "note": "a=b"})

    assert found(db, *words) == expected
