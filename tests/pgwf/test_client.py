import asyncio
import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgwf import (
    NEVER,
    AsyncClient,
    AsyncLease,
    Client,
    DependencyCycleError,
    HeldJob,
    InvalidArgumentError,
    IsolationError,
    JobCancelledError,
    JobExistsError,
    JobFinishedError,
    JobNotFoundError,
    JobOutcome,
    JobStateError,
    KeyHeldError,
    Lease,
    LeaseLostError,
    LeaseSpentError,
    NewJob,
    Reschedule,
)
from pgwf._errors import ERROR_BY_SQLSTATE
from pgwf_sql import script
from tests.pgwf.clients import CAPS, WORKER, asleep, submit, take
from tests.support import Clock, Session, wait_until

MINUTE = timedelta(minutes=1)


def test_a_submitted_job_is_leased_and_completed(client: Client) -> None:
    submit(client)

    lease = take(client)
    lease.complete()

    assert (lease.job_id, lease.next_need, lease.lease_no, lease.priority) == ("job-1", "python", 1, 3)
    assert client.get_work(worker_id=WORKER, worker_caps=CAPS) == ()


def test_a_job_says_what_it_waits_for_and_from_when_on(client: Client) -> None:
    submit(client, "first")

    job = client.submit_job(
        job_id="second",
        worker_id="shop",
        next_need="gpu",
        wait_for=["first"],
        available_at=datetime(2100, 1, 1, tzinfo=UTC),
    )

    assert (job.job_id, job.next_need, job.wait_for) == ("second", "gpu", ("first",))
    assert job.available_at == datetime(2100, 1, 1, tzinfo=UTC)


def test_never_and_infinity_are_the_same_both_ways(client: Client, db: psycopg.Connection[Any]) -> None:
    job = client.submit_job(job_id="job-1", worker_id="shop", next_need="python", available_at=NEVER)

    assert job.available_at == NEVER
    assert db.execute("select available_at = 'infinity' from pgwf.job").fetchone() == (True,)
    assert client.get_work(worker_id=WORKER, worker_caps=CAPS) == ()
    assert client.wake_jobs(worker_id=WORKER, job_ids=["job-1", "job-2"]) == (
        JobOutcome(job_id="job-1", status="woken"),
        JobOutcome(job_id="job-2", status="unknown"),
    )
    assert take(client).reschedule(next_need="python", available_at=NEVER).available_at == NEVER


def test_many_jobs_are_submitted_and_each_fails_alone(client: Client) -> None:
    submit(client, "live")

    outcomes = client.submit_jobs(
        worker_id="shop",
        jobs=[
            NewJob(job_id="a", next_need="python"),
            NewJob(job_id="b", next_need="python", wait_for=("a",), priority=1, singleton_key="k"),
            NewJob(job_id="live", next_need="python"),
            NewJob(job_id="c", next_need="python", wait_for=("nobody",)),
            NewJob(job_id="a", next_need="python"),
            NewJob(job_id="", next_need="python"),
        ],
    )

    assert [outcome.status for outcome in outcomes] == ["ok", "ok", "live", "unknown", "duplicate", "invalid"]


def test_many_leases_are_extended_rescheduled_and_completed(client: Client) -> None:
    client.submit_jobs(worker_id="shop", jobs=[NewJob(job_id=f"job-{i}", next_need="python") for i in range(4)])
    leases = client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=4)
    held = [HeldJob(job_id=lease.job_id, lease_id=lease.lease_id) for lease in leases]
    lost = HeldJob(job_id=held[0].job_id, lease_id=held[1].lease_id)

    extended = client.extend_leases(worker_id=WORKER, leases=held, additional_seconds=600)
    refused = client.extend_leases(worker_id=WORKER, leases=[lost])
    rescheduled = client.reschedule_jobs(
        worker_id=WORKER,
        jobs=[Reschedule(job_id=job.job_id, lease_id=job.lease_id, next_need="gpu") for job in held[:2]],
    )
    completed = client.complete_jobs(worker_id=WORKER, leases=held[1:])

    assert [outcome.status for outcome in extended] == ["ok"] * 4
    assert extended[0].lease_expires_at is not None
    assert extended[0].lease_expires_at > leases[0].lease_expires_at
    assert [outcome.status for outcome in refused] == ["lease_lost"]
    assert [outcome.status for outcome in rescheduled] == ["ok", "ok"]
    assert [outcome.status for outcome in completed] == ["lease_lost", "ok", "ok"]


