"""pgwf_sdk.append: one entry of one run, with the locks of pgwf_sdk.advance."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import product
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

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

APPEND = query("sdk_append")
EVERY_PAIR = [*product(("bigint", "int", "smallint"), repeat=2), ("uuid", "uuid"), ("text", "text"), ("bytea", "bytea")]
COLUMNS = "call, kind, phase, scope, name, occurrence, payload, encoding, lease_no, code"


@pytest.fixture
def patient(db: Conn) -> None:
    """The call waits for a lock as long as it takes."""
    for name in ("advance", "append"):
        signature = value(db, f"select 'pgwf_sdk.{name}'::regproc::oid::regprocedure::text")
        db.execute(f"alter function {signature} reset lock_timeout".encode())


def append(item: Item) -> Call:
    return Call(APPEND, entry_parameters(item))


def say(db: Conn, item: Item) -> datetime | str | None:
    """When it was recorded, None, or the SQLSTATE of the error."""
    return tell(db, entry_parameters(item))


def tell(db: Conn, parameters: dict[str, Any]) -> datetime | str | None:
    """The same, of these parameters."""
    try:
        return (db.execute(APPEND, parameters).fetchone() or ("",))[0]
    except psycopg.Error as error:
        return error.sqlstate


def is_written(answer: Any) -> bool:
    """Whether either call says that it has appended its entry."""
    return answer == ["ok"] or (isinstance(answer, list) and isinstance(answer[0], datetime))


def test_it_writes_what_advance_would_write_and_tells_when(db: Conn, hand: Hand) -> None:
    start(db)
    held = hand.take()
    assert hand.say(held.item("keep", entry("charge", 1, payload=b"\x00\xff"))) == ["ok"]

    recorded_at = say(db, held.item("keep", entry("charge", 2, occurrence=2, payload=b"\x00\xff")))

    first, second = rows(db, f"select {COLUMNS} from pgwf_journal.entry where seq > 1 order by seq")
    assert [*second] == [2, *first[1:5], 2, *first[6:]]
    assert value(db, "select pgwf_journal._head(n) from pgwf_sdk.run") == 3
    assert recorded_at == value(db, "select recorded_at from pgwf_journal.entry where seq = 3")


@pytest.mark.parametrize("kind", [*Kind, 0, 17])
def test_it_takes_the_kinds_that_workers_send_by_it_and_no_others(db: Conn, hand: Hand, kind: int) -> None:
    start(db)
    new = NewEntry(1, cast("Kind", kind), Phase.OPENED, "", "a", 1, b"{}", 1)
    item = hand.take().item("keep", new)

    recorded_at = say(db, item)

    assert (recorded_at is not None) == (item.is_one_entry and kind in set(Kind))
    assert len(journal(db)) == 1 + (recorded_at is not None)


@pytest.mark.parametrize(
    ("mistaken", "answer"),
    [
        ({"lease_id": UUID(int=1)}, None),
        ({"phase": 0}, None),
        ({"phase": 8}, None),
        ({"encoding": 4}, None),
        ({"encoding": None}, None),
        ({"call": -1}, None),
        ({"expected_seq": 0}, None),
        ({"expected_seq": None}, None),
        ({"scope": None}, "23502"),
        ({"name": None}, "23502"),
        ({"occurrence": None}, "23502"),
    ],
    ids=str,
)
def test_it_writes_nothing_where_it_cannot_be_said_by_it(
    db: Conn, hand: Hand, mistaken: dict[str, Any], answer: str | None
) -> None:
    start(db)

    assert tell(db, entry_parameters(hand.take().item("keep", entry())) | mistaken) == answer
    assert len(journal(db)) == 1


def test_it_writes_nothing_where_an_entry_stands(db: Conn, hand: Hand) -> None:
    start(db)
    item = hand.take().item("keep", entry())

    assert isinstance(say(db, item), datetime)
    assert say(db, item) == "23505"
    assert len(journal(db)) == 2


def test_no_search_path_of_its_caller_leads_it_to_other_operators(db: Conn, hand: Hand) -> None:
    """It has no search_path of its own, and may run with the rights of its owner."""
    start(db)
    item = hand.take().item("keep", entry())
    db.execute("create schema evil")
    for left, right in EVERY_PAIR:
        db.execute(
            f"create function evil.refuse({left}, {right}) returns boolean language plpgsql"
            " as $$ begin raise 'led astray'; end $$".encode()
        )
        for operator in ("=", "<>", "<", "<=", ">", ">=", "+", "-"):
            definition = f"leftarg = {left}, rightarg = {right}, function = evil.refuse"
            db.execute(f"create operator evil.{operator} ({definition})".encode())

    db.execute("set search_path = evil, pg_catalog")

    with pytest.raises(psycopg.errors.RaiseException, match="led astray"):
        db.execute("select 1::bigint = 1")
    assert isinstance(say(db, item), datetime)


@pytest.mark.own_session
def test_the_session_of_a_worker_finds_the_lease_by_its_key_however_few_there_are(db: Conn, hand: Hand) -> None:
    start(db)
    item = hand.take().item("keep", entry())
    db.execute("analyze pgwf.lease")
    db.execute(query("sdk_session"))

    with db.transaction():
        assert isinstance(say(db, item), datetime)
        scans = rows(db, "select seq_scan, idx_scan from pg_stat_xact_all_tables where relid = 'pgwf.lease'::regclass")

    assert scans == [(0, 1)]
    assert value(db, "show lock_timeout") == "100ms"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_calls_that_append_at_once_one_does(db: Conn, hand: Hand, two_sessions: Sessions, end: Any) -> None:
    """A client that lost its connection sends the call again while the first try is still under way."""
    start(db)
    item = hand.take().item("keep", entry())
    short, long = append(item), advance(hand, item)

    for first, second in ((short, short), (short, long), (long, short)):
        said, answer = race(two_sessions, first, second, end=end)
        assert is_written(said)
        assert answer in (["conflict"], "23505") if end == "commit" else is_written(answer)
        db.execute("alter table pgwf_journal.entry disable trigger user")
        db.execute("delete from pgwf_journal.entry where seq > 1")
        db.execute("alter table pgwf_journal.entry enable trigger user")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_it_waits_for_a_sweep_that_ends_its_lease(
    db: Conn, clock: Clock, hand: Hand, two_sessions: Sessions, end: Any
) -> None:
    start(db)
    item = hand.take().item("keep", entry())
    clock.advance(hours=1)

    _, answer = race(two_sessions, Call("select pgwf.sweep('sweeper')"), append(item), end=end)

    assert answer == [None] if end == "commit" else is_written(answer)


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

    async def append(connection: psycopg.AsyncConnection[Any]) -> list[datetime]:
        append = PreparedCall(connection, "sdk_append")
        said: list[datetime] = []
        for seq, payload in enumerate((b"1", large, None), 1):
            entry = {**RETURNED, "n": n, "lease_id": held.lease_id, "expected_seq": seq, "payload": payload}
            with pytest.raises(psycopg.errors.NotNullViolation):
                await answer(append, {**entry, "name": None})
            said += await answer(append, entry)
            append.stop()
            await connection.execute("select 'others may use it between two calls'")
        return said

    async def run() -> list[datetime]:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            return await append(connection)

    said = asyncio.run(run())

    stored = db.execute(
        "select name, payload, recorded_at from pgwf_journal.entry where seq > 1 order by seq"
    ).fetchall()
    assert stored == [("größe", payload, at) for payload, at in zip((b"1", large, None), said, strict=True)]


@pytest.mark.own_session
def test_a_prepared_call_heeds_what_comes_between_calls_only_with_the_next(dsn: str, db: Conn, hand: Hand) -> None:
    n, _, _ = start(db)
    entry = {**RETURNED, "n": n, "lease_id": hand.take().lease_id, "expected_seq": 1, "payload": b"1"}

    def is_there(pid: int) -> bool:
        return bool(value(db, "select count(*) from pg_stat_activity where pid = %s", pid))

    async def run() -> None:
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        pid = connection.info.backend_pid
        append = PreparedCall(connection, "sdk_append")
        await answer(append, entry)
        db.execute("select pg_terminate_backend(%s)", [pid])
        # The server's last word is there to be read: whoever listens is told, once.
        await asyncio.to_thread(wait_until, lambda: not is_there(pid), "the session is over")
        with pytest.raises(psycopg.OperationalError):
            await answer(append, {**entry, "expected_seq": 2})
        append.stop()
        await connection.close()

    asyncio.run(run())
