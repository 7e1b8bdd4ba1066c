"""The examples tested as their users would: without waiting, with mocks, and with the worker killed everywhere."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from examples.approval import Approve, Reject, pay, transfer
from examples.hello import greet, say
from examples.licence_audit.review import AcceptAll
from examples.licence_audit.workflow import REVIEW_NEED, audit, classify
from examples.transfer_in_transaction import ORDERS, book, pack, ship
from tests.examples.distributions import install, text

if TYPE_CHECKING:
    from examples.licence_audit.report import Written
    from pgwf_sdk.testing import Environment


def test_hello_pauses_between_its_greetings_and_a_crash_changes_nothing(pgwf_env: Environment) -> None:
    def shout(text: str) -> str:
        return text.upper()

    said = pgwf_env.mock(say, shout)
    run = pgwf_env.start(greet("Ada"))
    assert [call.args for call in said.calls] == [("Hello, Ada",)]

    pgwf_env.advance(timedelta(seconds=5))

    assert pgwf_env.result(run) == ["HELLO, ADA", "GOODBYE, ADA"]
    report = pgwf_env.crash_everywhere(greet("Ada"))
    assert len(report.cuts) == 2 * report.append_count >= 6


def test_a_payment_that_nobody_approves_within_three_days_is_not_made(pgwf_env: Environment) -> None:
    run = pgwf_env.start(pay("A-17", 250_000))
    pgwf_env.advance(timedelta(days=3) - timedelta(seconds=1))
    (task,) = pgwf_env.client.human.list(need="human.payments")
    assert (task.title, run.status()) == ("Pay 2500.00 for A-17?", "waiting")

    pgwf_env.advance(timedelta(seconds=1))

    assert pgwf_env.result(run) == "not paid: nobody decided in time"


@pytest.mark.parametrize(
    ("answer", "amounts", "ends"),
    [(Approve(200_000), [("A-17", 200_000)], "paid, once"), (Reject("a duplicate"), [], "not paid: a duplicate")],
)
def test_a_payment_is_made_as_it_was_approved_wherever_the_worker_is_killed(
    pgwf_env: Environment, answer: Approve | Reject, amounts: list[tuple[str, int]], ends: str
) -> None:
    made = set[tuple[str, int]]()

    def pay_once(order: str, cents: int) -> str:
        made.add((order, cents))
        return "paid, once"

    if amounts:
        pgwf_env.mock(transfer, pay_once)

    def story(env: Environment) -> str:
        run = env.start(pay("A-17", 250_000))
        (task,) = env.client.human.list()
        env.client.human.decide(task.task_id, answer, by="ada")
        return env.result(run)

    assert len(pgwf_env.crash_everywhere(story).cuts) >= 6
    assert story(pgwf_env) == ends
    assert sorted(made) == amounts


def test_an_order_that_is_not_booked_is_not_shipped(pgwf_env: Environment) -> None:
    packed = pgwf_env.mock(pack, returns="packed with care")
    with psycopg.connect(pgwf_env.dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        book(pgwf_env.client, connection, "B-1", "teapot", 1)
        with pytest.raises(psycopg.errors.CheckViolation):
            book(pgwf_env.client, connection, "B-2", "teapot", -1)

    run = pgwf_env.client.get("ship-B-1", ship)

    assert pgwf_env.result(run) == "packed with care"
    assert [call.run_id for call in packed.calls] == ["ship-B-1"]
    assert len(pgwf_env.client.list()) == 1


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two distributions, of which one raises a question."""
    install(tmp_path / "site", "mild", headers=("License-Expression: MIT",), files={"LICENSE": text("MIT")})
    install(tmp_path / "site", "strong", headers=("License-Expression: GPL-3.0-only",))
    return tmp_path / "site"


def test_an_audit_waits_a_week_for_its_reviewer_and_writes_one_report_wherever_its_worker_is_killed(
    pgwf_env: Environment, site: Path, tmp_path: Path
) -> None:
    def story(env: Environment) -> Written:
        run = env.start(audit(str(site), str(tmp_path / "reports")), run_id="audit")
        env.advance(timedelta(days=7))
        (task,) = env.client.human.list(need=REVIEW_NEED)
        env.client.human.decide(task.task_id, AcceptAll("we publish our source"), by="ada")
        return env.result(run)

    written = story(pgwf_env)
    report = pgwf_env.crash_everywhere(story, now=pgwf_env.now(), cuts_max=12)

    assert len(report.cuts) >= 8
    assert "we publish our source" in Path(written.markdown).read_text()
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == ["report.json", "report.md"]


def test_a_distribution_that_cannot_be_classified_is_a_finding_and_the_audit_goes_on(
    pgwf_env: Environment, site: Path, tmp_path: Path
) -> None:
    broken = pgwf_env.mock(classify, outcomes=[OSError("no space left on device")] * 8)
    run = pgwf_env.start(audit(str(site), str(tmp_path / "reports")))
    pgwf_env.advance(timedelta(hours=1))

    (task,) = pgwf_env.client.human.list(need=REVIEW_NEED)

    assert sorted(call.attempt for call in broken.calls) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert task.title == f"2 licences to review in {site}"
    run.cancel()