def test_a_batch_that_meets_a_locked_row_leaves_that_one_out(client: Client, session: Callable[[], Session]) -> None:
    client.submit_jobs(worker_id="shop", jobs=[NewJob(job_id=f"job-{i}", next_need="python") for i in range(2)])
    leases = client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=2)
    other = session()
    other.run("begin")
    other.run("select from pgwf.job where job_id = 'job-0' for update")

    outcomes = client.complete_jobs(
        worker_id=WORKER, leases=[HeldJob(job_id=lease.job_id, lease_id=lease.lease_id) for lease in leases]
    )

    assert [outcome.status for outcome in outcomes] == ["busy", "ok"]


def test_each_refusal_has_its_own_error(client: Client, db: psycopg.Connection[Any]) -> None:
    submit(client, "live")
    submit(client, "over")
    client.complete_unheld_job(job_id="over", worker_id=WORKER)
    submit(client, "keyed", singleton_key="k")
    submit(client, "rival", singleton_key="k")
    submit(client, "unwanted")
    client.cancel_job(job_id="unwanted", worker_id=WORKER, reason="typo")
    holder = client.lease_job(job_id="keyed", worker_id=WORKER)

    with pytest.raises(JobExistsError, match="live"):
        submit(client, "live")
    with pytest.raises(JobFinishedError, match="over"):
        submit(client, "over")
    with pytest.raises(InvalidArgumentError):
        submit(client, "")
    with pytest.raises(InvalidArgumentError, match=r"\['gpu'\]"):
        client.get_work(worker_id=WORKER, worker_caps="gpu")
    with pytest.raises(InvalidArgumentError):
        client.get_work(worker_id=WORKER, worker_caps=[])
    with pytest.raises(KeyHeldError, match="rival"):
        client.lease_job(job_id="rival", worker_id=WORKER)
    with pytest.raises(JobStateError, match="keyed"):
        client.complete_unheld_job(job_id="keyed", worker_id=WORKER)
    with pytest.raises(JobNotFoundError, match="nobody"):
        client.cancel_job(job_id="nobody", worker_id=WORKER)
    with pytest.raises(JobCancelledError, match="unwanted"):
        client.reschedule_unheld_job(job_id="unwanted", worker_id=WORKER, next_need="gpu")
    with pytest.raises(DependencyCycleError):
        holder.reschedule(next_need="python", wait_for=["keyed"])
    db.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with db.transaction(), pytest.raises(IsolationError):
        client.get_work(worker_id=WORKER, worker_caps=CAPS, connection=db)


def test_a_call_on_a_connection_of_the_caller_is_undone_with_its_transaction(
    client: Client, db: psycopg.Connection[Any]
) -> None:
    with db.transaction(force_rollback=True):
        submit(client, connection=db)
    assert client.get_work(worker_id=WORKER, worker_caps=CAPS) == ()

    submit(client)
    lease = take(client)
    with db.transaction():
        lease.complete(connection=db)
    with pytest.raises(JobFinishedError):
        submit(client)


def test_settings_read_back_as_they_were_set(client: Client) -> None:
    client.set_trace(enabled=False)
    client.set_notify(enabled=True)
    client.set_crash_concern_threshold(threshold=2)
    client.set_priority_aging(aging=timedelta(seconds=1.5))
    client.set_expired_grace(grace=timedelta(hours=2))
    client.set_worker_grace(grace=timedelta(days=3))

    assert not client.is_trace_enabled()
    assert client.is_notify_enabled()
    assert client.crash_concern_threshold() == 2


