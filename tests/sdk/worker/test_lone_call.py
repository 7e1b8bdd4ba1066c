"""What becomes of a worker and of other runs while a call is under way, such as the short one of a lone run."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import AsyncContext, Client, Run, step, workflow
from pgwf_sdk.worker._advance import entry_parameters, parameters
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pgwf_sdk.worker._advance import Item
    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=30)
HELD_ENTRIES = """
create table held (name text);
create function wait_while_held() returns trigger language plpgsql as $$
begin
  while exists (select from public.held h where h.name = new.name) loop
    perform pg_sleep(0.01);
  end loop;
  return new;
end
$$;
create trigger held before insert on pgwf_journal.entry for each row execute function wait_while_held();
insert into held values ('slow');
"""
UNDER_WAY = """
select pid from pg_stat_activity
where datname = current_database() and wait_event = 'PgSleep' and query ~ 'sdk.append|advance'
"""

slow_calls: list[int] = []
waited_for: list[int] = []


@step
async def slow(x: int) -> int:
    slow_calls.append(x)
    return 2 * x


@step
async def quick(x: int) -> int:
    return x + 1


@workflow
async def slowly(ctx: AsyncContext, x: int) -> int:
    return await ctx.step(quick, await ctx.step(slow, await ctx.step(quick, x)))


@workflow
async def quickly(ctx: AsyncContext, x: int) -> int:
    for _ in range(3):
        x = await ctx.step(quick, x)
    return x


@pytest.fixture
def held(client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]) -> Run[int]:
    """A run of which a call is under way until `release`."""
    slow_calls.clear()
    db.execute(HELD_ENTRIES)
    start_worker(slowly, quickly)
    run = client.start(slowly(1))
    pid_of_the_call(db)
    return run


def pid_of_the_call(db: psycopg.Connection[Any]) -> int:
    """The backend that is at the call."""
    found: list[tuple[int]] = wait_until(lambda: db.execute(UNDER_WAY).fetchall(), "the call is under way")
    return found[0][0]


def release(db: psycopg.Connection[Any]) -> None:
    db.execute("delete from held")


def test_what_comes_meanwhile_goes_with_the_next_call(
    client: Client, held: Run[int], db: psycopg.Connection[Any]
) -> None:
    others = [client.start(quickly(x)) for x in range(3)]
    pid_of_the_call(db)

    release(db)

    assert [run.result(timeout=SOON) for run in others] == [3, 4, 5]
    assert held.result(timeout=SOON) == 5


def test_a_call_whose_connection_dies_is_sent_again_and_its_step_not_repeated(
    client: Client, held: Run[int], db: psycopg.Connection[Any]
) -> None:
    db.execute("select pg_terminate_backend(%s)", [pid_of_the_call(db)])
    release(db)

    assert held.result(timeout=SOON) == 5
    assert slow_calls == [2]
    assert db.execute("select count(*) from pgwf_journal.entry where name = 'slow'").fetchone() == (1,)


def test_a_worker_that_stops_waits_for_the_answer_and_hands_the_run_on(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    slow_calls.clear()
    db.execute(HELD_ENTRIES)
    first = start_worker(slowly)
    run = client.start(slowly(1))
    pid_of_the_call(db)

    first.worker.stop()
    release(db)
    first.join()
    start_worker(slowly)

    assert run.result(timeout=SOON) == 5
    assert slow_calls == [2]


def test_a_worker_that_stops_at_once_leaves_the_call_and_the_run_goes_on_elsewhere(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    slow_calls.clear()
    db.execute(HELD_ENTRIES)
    first = start_worker(slowly, grace=timedelta(0), lease=timedelta(seconds=2))
    run = client.start(slowly(1))
    pid = pid_of_the_call(db)

    first.worker.stop()
    release(db)
    first.join()
    wait_until(
        lambda: not db.execute("select from pg_stat_activity where pid = %s", [pid]).fetchone(),
        "its connection is closed",
    )
    start_worker(slowly)

    assert run.result(timeout=SOON) == 5
    assert set(slow_calls) == {2}
    assert db.execute("select count(*) from pgwf_journal.entry where name = 'slow'").fetchone() == (1,)


def test_an_item_of_which_no_statement_can_be_made_is_refused_and_the_worker_goes_on(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_slow(items: Sequence[Item]) -> None:
        if any(entry.name == "slow" for item in items for entry in item.entries):
            raise ValueError("no parameter can be made of this")

    def make_of_one(item: Item) -> dict[str, Any]:
        refuse_slow([item])
        return entry_parameters(item)

    def make(worker_id: str, items: Sequence[Item], **options: Any) -> dict[str, Any]:
        refuse_slow(items)
        return parameters(worker_id, items, **options)

    monkeypatch.setattr("pgwf_sdk.worker._lone.entry_parameters", make_of_one)
    monkeypatch.setattr("pgwf_sdk.worker._flusher.parameters", make)  # Behind a pooler no item goes alone.
    start_worker(slowly, quickly)
    client.start(slowly(1), run_id="strange")

    note = "select note from pgwf_sdk.runs where run_id = 'strange' and note like 'refused by the database: no param%'"
    wait_until(lambda: db.execute(note).fetchone(), "the run is given back")
    assert client.start(quickly(0)).result(timeout=SOON) == 3
    client.terminate("strange")


going_on = threading.Event()


@step
async def wait_to_go_on(x: int) -> int:
    waited_for.append(x)
    await asyncio.to_thread(going_on.wait)
    return x + 1


@workflow
async def stopping_over(ctx: AsyncContext, x: int) -> int:
    return await ctx.step(quick, await ctx.step(wait_to_go_on, await ctx.step(quick, x)))


@pytest.fixture
def stopped_over() -> Generator[None]:
    waited_for.clear()
    going_on.clear()
    yield
    going_on.set()


@pytest.mark.usefixtures("stopped_over")
def test_where_the_server_that_took_over_has_lost_an_entry_none_is_written_after_the_gap(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any]
) -> None:
    """A standby that became the primary may lack what was answered last."""
    start_worker(stopping_over, quickly)
    run = client.start(stopping_over(1), run_id="over")
    wait_until(lambda: waited_for, "the step runs")
    db.execute("alter table pgwf_journal.entry disable trigger user")
    db.execute("delete from pgwf_journal.entry where seq = 2")
    db.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pgwf worker'")
    assert client.start(quickly(0)).result(timeout=SOON) == 3, "the worker has connected anew"

    going_on.set()

    assert run.result(timeout=SOON) == 4
    assert waited_for == [2, 2]
    entries = "select e.seq from pgwf_journal.entry e join pgwf_sdk.run r using (n) where r.run_id = 'over' order by 1"
    assert [seq for (seq,) in db.execute(entries)] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("stopped_over")
def test_an_entry_that_an_unheard_try_has_left_is_taken_for_its_own(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The call meets it, writes nothing, and the run goes on from the journal."""
    start_worker(stopping_over)
    run = client.start(stopping_over(1))
    wait_until(lambda: waited_for, "the step runs")
    db.execute(
        "insert into pgwf_journal.entry"
        " (n, seq, call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at, lease_no)"
        " select l.n, 3, 2, 2, 2, '', 'wait_to_go_on', 1, '3', 1, now(), l.lease_no from pgwf.lease as l"
    )

    going_on.set()

    assert run.result(timeout=SOON) == 4
    assert waited_for == [2]
    assert db.execute("select count(*) from pgwf_journal.entry where name = 'wait_to_go_on'").fetchone() == (1,)
    assert "refused" not in caplog.text


@pytest.mark.usefixtures("stopped_over")
def test_a_run_whose_lease_is_somebody_else_s_is_dropped_and_nothing_written(
    client: Client, start_worker: StartWorker, db: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    start_worker(stopping_over)
    client.start(stopping_over(1))
    wait_until(lambda: waited_for, "the step runs")
    db.execute("update pgwf.lease set lease_id = gen_random_uuid()")

    going_on.set()

    wait_until(lambda: "dropped by this worker" in caplog.text, "the run is dropped")
    assert db.execute("select max(seq) from pgwf_journal.entry").fetchone() == (2,)
