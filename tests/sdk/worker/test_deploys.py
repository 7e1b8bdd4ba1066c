"""Changes of code while runs are open, and runs that are set going again after a deploy, a failure, or from a point."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import Client, Context, RetryPolicy, RunFailedError, current_step, ops, step, workflow
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from uuid import UUID

    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=20)


@step
def double(x: int) -> int:
    return 2 * x


def test_code_that_no_longer_fits_the_journal_blocks_the_run_until_a_deploy_mends_it(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    @step
    def triple(x: int) -> int:
        return 3 * x

    @workflow(name="changing")
    def first_version(ctx: Context) -> int:
        x = ctx.step(double, 1)
        ctx.wait_signal("go", int)
        return ctx.step(double, x)

    @workflow(name="changing")
    def renamed(ctx: Context) -> int:
        x = ctx.step(triple, 1)
        ctx.wait_signal("go", int)
        return ctx.step(double, x)

    old = start_worker(first_version, build="b41")
    run = client.start(first_version())
    wait_for_status(run, "waiting")
    old.stop()

    broken = start_worker(renamed, build="b42")
    client.signal(run.run_id, "go", 1)
    wait_for_status(run, "blocked")
    report = db.execute("select report from pgwf_sdk.blocked").fetchone()
    assert report is not None
    assert report[0]["expected"]["key"] == "/step:double#1"
    assert report[0]["actual"]["key"] == "/step:triple#1"
    first_line = first_version.fn.__code__.co_firstlineno
    assert report[0]["expected"]["source"] == f"{__file__}:{first_line + 2}"
    assert report[0]["actual"]["source"] == f"{__file__}:{renamed.fn.__code__.co_firstlineno + 2}"
    assert (report[0]["expected"]["build"], report[0]["build"]) == ("b41", "b42")
    assert f"recorded:  /step:double#1 at {__file__}:{first_line + 2} by build b41" in report[0]["text"]
    broken.stop()

    start_worker(first_version)
    assert client.resume(run.run_id) == "resumed"
    assert run.result(timeout=SOON) == 4


@pytest.mark.parametrize("kind", ["signal", "promise"])
def test_a_run_that_was_sent_a_wrong_value_goes_on_as_a_fork_from_the_key_that_its_report_names(
    client: Client, start_worker: StartWorker, db: Connection[Any], kind: str
) -> None:
    tokens: list[str] = []

    @step
    def tell(token: str) -> None:
        tokens.append(token)

    @workflow
    def asking(ctx: Context) -> int:
        if kind == "signal":
            return ctx.wait_signal("go", int)
        promise = ctx.awakeable(int)
        ctx.step(tell, promise.token)
        return promise.wait()

    def answer(run_id: str, value: object) -> None:
        if kind == "signal":
            client.signal(run_id, "go", value)
        else:
            client.complete_awakeable(tokens[-1], value)

    start_worker(asking)
    run = client.start(asking(), run_id="typo")
    wait_for_status(run, "waiting")
    answer(run.run_id, "nine")
    wait_for_status(run, "blocked")

    row = db.execute("select report from pgwf_sdk.blocked").fetchone()
    assert row is not None
    named = re.search("pgwf fork typo --before '([^']+)'", row[0]["fixes"][0])
    assert named is not None
    why = ops.why_not_running(client, run.run_id)
    assert "pgwf terminate typo" in why
    assert "deployed code" not in why
    assert "first difference" not in why
    assert "not recorded" not in why

    forked = client.fork("typo", asking, before=named[1])
    wait_for_status(forked, "waiting")
    answer(forked.run_id, 9)
    assert forked.result(timeout=SOON) == 9
    assert client.terminate(run.run_id) == "terminated"


def test_a_failed_run_is_retried_from_the_step_that_failed(client: Client, start_worker: StartWorker) -> None:
    calls: list[str] = []
    is_mended = False

    @step
    def paid() -> str:
        calls.append("paid")
        return "receipt"

    @step(retry=RetryPolicy(max_attempts=1))
    def shipped() -> str:
        calls.append("shipped")
        if not is_mended:
            raise OSError("no truck")
        return "parcel"

    @workflow
    def order(ctx: Context) -> str:
        return f"{ctx.step(paid)} and {ctx.step(shipped)}"

    start_worker(order)
    with pytest.raises(RunFailedError):
        client.start(order(), run_id="o").result(timeout=SOON)
    is_mended = True

    again = client.retry("o", order)

    assert again.run_id == "o~2"
    assert again.result(timeout=SOON) == "receipt and parcel"
    assert calls == ["paid", "shipped", "shipped"]


def test_a_forked_run_executes_again_what_stands_behind_the_entry_with_other_idempotency_keys(
    client: Client, start_worker: StartWorker
) -> None:
    calls: list[tuple[str, UUID]] = []

    @step
    def reserve() -> str:
        calls.append(("reserve", current_step().idempotency_key))
        return "seat"

    @step
    def charge() -> str:
        calls.append(("charge", current_step().idempotency_key))
        return "paid"

    @workflow
    def order(ctx: Context) -> str:
        number = ctx.random.randrange(1_000_000)
        return f"{ctx.step(reserve)} {number} {ctx.step(charge)}"

    start_worker(order)
    source = client.start(order(), run_id="o")
    said = source.result(timeout=SOON)

    price = client.fork_price("o", before="/step:charge#1")
    forked = source.fork(before="/step:charge#1", run_id="o-again")

    assert (price.steps_again, price.entry_count) == (("/step:charge#1",), 2)
    assert forked.created
    assert forked.result(timeout=SOON) == said
    assert [name for name, _ in calls] == ["reserve", "charge", "charge"]
    assert len({key for _, key in calls}) == 3


def test_runs_blocked_by_a_deploy_all_complete_after_the_mended_one(client: Client, start_worker: StartWorker) -> None:
    def version(*, is_broken: bool) -> Any:
        @workflow(name="changing")
        def changing(ctx: Context, x: int) -> int:
            if is_broken:
                ctx.step(double.options(name="surprise"), x)
            x = ctx.step(double, x)
            ctx.wait_signal("go", int)
            return x

        return changing

    count = 12
    old = start_worker(version(is_broken=False))
    runs = [client.start(version(is_broken=False)(number), run_id=f"r{number}") for number in range(count)]
    for run in runs:
        wait_for_status(run, "waiting")
    old.stop()
    broken = start_worker(version(is_broken=True))
    for run in runs:
        run.signal("go", 1)
    wait_until(lambda: len(client.list(statuses=["blocked"])) == count, "the runs are blocked")
    broken.stop()

    start_worker(version(is_broken=False))
    assert client.resume_all(workflow="other") == 0
    assert client.resume_all(workflow="changing") == count

    assert [run.result(timeout=SOON) for run in runs] == [2 * number for number in range(count)]
