import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk._client import AsyncClient, AsyncHumanTasks, AsyncRun, Client, HumanTasks, Run
from pgwf_sdk._definition import workflow
from pgwf_sdk._errors import (
    ERROR_BY_SQLSTATE,
    InvalidArgumentError,
    ResultTimeoutError,
    RunCancelledError,
    RunConflictError,
    RunFailedError,
    RunFinishedError,
    RunNotFoundError,
    RunNotRetryableError,
    RunTerminatedError,
    SerialisationError,
    TaskNotFoundError,
)
from pgwf_sdk._failure import describe
from pgwf_sdk._serial import encode
from pgwf_sdk.embedded import EmbeddedServer
from pgwf_sql import script
from pgwf_sql.database import SchemaOutdatedError
from tests.sdk.sql.hand import begin
from tests.support import wait_until

if TYPE_CHECKING:
    from pgwf_sdk import Context

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Receipt:
    order: str
    cents: int


@workflow(need="python")
def checkout(ctx: "Context", order: str, cents: int = 0) -> Receipt:
    return Receipt(order, cents)


@workflow(need="python")
def refund(ctx: "Context", order: str) -> None:
    return None


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn, name="shop") as client:
        yield client


def end(db: psycopg.Connection[Any], disposition: str, payload: bytes | None, encoding: int = 1) -> None:
    """Do what a worker does: claim the next run and end it."""
    claimed = db.execute(
        """select n, lease_id, workflow, head
           from pgwf_sdk.advance('worker-1', p_worker_caps => '{python}', p_slots => 1)"""
    ).fetchone()
    assert claimed is not None
    n, lease_id, name, head = claimed
    phase = {"complete": Phase.COMPLETED, "fail": Phase.FAILED, "cancel": Phase.CANCELLED}[disposition]
    (status,) = db.execute(
        """select status from pgwf_sdk.advance('worker-1', array[%s], array[%s::uuid], array[%s::bigint], array[%s],
             array[null::timestamptz], array[null::float8], array[null], array[0::bigint], array[0], array[false],
             array[null], array[false], array[1], array[0], array[%s::smallint], array[%s::smallint], array[''],
             array[%s], array[1], array[%s::bytea], array[%s::smallint], array[null::int])""",
        [n, lease_id, head, disposition, Kind.RUN.value, phase.value, name, payload, encoding],
    ).fetchone() or ("nothing",)
    assert status == "ok"


def complete(db: psycopg.Connection[Any], value: object) -> None:
    payload, encoding = encode(value, type(value))
    end(db, "complete", payload, encoding)


def test_a_started_run_waits_for_a_worker(client: Client) -> None:
    run = client.start(checkout("17"), run_id="order-17")

    assert (run.run_id, run.created, run.status()) == ("order-17", True, "ready")
    details = run.details()
    assert (details.workflow, details.current_need, details.priority, details.entry_count) == (
        "checkout",
        "python",
        3,
        1,
    )


def test_a_run_without_an_id_gets_a_new_uuid_of_version_7(client: Client) -> None:
    first, second = client.start(checkout("17")), client.start(checkout("17"))

    assert first.run_id != second.run_id
    assert UUID(first.run_id).version == 7


def test_starting_the_same_run_again_gives_the_run_that_is_there(client: Client) -> None:
    client.start(checkout("17"), run_id="order-17")

    again = client.start(checkout("17"), run_id="order-17")

    assert not again.created
    assert len(client.list()) == 1


@pytest.mark.parametrize("call", [checkout("18"), refund("17")], ids=["another input", "another workflow"])
def test_an_id_that_is_taken_by_something_else_is_a_conflict(client: Client, call: Any) -> None:
    client.start(checkout("17"), run_id="order-17")

    with pytest.raises(RunConflictError, match="order-17") as conflict:
        client.start(call, run_id="order-17")
    assert conflict.value.__suppress_context__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((checkout,), "client.start(checkout(…)), where checkout takes (order: str, cents: int = 0)"),
        ((checkout, "17"), "found the workflow checkout with its arguments beside it"),
        (("receipt for 17",), "found 'receipt for 17', a str; expected the call of a workflow"),
    ],
)
def test_a_start_of_what_is_no_call_is_refused_with_the_call_to_make(
    client: Client, dsn: str, arguments: Any, said: str
) -> None:
    async def start_async() -> None:
        async with AsyncClient(dsn) as other:
            await other.start(*arguments)

    with pytest.raises(TypeError, match=re.escape(said)):
        client.start(*arguments)
    with pytest.raises(TypeError, match=re.escape(said)):
        asyncio.run(start_async())
    assert client.list() == ()


def test_a_signal_or_decision_that_cannot_be_stored_is_named_with_its_path(client: Client) -> None:
    run = client.start(checkout("17"), run_id="order-17")

    with pytest.raises(SerialisationError, match=r"^signal 'paid' to run order-17: value\['by'\]: object cannot be"):
        run.signal("paid", {"by": object()})
    with pytest.raises(SerialisationError, match=r"^decision of task t-1: value\[0\]: object cannot be stored"):
        client.human.decide("t-1", [object()])


