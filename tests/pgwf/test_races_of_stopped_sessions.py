"""An owner's session that is stopped, or whose transaction is prepared, between what it did and its commit."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.pgwf.leasing import Leasing, held, job_ids
from tests.pgwf.racing import Racer
from tests.support import outcome

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support import Clock

pytestmark = pytest.mark.own_session  # The process that is stopped must be the session's own.

HOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "extend_lease": ({}, "ACTIVE"),
    "complete_job": ({}, "completed"),
    "reschedule_job": ({"next_need": "python"}, "READY"),
    "release_job": ({}, "READY"),
}
ENDS = {"commit prepared 'x'": True, "rollback prepared 'x'": False}


@contextmanager
def stopped(racer: Racer) -> Generator[None]:
    """The session's server process gets no time at all, like one whose machine is suspended."""
    os.kill(racer.session.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(racer.session.pid, signal.SIGCONT)


def prepare(racer: Racer) -> None:
    racer.session.run("prepare transaction 'x'")


def begin_quietly(racer: Racer) -> None:
    """PostgreSQL prepares no transaction that notifies."""
    racer.session.run("set pgwf.notify = off")
    racer.begin()


@pytest.mark.parametrize("function", HOLDERS)
def test_nobody_takes_a_job_over_while_its_holder_is_stopped_before_its_commit(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str
) -> None:
    arguments, status = HOLDERS[function]
    pgwf.submit("a", singleton_key="K")
    pgwf.submit("b", "gpu", singleton_key="K")
    lease = pgwf.take(seconds=60)
    clock.advance(seconds=61)
    holder, other = racers
    holder.begin()
    holder.call(function, **held(lease), **arguments)
    with stopped(holder):
        committing = holder.session.start("commit")

        assert other.sweep() == 0
        assert other.claim("python", "gpu") == []
        assert not committing.done()

    committing.result()
    assert pgwf.status("a") == status


@pytest.mark.parametrize("function", HOLDERS)
def test_a_holder_that_was_stopped_before_its_call_finds_its_lease_lost(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], function: str
) -> None:
    arguments, _ = HOLDERS[function]
    pgwf.submit("a")
    lease = pgwf.take(seconds=60)
    holder, other = racers
    with stopped(holder):
        calling = holder.start(function, **held(lease), **arguments)
        clock.advance(seconds=61)
        assert other.sweep() == 1
        assert other.claim() == ["a"]

    assert outcome(calling) == "WF002"
    assert pgwf.status("a") == "ACTIVE"


@pytest.mark.parametrize(("end", "takes_effect"), ENDS.items())
def test_a_prepared_completion_keeps_its_lease_and_its_waiter_until_it_is_decided(
    pgwf: Leasing, clock: Clock, racers: tuple[Racer, Racer], end: Any, takes_effect: bool
) -> None:
    pgwf.submit("a", "gpu")
    pgwf.submit("b", wait_for=["a"])
    lease = pgwf.take("gpu", seconds=60)
    holder, other = racers
    begin_quietly(holder)
    holder.call("complete_job", **held(lease))
    prepare(holder)
    clock.advance(seconds=61)

    assert other.sweep() == 0
    assert other.claim("python", "gpu") == []
    cancelling = other.start_blocked("cancel_job", job_id="a", worker_id="operator")
    holder.session.run(end)

    assert (outcome(cancelling) == "WF010") == takes_effect
    pgwf.sweep()
    assert job_ids(pgwf.get_work("python", "gpu", limit=5)) == ["b"]
    assert pgwf.status("a") == ("completed" if takes_effect else "cancelled")


@pytest.mark.parametrize(("end", "takes_effect"), ENDS.items())
def test_a_prepared_claim_keeps_its_job_and_its_key_until_it_is_decided(
    pgwf: Leasing, racers: tuple[Racer, Racer], end: Any, takes_effect: bool
) -> None:
    pgwf.submit("a", singleton_key="K")
    pgwf.submit("b", singleton_key="K")
    pgwf.submit("c")
    claimer, other = racers
    begin_quietly(claimer)
    lease = claimer.take()
    prepare(claimer)

    assert other.claim() == ["c"]
    claimer.session.run(end)

    if takes_effect:
        assert pgwf.get_work(limit=5) == []
        pgwf.complete(lease)
        assert job_ids(pgwf.get_work(limit=5)) == ["b"]
    else:
        assert job_ids(pgwf.get_work(limit=5)) == ["a"]


@pytest.mark.parametrize(("end", "takes_effect"), ENDS.items())
def test_a_prepared_submission_takes_its_id_only_if_it_is_committed(
    pgwf: Leasing, racers: tuple[Racer, Racer], end: Any, takes_effect: bool
) -> None:
    one, two = racers
    begin_quietly(one)
    one.call("submit_job", job_id="a", worker_id="c", next_need="python")
    prepare(one)

    submitting = two.start_blocked("submit_job", job_id="a", worker_id="c", next_need="gpu")
    one.session.run(end)

    assert (outcome(submitting) == "23505") == takes_effect
    assert pgwf.job("a")["next_need"] == ("python" if takes_effect else "gpu")


# Those that may be called at any isolation level: they decide by one statement, or change nothing others decide by.
ANYWHERE = {"submit_job", "submit_jobs", "check", "overdue", "next_wakeup", "wake_up", "set_trace", "set_notify"}
ANYWHERE |= {"wake_next", "set_priority_aging", "set_expired_grace", "set_worker_grace"}


def test_every_other_function_refuses_a_caller_whose_snapshot_is_older_than_what_it_locks(pgwf: Leasing) -> None:
    functions = pgwf.rows(
        """
        select p.proname as name, string_agg('null::' || format_type(a.type, null), ', ' order by a.ord) as nulls
        from pg_proc as p
        left join unnest(p.proargtypes) with ordinality as a(type, ord) on true
        where p.pronamespace = 'pgwf'::regnamespace
          and p.proname not like '\\_%'
          and p.provolatile = 'v'
        group by p.oid, p.proname
        order by p.proname
        """
    )
    assert len(functions) > 25

    answered = set()
    for function in functions:
        for level in ("repeatable read", "serializable"):
            pgwf.conn.execute(f"begin isolation level {level}")
            try:
                pgwf.conn.execute(f"select * from pgwf.{function['name']}({function['nulls'] or ''})")
            except psycopg.Error as error:
                if error.sqlstate != "WF020":
                    answered.add(function["name"])
            else:
                answered.add(function["name"])
            pgwf.conn.execute("rollback")

    assert answered == ANYWHERE