def test_a_paused_or_limited_need_hands_out_less(client: Client) -> None:
    client.submit_jobs(worker_id="shop", jobs=[NewJob(job_id=f"job-{i}", next_need="python") for i in range(3)])

    client.pause_need(need="python", worker_id=WORKER)
    assert client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=3) == ()
    client.resume_need(need="python", worker_id=WORKER)
    client.limit_need(need="python", worker_id=WORKER, max_active=2)

    assert len(client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=3)) == 2


def test_a_limited_key_hands_out_as_many_of_its_jobs_as_it_may(client: Client) -> None:
    jobs = [NewJob(job_id=f"job-{i}", next_need="python", singleton_key="tenant-7") for i in range(4)]
    client.submit_jobs(worker_id="shop", jobs=jobs)

    client.limit_key(key="tenant-7", worker_id=WORKER, max_active=3, rate=0.001, burst=2)
    assert len(client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=4)) == 2
    client.limit_key(key="tenant-7", worker_id=WORKER, max_active=3)

    assert len(client.get_work(worker_id=WORKER, worker_caps=CAPS, limit_jobs=4)) == 1


def test_a_worker_learns_from_its_heartbeat_that_it_is_to_drain(client: Client) -> None:
    assert not client.drain_worker(worker_id=WORKER)
    assert not client.worker_heartbeat(worker_id=WORKER, capabilities=CAPS, slots=4, details={"host": "a"})

    assert client.drain_worker(worker_id=WORKER)

    assert client.worker_heartbeat(worker_id=WORKER, capabilities=CAPS)
    assert client.forget_worker(worker_id=WORKER)
    assert not client.forget_worker(worker_id=WORKER)


def test_a_waiter_sees_how_each_of_its_dependencies_ended(client: Client) -> None:
    for job_id in ("done", "unwanted", "open"):
        submit(client, job_id, next_need="other")
    submit(client, "waiter", wait_for=["done", "unwanted", "open"])
    client.complete_unheld_job(job_id="done", worker_id=WORKER)
    client.cancel_job(job_id="unwanted", worker_id=WORKER)

    outcomes = [(found.job_id, found.outcome) for found in client.job_dependencies(job_id="waiter")]

    assert outcomes == [("done", "completed"), ("unwanted", "cancelled"), ("open", None)]
    assert client.job_dependencies(job_id="nobody") == ()


def test_retention_forgets_jobs_that_ended_long_ago_and_breaks_no_rule(client: Client, clock: Clock) -> None:
    submit(client)
    take(client).complete()
    clock.advance(timedelta(days=2))

    assert client.retain(keep=timedelta(days=3)) == 0
    assert client.retain(keep=timedelta(days=1)) > 0

    assert client.check() == ()
    submit(client)


def test_a_job_that_keeps_losing_its_workers_is_cleared_by_hand(client: Client, clock: Clock) -> None:
    client.set_crash_concern_threshold(threshold=1)
    submit(client)
    for _ in range(2):
        take(client)
        clock.advance(timedelta(minutes=2))
        client.sweep(worker_id=WORKER)
    assert client.get_work(worker_id=WORKER, worker_caps=CAPS) == ()

    assert client.clear_crash_concern(job_id="job-1", worker_id=WORKER, reason="more memory") == 2

    take(client).complete()


def test_priority_decides_who_is_next(client: Client) -> None:
    submit(client, "early")
    submit(client, "late")

    client.set_priority(job_id="late", worker_id=WORKER, priority=1)

    assert take(client).job_id == "late"