def test_a_number_is_no_timeout(client: Client) -> None:
    run = client.start(checkout("17"), run_id="order-17")
    seconds: Any = 3

    with pytest.raises(TypeError, match=r"run order-17: result\(timeout=…\): found 3; expected a timedelta"):
        run.result(timeout=seconds)


def test_a_start_on_a_connection_of_the_caller_is_undone_with_its_transaction(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    with db.transaction(force_rollback=True):
        client.start(checkout("17"), run_id="order-17", connection=db)
        assert client.list() == ()

    with pytest.raises(RunNotFoundError, match="order-17"):
        client.get("order-17")


def test_a_connection_of_the_caller_keeps_its_row_factory_and_its_open_transaction(client: Client, dsn: str) -> None:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        client.start(checkout("17"), run_id="order-17", connection=connection)

        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        assert connection.execute("select 1 as one").fetchone() == {"one": 1}
        connection.rollback()

    assert client.list() == ()


def test_a_run_that_starts_later_is_waiting_until_then(client: Client) -> None:
    run = client.start(checkout("17"), start_at=datetime(2100, 1, 1, tzinfo=UTC))

    assert run.details().available_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert run.status() == "waiting"


@pytest.mark.parametrize("run_id", ["", "x" * 513, "a\nb"])
def test_an_id_that_is_empty_too_long_or_has_control_characters_is_refused(client: Client, run_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="1 to 512 bytes"):
        client.start(checkout("17"), run_id=run_id)


def test_runs_are_listed_newest_first_and_page_by_page(client: Client) -> None:
    for i in range(5):
        client.start(checkout(str(i)), run_id=f"order-{i}")
    client.start(refund("0"), run_id="refund-0")

    first = client.list(workflow="checkout", limit=3)
    rest = client.list(workflow="checkout", limit=3, before=first[-1].n)

    assert [run.run_id for run in first] == ["order-4", "order-3", "order-2"]
    assert [run.run_id for run in rest] == ["order-1", "order-0"]
    assert [run.run_id for run in client.list(statuses=["ready"], need="python", limit=1)] == ["refund-0"]
    assert client.list(statuses=["completed", "failed"]) == ()


@pytest.mark.parametrize("options", [{"statuses": ["done"]}, {"limit": 0}, {"limit": 1001}])
def test_a_list_that_cannot_be_is_refused_before_the_database_is_asked(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"done|limit"):
        client.list(**options)


def test_a_parked_run_has_no_time_at_which_it_becomes_available(client: Client) -> None:
    run = client.start(checkout("17"))

    assert run.pause() == "paused"

    assert run.details().available_at is None
    assert run.status() == "paused"
    assert run.resume() == "resumed"
    assert run.status() == "ready"


def test_a_result_is_of_the_type_the_workflow_returns(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17", cents=5))

    complete(db, Receipt("17", 5))

    assert run.result(MINUTE) == Receipt("17", 5)
    assert client.get(run.run_id, checkout).result(MINUTE) == Receipt("17", 5)
    assert run.details().finished_at is not None


def test_a_workflow_that_returns_nothing_gives_none(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(refund("17"))

    complete(db, None)

    assert run.result(MINUTE) is None


def test_a_failed_run_raises_with_its_error_as_the_cause(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17"))

    end(db, "fail", describe(ValueError("declined")))

    with pytest.raises(RunFailedError, match="ValueError: declined") as failed:
        run.result(MINUTE)
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.run_id == run.run_id


def test_a_cancelled_run_raises(client: Client, db: psycopg.Connection[Any]) -> None:
    begin(db)
    run = client.get("order-1", checkout)
    assert run.cancel(reason="typo") == "requested"
    assert run.cancel(reason="typo") == "already_requested"

    end(db, "cancel", None, 0)

    with pytest.raises(RunCancelledError):
        run.result(MINUTE)
    assert run.cancel() == "cancelled"


def test_a_run_that_is_cancelled_before_it_began_is_over_without_a_worker(client: Client) -> None:
    run = client.start(checkout("17"), run_id="order-17")

    assert [run.cancel(by="ann", reason="typo"), run.cancel()] == ["cancelled", "cancelled"]

    with pytest.raises(RunCancelledError, match="run order-17 was cancelled by ann: typo") as cancelled:
        run.result(MINUTE)
    assert cancelled.value.run_id == "order-17"
    with pytest.raises(RunFinishedError):
        run.signal("delivered")
    assert client.retry("order-17").run_id == "order-17~2"


def test_a_terminated_run_raises_and_takes_no_more_signals(client: Client) -> None:
    run = client.start(checkout("17"))

    assert run.terminate(reason="typo") == "terminated"

    with pytest.raises(RunTerminatedError):
        run.result(MINUTE)
    with pytest.raises(RunFinishedError, match="terminated"):
        run.signal("delivered")


def test_a_wait_that_lasts_too_long_says_what_the_run_was_doing(client: Client) -> None:
    run = client.start(checkout("17"))

    with pytest.raises(ResultTimeoutError, match="is ready after") as late:
        run.result(timedelta(milliseconds=10))

    assert isinstance(late.value, TimeoutError)
    assert (late.value.run_id, late.value.status) == (run.run_id, "ready")


def test_a_connection_the_server_closed_is_replaced_without_an_error(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    run = client.start(checkout("17"))
    db.execute(
        """select pg_terminate_backend(pid)
           from pg_stat_activity
           where datname = current_database() and pid <> pg_backend_pid()"""
    )

    assert run.status() == "ready"


def test_a_signal_with_a_known_dedup_id_is_sent_once(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17"))

    assert run.signal("delivered", {"at": "door"}, dedup_id="parcel-1")
    assert not run.signal("delivered", {"at": "door"}, dedup_id="parcel-1")

    assert db.execute("select count(*) from pgwf_sdk.inbox where name = 'delivered'").fetchone() == (1,)


def test_a_run_that_does_not_exist_is_an_error_with_its_id(client: Client) -> None:
    for ask in (client.get, client.cancel, client.terminate, client.pause, client.resume, client.retry):
        with pytest.raises(RunNotFoundError, match="order-17"):
            ask("order-17")
    with pytest.raises(RunNotFoundError, match="order-17"):
        client.signal("order-17", "delivered")
    for fork in (client.fork, client.fork_price):
        with pytest.raises(RunNotFoundError, match="order-17"):
            fork("order-17", before=1)


def test_a_failed_run_is_retried_as_a_new_run(client: Client, db: psycopg.Connection[Any]) -> None:
    run = client.start(checkout("17"), run_id="order-17")
    with pytest.raises(RunNotRetryableError, match="it is ready"):
        run.retry()
    end(db, "fail", describe(ValueError("declined")))

    again = run.retry()
    complete(db, Receipt("17", 0))

    assert again.run_id == "order-17~2"
    assert again.result(MINUTE) == Receipt("17", 0)
    assert run.retry().run_id == "order-17~2"


def test_a_task_that_does_not_exist_is_an_error_with_its_id(client: Client) -> None:
    assert client.human.list() == ()
    with pytest.raises(TaskNotFoundError, match="t-1"):
        client.human.claim("t-1")
    with pytest.raises(TaskNotFoundError, match="t-1"):
        client.human.release("t-1")
    with pytest.raises(TaskNotFoundError, match="t-1"):
        client.human.decide("t-1", True)


def test_a_database_without_the_schema_is_refused_with_the_command_to_run(server: EmbeddedServer) -> None:
    with Client(server.dsn) as client, pytest.raises(SchemaOutdatedError, match="pgwf migrate") as refused:
        client.list()

    assert refused.value.found is None


def test_a_wrong_address_fails_at_once() -> None:
    with Client("host=/nowhere dbname=x") as client, pytest.raises(psycopg.OperationalError, match="nowhere"):
        client.list()


def test_a_closed_client_says_so(dsn: str) -> None:
    client = Client(dsn)
    client.close()
    client.close()

    with pytest.raises(RuntimeError, match="closed"):
        client.list()


def test_the_async_client_does_the_same(dsn: str, db: psycopg.Connection[Any]) -> None:
    async def shop() -> None:
        async with AsyncClient(dsn, name="shop") as client:
            run = await client.start(checkout("17", cents=5), run_id="order-17")
            assert not (await client.start(checkout("17", cents=5), run_id="order-17")).created
            assert [found.run_id for found in await client.list()] == ["order-17"]
            with pytest.raises(ResultTimeoutError):
                await run.result(timedelta(milliseconds=10))
            waiting = asyncio.create_task(run.result(MINUTE))
            await asyncio.to_thread(wait_until, lambda: db.execute("select from pgwf.sleeper").rowcount, "it waits")
            await asyncio.to_thread(complete, db, Receipt("17", 5))
            assert await waiting == Receipt("17", 5)
            assert await run.cancel() == "completed"
            with pytest.raises(RunFinishedError):
                await run.signal("delivered")
            with pytest.raises(TaskNotFoundError):
                await client.human.claim("t-1")

            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await client.start(checkout("18"), run_id="order-18", connection=connection)
                await connection.rollback()
            with pytest.raises(RunNotFoundError):
                await client.get("order-18")

    asyncio.run(shop())


@pytest.mark.parametrize(("ours", "theirs"), [(Client, AsyncClient), (Run, AsyncRun), (HumanTasks, AsyncHumanTasks)])
def test_both_clients_have_the_same_calls(ours: type, theirs: type) -> None:
    assert signatures(ours) == signatures(theirs)


def signatures(kind: type) -> dict[str, str]:
    """The public calls of a class, as text in which sync and async names are the same."""
    return {
        name: re.sub(r"Async|pgwf_sdk\._client\.\w+\.", "", str(inspect.signature(call)))
        for name, call in vars(kind).items()
        if not name.startswith("_") and callable(call) and name != "connection"
    }


def test_each_sqlstate_the_schema_lists_has_a_class_and_no_other() -> None:
    listed = {line.split()[1] for line in script().splitlines() if line.startswith("--   WS")}

    assert {code for code in ERROR_BY_SQLSTATE if code.startswith("WS")} == listed
