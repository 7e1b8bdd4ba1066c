"""Questions to people over days: claims that run out, deadlines that escalate, answers that fit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import (
    AsyncContext,
    Context,
    DefinitionError,
    InvalidArgumentError,
    TaskNotHeldError,
    TaskUnavailableError,
    ops,
    workflow,
)
from pgwf_sdk.cli._app import run_command
from pgwf_sdk.testing import ReplayDifferenceError

if TYPE_CHECKING:
    from pgwf_sdk import Workflow
    from pgwf_sdk.testing import Environment

HOUR = timedelta(hours=1)


@dataclass
class Verdict:
    approved: bool
    reason: str = ""


@workflow
def payment(ctx: Context, cents: int) -> str:
    decision = ctx.human("release", {"cents": cents}, Verdict, need="human.risk", due=4 * HOUR, escalate="human.lead")
    return f"{decision.by}: {decision.value.approved} {decision.value.reason}"


@workflow(name="payment")
async def async_payment(ctx: AsyncContext, cents: int) -> str:
    decision = await ctx.human(
        "release", {"cents": cents}, Verdict, need="human.risk", due=4 * HOUR, escalate="human.lead"
    )
    return f"{decision.by}: {decision.value.approved} {decision.value.reason}"


def audit(env: Environment, task_id: str) -> list[tuple[Any, ...]]:
    """What happened to the task's seat: what, by whom, and what it needed afterwards."""
    with psycopg.connect(env.dsn) as conn:
        return conn.execute(
            """
            select event_type, worker_id, output_data ->> 'next_need' from pgwf.jobs_trace
            where job_id = %s and event_type <> 'submit_job' order by trace_id
            """,
            [task_id],
        ).fetchall()


def open_tasks(env: Environment, need: str) -> list[tuple[str, str | None]]:
    return [(task.state, task.holder) for task in ops.list_tasks(env.client, need=need)]


@pytest.mark.parametrize("flow", [payment, async_payment], ids=["def", "async def"])
def test_h01_a_task_is_claimed_given_back_by_time_escalated_and_decided_with_a_typed_payload_all_on_record(
    env: Environment, flow: Workflow[[int], str]
) -> None:
    run = env.start(flow(900_000))
    (task,) = env.client.human.list(need="human.risk")
    before = len(env.journal(run))
    human = env.client.human

    human.claim(task.task_id, by="ann", duration=HOUR)
    with pytest.raises(TaskUnavailableError, match="ann holds it"):
        human.claim(task.task_id, by="ben")
    env.advance(HOUR)
    assert open_tasks(env, "human.risk") == [("open", None)], "her claim ran out, and it is in the pool again"
    with pytest.raises(TaskNotHeldError, match="nobody holds it"):
        human.release(task.task_id, by="ann")

    human.claim(task.task_id, by="ben", duration=5 * HOUR)
    env.advance(4 * HOUR)
    assert open_tasks(env, "human.risk") == [("claimed", "ben")], "it is overdue, and his while he holds it"
    env.advance(HOUR)
    assert (open_tasks(env, "human.risk"), open_tasks(env, "human.lead")) == ([], [("open", None)])

    for wrong in ("perhaps", True, {"approved": "true"}, {"reason": "none"}, Verdict("yes"), None):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="nothing was decided"):
            human.decide(task.task_id, wrong, by="lia")
    for payload in (b"perhaps", b"{", b""):
        with pytest.raises(InvalidArgumentError, match="the value is not JSON"):
            ops.decide_json(env.client, task.task_id, payload, by="lia")
    assert open_tasks(env, "human.lead") == [("open", None)], "what is refused changes nothing"
    assert len(env.journal(run)) == before, "claims and deadlines are no business of the journal's"
    human.decide(task.task_id, Verdict(approved=True, reason="known customer"), by="lia")

    assert env.result(run) == "lia: True known customer"
    decided = ops.get_task(env.client, task.task_id)
    assert (decided.first_need, decided.need, decided.state, decided.decided_by) == (
        "human.risk", "human.lead", "decided", "lia",
    )  # fmt: skip
    assert decided.escalated_at == task.created_at + 6 * HOUR
    moves = audit(env, task.task_id)
    (worker,) = {who for event, who, _ in moves if event == "lease_lapsed"}
    assert worker.startswith("test-")
    assert moves == [
        ("lease_job", "human:ann", None),
        ("lease_lapsed", worker, None),
        ("lease_job", "human:ben", None),
        ("lease_lapsed", worker, None),
        ("reschedule_job", worker, "human.lead"),
        ("complete_job", "human:lia", "human.lead"),
    ]


@dataclass
class Refund:
    amount: Decimal


@workflow
def refund(ctx: Context) -> Decimal:
    return ctx.human("refund", "?", Refund, need="human.risk").value.amount


