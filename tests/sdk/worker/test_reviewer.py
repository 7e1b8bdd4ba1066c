"""Bots that decide for people: through claims as people's, leaving to people what they do not decide."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncClient, Client, Context, workflow
from tests.sdk.worker.conftest import StartWorker
from tests.support import wait_until

if TYPE_CHECKING:
    from pgwf_sdk.ops import TaskSummary

SOON = timedelta(seconds=30)
MOMENT = timedelta(milliseconds=20)


@workflow
def ask(ctx: Context, cents: int, name: str = "release", exclude: list[str] | None = None) -> str:
    decision = ctx.human(name, {"cents": cents}, bool, need="human.risk", exclude=exclude or [])
    return f"{decision.by}: {decision.value}"


def small_only(task: TaskSummary) -> bool | None:
    """Release what is small, leave the rest to people, break on nonsense."""
    cents = json.loads(task.subject or "{}")["cents"]
    if cents < 0:
        raise ValueError(cents)
    return True if cents < 1000 else None


def open_tasks(client: Client) -> list[int]:
    return sorted(json.loads(task.subject or "{}")["cents"] for task in client.human.list(need="human.risk"))


def test_a_bot_decides_what_it_can_and_leaves_the_rest_open_for_people(
    client: Client, start_worker: StartWorker
) -> None:
    start_worker(ask)
    runs = {cents: client.start(ask(cents)) for cents in (1, 999, 1000, -5)}
    wait_until(lambda: len(open_tasks(client)) == 4, "the questions are there")
    bot = client.human.reviewer("human.risk", small_only, by="bot:risk")

    assert bot.look() == 2
    assert bot.look() == 0, "what it left to people it does not take again"

    assert [runs[cents].result(SOON) for cents in (1, 999)] == ["bot:risk: True"] * 2
    assert open_tasks(client) == [-5, 1000]
    for task in client.human.list(need="human.risk"):
        client.human.decide(task.task_id, False, by="ann")
    assert runs[1000].result(SOON) == "ann: False"


def test_a_bot_does_not_touch_what_others_hold_or_what_is_not_for_it(client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)
    client.start(ask(1))
    client.start(ask(2, "other", ["bot:risk"]))
    wait_until(lambda: len(open_tasks(client)) == 2, "the questions are there")
    (held,) = [task for task in client.human.list(need="human.risk") if json.loads(task.subject or "{}")["cents"] == 1]
    client.human.claim(held.task_id, by="ann")

    assert client.human.reviewer("human.risk", small_only, by="bot:risk").look() == 0

    assert [task.holder for task in client.human.list(need="human.risk", states=["claimed"])] == ["ann"]


def test_while_a_bot_thinks_nobody_else_takes_the_task(client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)
    run = client.start(ask(5))
    wait_until(lambda: open_tasks(client) == [5], "the question is there")
    seen: list[Any] = []

    def think(task: TaskSummary) -> bool:
        seen.extend(client.human.list(need="human.risk", states=["claimed"]))
        return task.name == "release"

    assert client.human.reviewer("human.risk", think, by="bot:risk").look() == 1
    assert [task.holder for task in seen] == ["bot:risk"]
    assert run.result(SOON) == "bot:risk: True"


def test_a_bot_goes_on_until_it_is_stopped(client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)
    bot = client.human.reviewer("human.risk", small_only, by="bot:risk", poll=MOMENT)
    running = threading.Thread(target=bot.run)
    running.start()
    try:
        assert client.start(ask(1)).result(SOON) == "bot:risk: True"
        assert client.start(ask(2)).result(SOON) == "bot:risk: True"
    finally:
        bot.stop()
        running.join(10)
    assert not running.is_alive()


def test_an_async_bot_does_the_same(dsn: str, client: Client, start_worker: StartWorker) -> None:
    start_worker(ask)

    async def review() -> list[str]:
        async def think(task: TaskSummary) -> bool | None:
            await asyncio.sleep(0)
            return small_only(task)

        async with AsyncClient(dsn) as other:
            bot = other.human.reviewer("human.risk", think, by="bot:async", poll=MOMENT)
            running = asyncio.create_task(bot.run())
            runs = [await other.start(ask(cents)) for cents in (1, -5, 2)]
            found = [await runs[0].result(SOON), await runs[2].result(SOON)]
            bot.stop()
            await running
            assert await other.human.reviewer("human.risk", small_only, by="bot:sync").look() == 0
            return found

    assert asyncio.run(review()) == ["bot:async: True"] * 2
    assert open_tasks(client) == [-5]


def test_a_number_is_no_pace(client: Client) -> None:
    with pytest.raises(TypeError, match=r"reviewer\(poll=…\): found 3"):
        client.human.reviewer("human.risk", small_only, poll=3)  # type: ignore[arg-type]
