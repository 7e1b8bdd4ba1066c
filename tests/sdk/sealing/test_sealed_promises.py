"""Promises, and starting with a signal, where values are sealed: nothing of them is in the database in clear."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgwf_sdk import AwakeableFailedError, Client, Context, RunConflictError, Sealing, Worker, step, workflow
from tests.sdk.worker.conftest import Running
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("cryptography")

KEY = bytes(range(32))
SECRET = "s3cret"
SOON = timedelta(seconds=30)
TOKENS: list[str] = []


@step
def send(token: str) -> None:
    TOKENS.append(token)


@workflow
def ask(ctx: Context, card: str) -> list[str]:
    ctx.set_attribute("stage", "asked")
    answer = ctx.wait_for_callback(send, str)
    note = ctx.wait_signal("note", str)
    try:
        ctx.wait_for_callback(send, str)
    except AwakeableFailedError as error:
        return [card, answer, note, str(error)]
    return []


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    TOKENS.clear()
    with Client(dsn, sealing=Sealing({"k1": KEY})) as client:
        running = Running(Worker(client, workflows=[ask], poll=timedelta(seconds=1)))
        yield client
        running.stop()


def test_promises_and_signals_with_a_start_are_sealed_and_attributes_are_found(
    client: Client, db: psycopg.Connection[object]
) -> None:
    run = client.signal_with_start(ask(SECRET), "ask-1", "note", f"{SECRET} noted")
    again = client.signal_with_start(ask(SECRET), "ask-1", "note", f"{SECRET} more", dedup_id="2")
    with pytest.raises(RunConflictError):
        client.signal_with_start(ask("other"), "ask-1", "note", SECRET)
    wait_until(lambda: len(TOKENS) == 1, "the first token is given away")
    assert client.complete_awakeable(TOKENS[0], f"{SECRET} answered")
    wait_until(lambda: len(TOKENS) == 2, "the second token is given away")
    assert client.fail_awakeable(TOKENS[1], f"{SECRET} refused")

    assert run.result(SOON) == [SECRET, f"{SECRET} answered", f"{SECRET} noted", f"{SECRET} refused"]
    assert (run.created, again.created) == (True, False)
    assert [found.run_id for found in client.list(attributes={"stage": "asked"})] == ["ask-1"]
    clear = "select from pgwf_journal.entry e where encode(e.payload, 'escape') like %s"
    assert db.execute(clear, [f"%{SECRET}%"]).fetchall() == []


def test_a_promise_that_sql_completes_in_clear_is_read(client: Client, db: psycopg.Connection[object]) -> None:
    run = client.start(ask("card"))
    wait_until(lambda: len(TOKENS) == 1, "the first token is given away")
    db.execute("select pgwf_sdk.complete_awakeable(%s, '\"clear\"')", [TOKENS[0]])
    run.signal("note", "n")
    wait_until(lambda: len(TOKENS) == 2, "the second token is given away")
    db.execute("select pgwf_sdk.fail_awakeable(%s, 'no')", [TOKENS[1]])

    assert run.result(SOON) == ["card", "clear", "n", "no"]