def test_a_decision_from_sql_is_read_by_the_type_and_one_that_it_cannot_read_blocks_its_run(env: Environment) -> None:
    def decided_in_sql(run_id: str, value: bytes) -> None:
        env.start(refund(), run_id=run_id)
        (task,) = env.client.human.list()
        schema = json.loads(ops.get_task(env.client, task.task_id).decision_schema or "")
        assert schema["$defs"]["Refund"]["properties"]["amount"]["type"] == "string"
        with psycopg.connect(env.dsn, autocommit=True) as conn:
            conn.execute("select pgwf_sdk.decide_task(%s, 'ann', %s, 1)", [task.task_id, value])
        env.settle()

    decided_in_sql("number", b'{"amount": 12.5}')
    decided_in_sql("text", b'{"amount": "12.5"}')
    with pytest.raises(ReplayDifferenceError, match="pgwf fork wrong --before '/human:refund#1'"):
        decided_in_sql("wrong", b'{"amount": "much"}')

    # The schema asks for a text, the type reads a number too: a check by the schema would be another one.
    assert [env.client.get(run_id, refund).result() for run_id in ("number", "text")] == [Decimal("12.5")] * 2
    assert env.client.get("wrong").status() == "blocked"


def test_a_deadline_hands_the_question_to_a_second_person(env: Environment) -> None:
    run = env.start(payment(900_000))
    env.advance(4 * HOUR)
    (task,) = env.client.human.list(need="human.lead")
    env.client.human.decide(task.task_id, Verdict(approved=False, reason="too late"), by="lia")

    assert env.result(run) == "lia: False too late"


def test_many_deadlines_at_one_instant_are_all_kept(env: Environment) -> None:
    @workflow
    def many(ctx: Context) -> int:
        def ask(branch: Context) -> str:
            return branch.human("sure", "?", str, need="human.risk", due=HOUR, escalate="human.lead").value

        return len(ctx.parallel(*[ask] * 600))

    env.start(many())
    env.advance(HOUR)

    assert len(env.client.human.list(need="human.lead", limit=1000)) == 600
    assert env.client.human.list(need="human.risk") == ()


def test_a_task_that_is_handed_on_is_shown_so_wherever_it_is_shown(
    env: Environment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGWF_DSN", env.dsn)

    def said(*arguments: str) -> str:
        assert run_command(arguments) == 0
        return capfd.readouterr().out

    run = env.start(payment(900_000), run_id="payment-1")
    (task,) = env.client.human.list()
    assert "then human.lead" in said("human", "show", task.task_id)
    assert "due in 4h 0m, and goes to 'human.lead' then, unless somebody holds it" in said("why", run.run_id)
    env.client.human.claim(task.task_id, by="ann", duration=5 * HOUR)
    env.advance(4.5 * HOUR)
    assert "overdue by 30m 0s, and goes to 'human.lead' when it is given back" in said("why", run.run_id)

    env.client.human.release(task.task_id, by="ann")
    env.advance(HOUR)

    assert "human.lead (first human.risk)" in said("human", "list")
    shown = said("human", "show", task.task_id)
    assert "need    human.lead (first human.risk)" in shown
    assert f"handed on {task.created_at + 4.5 * HOUR:%Y-%m-%d %H:%M:%S UTC}" in shown
    assert "handed on from 'human.risk' to 'human.lead' 1h 0m ago" in said("why", run.run_id)
    assert "human release" in (drawn := said("show", run.run_id))
    assert "open to human.lead since 1h 0m" in drawn


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"escalate": "human.lead"}, "escalate='human.lead' without due; say when"),
        ({"escalate": "lead", "due": HOUR}, "escalate 'lead'; expected one that begins with 'human.'"),
        ({"escalate": "human.risk", "due": HOUR}, "escalate='human.risk' is its need; expected another one"),
        ({"on_expire": "yes"}, "on_expire without expires; say when it is to count"),
        ({"escalate": "human." + "x" * 600, "due": HOUR}, "escalate of human task 'sure'"),
    ],
)
def test_what_cannot_be_at_a_deadline_is_refused_where_it_is_asked_for(
    env: Environment, options: dict[str, Any], complaint: str
) -> None:
    @workflow
    def asking(ctx: Context) -> str:
        with pytest.raises(DefinitionError, match=re.escape(complaint)):
            ctx.human("sure", "?", str, need="human.risk", **options)
        return "refused"

    @workflow
    async def async_asking(ctx: AsyncContext) -> str:
        with pytest.raises(DefinitionError, match=re.escape(complaint)):
            await ctx.human("sure", "?", str, need="human.risk", **options)
        return "refused"

    assert [env.run(asking()), env.run(async_asking())] == ["refused"] * 2
    assert env.client.human.list() == ()