def test_the_async_client_does_the_same(dsn: str, database: str, db: psycopg.Connection[Any]) -> None:
    async def work() -> None:
        async with AsyncClient(dsn, listen_dsn=database) as client:
            waiting = asyncio.create_task(client.await_work(worker_id=WORKER, worker_caps=CAPS, poll=10 * MINUTE))
            await asyncio.to_thread(wait_until, asleep(db), "the worker asleep")
            await client.submit_job(job_id="job-1", worker_id="shop", next_need="python")
            (lease,) = await waiting
            assert isinstance(lease, AsyncLease)
            async with lease.keep_alive(lease_seconds=0.3):
                await asyncio.to_thread(db.execute, "delete from pgwf.lease")
                async with asyncio.timeout(20):
                    await lease.lost.wait()
            with pytest.raises(LeaseLostError):
                await lease.complete()
            with pytest.raises(LeaseSpentError):
                await lease.complete()
            assert await client.await_work(worker_id=WORKER, worker_caps=["gpu"], timeout=timedelta(0)) == ()

            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await client.submit_job(job_id="job-2", worker_id="shop", next_need="python", connection=connection)
                await connection.rollback()
            with pytest.raises(JobNotFoundError):
                await client.cancel_job(job_id="job-2", worker_id="shop")

    asyncio.run(work())


@pytest.mark.parametrize(("ours", "theirs"), [(Client, AsyncClient), (Lease, AsyncLease)])
def test_both_clients_have_the_same_calls(ours: type, theirs: type) -> None:
    assert signatures(ours) == signatures(theirs)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_arguments_are_given_by_name(kind: type) -> None:
    """So none can land in the place of another, whatever the next version adds."""
    for name, call in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(call):
            kinds = {each.kind for each in list(inspect.signature(call).parameters.values())[1:]}
            assert kinds <= {inspect.Parameter.KEYWORD_ONLY}, name


ARGUMENTS: dict[str, Any] = {
    "job_id": "job-1", "job_ids": ["job-1"], "jobs": [], "lease_id": "lease-1", "leases": [], "next_need": "python",
    "priority": 1, "worker_caps": CAPS, "worker_id": WORKER,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "finish"), [(Client, lambda answer: answer), (AsyncClient, asyncio.run)])
def test_each_call_that_takes_a_connection_is_made_on_it(kind: Any, finish: Callable[[Any], object], dsn: str) -> None:
    """What is no connection is refused; a call that left it out would be made on another."""
    client = kind(dsn)
    calls = {name: inspect.signature(call).parameters for name, call in inspect.getmembers(client, inspect.ismethod)}
    made_on_one = {name: parameters for name, parameters in calls.items() if "connection" in parameters}
    assert len(made_on_one) >= 17

    for name, parameters in made_on_one.items():
        arguments = {
            each: ARGUMENTS[each] for each in parameters if parameters[each].default is inspect.Parameter.empty
        }
        with pytest.raises(TypeError, match="connection=…: found an object of str"):
            finish(getattr(client, name)(**arguments, connection="mine"))


def signatures(kind: type) -> dict[str, str]:
    """The public calls of a class, as text in which sync and async names are the same."""
    return {
        name: re.sub(r"Async|pgwf\._\w+\.", "", str(inspect.signature(call)))
        for name, call in vars(kind).items()
        if not name.startswith("_") and callable(call)
    }


def test_each_function_of_the_schema_has_a_call_of_its_name_and_parameters(db: psycopg.Connection[Any]) -> None:
    functions = db.execute(
        """select p.proname, p.proargnames[1:p.pronargs]
           from pg_proc p
           where p.pronamespace = 'pgwf'::regnamespace and p.proname not like '\\_%'"""
    ).fetchall()
    not_for_callers = {"schema_version", "channel", "sleep_on", "wake_up", "next_wakeup", "sleep_in_turn", "wake_next"}

    for function, arguments in functions:
        if function in not_for_callers:
            continue
        parameters = set(inspect.signature(getattr(Client, function)).parameters) - {"self", "connection"}
        bare = {argument.removeprefix("p_") for argument in arguments or []}
        assert parameters == bare or parameters - {"jobs", "leases"} <= bare, function


def test_each_sqlstate_the_schema_lists_has_a_class_and_no_other() -> None:
    listed = {line.split()[1] for line in script().splitlines() if re.match(r"--   WF\d{3} ", line)}

    assert set(ERROR_BY_SQLSTATE) == listed | {"22003", "22021", "23502", "23505"}
