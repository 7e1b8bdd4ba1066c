"""pgwf_sdk.append_entry: one entry of one run, with the answers and the locks of pgwf_sdk.advance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from pgwf_journal import Kind, NewEntry, Phase
from pgwf_sdk.worker._advance import entry_parameters
from pgwf_sql import query
from pgwf_sql.database import PreparedCall
from tests.sdk.sql.hand import Hand, Item, entry, journal, rows, start, value
from tests.sdk.sql.race import Call, advance, race
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.sdk.sql.conftest import MakeHand
    from tests.support import Clock, Session

    Sessions = tuple[Session, Session]

Conn = psycopg.Connection[Any]

APPEND = query("sdk_append_entry")
COLUMNS = "call, kind, phase, scope, name, occurrence, payload, encoding, lease_no, code"


@pytest.fixture
def patient(db: Conn) -> None:
    """The call waits for a lock as long as it takes."""
    for name in ("advance", "append_entry"):
        signature = value(db, f"select 'pgwf_sdk.{name}'::regproc::oid::regprocedure::text")
        db.execute(f"alter function {signature} reset lock_timeout".encode())


def append(item: Item) -> Call:
    return Call(APPEND, entry_parameters(item))


def say(db: Conn, item: Item) -> str:
    return str((db.execute(APPEND, entry_parameters(item)).fetchone() or ("",))[0])


def test_it_writes_what_advance_would_write(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    assert hand.say(held.item("keep", entry("charge", 1, payload=b"\x00\xff"))) == ["ok"]

    assert say(db, held.item("keep", entry("charge", 2, occurrence=2, payload=b"\x00\xff"))) == "ok"

    first, second = rows(db, f"select {COLUMNS} from pgwf_journal.entry where seq > 1 order by seq")
    assert [*second] == [2, *first[1:5], 2, *first[6:]]
    assert value(db, "select pgwf_journal._head(n) from pgwf_sdk.run") == 3


def test_attributes_and_promises_can_be_looked_for_as_after_advance(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    stage = NewEntry(1, Kind.ATTRIBUTE, Phase.COMPLETED, "", "stage", 1, b'"paid"', 1)
    promise = NewEntry(2, Kind.AWAKEABLE, Phase.OPENED, "", "paid", 1, b'{"token_hash":"00ff"}', 1)

    assert say(db, held.item("keep", stage)) == "ok"
    assert say(db, held.item("keep", stage)) == "conflict"
    assert say(db, held.item("keep", promise, expected_seq=held.head + 1)) == "ok"

    assert rows(db, "select name, value from pgwf_sdk.attribute") == [("stage", "paid")]
    assert rows(db, "select token_hash, key, state from pgwf_sdk.awakeable") == [
        (b"\x00\xff", "/awakeable:paid#1", "open")
    ]


def test_it_is_refused_where_advance_refuses(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    item = held.item("keep", entry())

    assert say(db, held.item("keep", entry(), lease_id=uuid4())) == "fenced"
    assert [say(db, held.item("keep", entry(), expected_seq=seq)) for seq in (0, 2, 99, None)] == ["conflict"] * 4
    assert [say(db, item), say(db, item)] == ["ok", "conflict"]
    assert len(journal(db)) == 2


def test_it_runs_at_read_committed_only(db: Conn, hand: Hand) -> None:
    start(db)
    item = hand.take().item("keep", entry())

    db.execute("set session characteristics as transaction isolation level repeatable read")
    with pytest.raises(psycopg.Error) as error:
        say(db, item)

    assert error.value.sqlstate == "WS004"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_calls_that_append_at_once_one_does(db: Conn, hand: Hand, two_sessions: Sessions, end: Any) -> None:
    """A client that lost its connection sends the call again while the first try is still under way."""
    start(db)
    item = hand.take().item("keep", entry())
    short, long = append(item), advance(hand, item)

    for first, second in ((short, short), (short, long), (long, short)):
        answers = race(two_sessions, first, second, end=end)
        assert answers == (["ok"], ["conflict" if end == "commit" else "ok"])
        db.execute("alter table pgwf_journal.entry disable trigger user")
        db.execute("delete from pgwf_journal.entry where seq > 1")
        db.execute("alter table pgwf_journal.entry enable trigger user")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("end", "answer"), [("commit", "fenced"), ("rollback", "ok")])
def test_it_waits_for_a_sweep_that_ends_its_lease(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions, end: Any, answer: str
) -> None:
    start(db)
    item = hand.take().item("keep", entry())
    clock.advance(hours=1)

    assert race(two_sessions, Call("select pgwf.sweep('sweeper')"), append(item), end=end)[1] == [answer]


def test_a_sweep_leaves_the_lease_alone_while_it_is_open(
    db: Conn, clock: Clock, hand: Hand, make_hand: MakeHand, two_sessions: Sessions
) -> None:
    start(db)
    item = hand.take().item("keep", entry())
    clock.advance(hours=1)
    speaking, sweeping = two_sessions
    speaking.run("begin")
    speaking.run(APPEND, entry_parameters(item))

    sweeping.run("select pgwf.sweep('sweeper')")
    assert value(db, "select count(*) from pgwf.lease") == 1
    speaking.run("commit")

    sweeping.run("select pgwf.sweep('sweeper')")
    assert make_hand("worker-2").take().head == 2


RETURNED: dict[str, object] = {
    "n": None,
    "call": 1,
    "kind": 2,
    "phase": 2,
    "scope": "",
    "name": "größe",
    "occurrence": 1,
    "payload": None,
    "encoding": 1,
    "code": None,
}


async def answer(call: PreparedCall, parameters: dict[str, Any]) -> list[Any]:
    """The row of one call."""
    answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def then(outcome: list[Any] | psycopg.Error) -> None:
        if isinstance(outcome, psycopg.Error):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)

    call.start(parameters, then)
    return await answered


@pytest.mark.own_session
def test_a_prepared_call_says_what_a_cursor_says_and_goes_on_after_an_error(dsn: str, db: Conn, hand: Hand) -> None:
    n, _, _ = start(db)
    held = hand.take()
    large = b"x" * (32 << 20)

    async def append(connection: psycopg.AsyncConnection[Any]) -> list[tuple[str, bool]]:
        append = PreparedCall(connection, "sdk_append_entry")
        said: list[tuple[str, bool]] = []
        for seq, payload in enumerate((b"1", large, None), 1):
            entry = {**RETURNED, "n": n, "lease_id": held.lease_id, "expected_seq": seq, "payload": payload}
            with pytest.raises(psycopg.Error, match="append_entry: the entry has NULL"):
                await answer(append, {**entry, "name": None})
            status, now_at = await answer(append, entry)
            said.append((status, now_at.tzinfo is not None))
            append.stop()
            await connection.execute("select 'others may use it between two calls'")
        return said

    async def run() -> list[tuple[str, bool]]:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await append(connection)

    assert asyncio.run(run()) == [("ok", True)] * 3
    stored = db.execute("select name, payload from pgwf_journal.entry where seq > 1 order by seq").fetchall()
    assert stored == [("größe", b"1"), ("größe", large), ("größe", None)]


@pytest.mark.own_session
def test_a_prepared_call_heeds_what_comes_between_calls_only_with_the_next(dsn: str, db: Conn, hand: Hand) -> None:
    n, _, _ = start(db)
    entry = {**RETURNED, "n": n, "lease_id": hand.take().lease_id, "expected_seq": 1, "payload": b"1"}

    def is_there(pid: int) -> bool:
        return bool(value(db, "select count(*) from pg_stat_activity where pid = %s", pid))

    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        pid = connection.info.backend_pid
        append = PreparedCall(connection, "sdk_append_entry")
        await answer(append, entry)
        db.execute("select pg_terminate_backend(%s)", [pid])
        # The server's last word is there to be read: whoever listens is told, once.
        await asyncio.to_thread(wait_until, lambda: not is_there(pid), "the session is over")
        with pytest.raises(psycopg.OperationalError):
            await answer(append, {**entry, "expected_seq": 2})
        append.stop()
        await connection.close()

    asyncio.run(run())
