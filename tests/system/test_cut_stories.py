"""The worker's hot connection is cut at each of its statements, in runs that do everything a run can do.

What `test_cut_connections.py` shows for the plain things holds for these too: retries, deferred steps, steps side by
side, steps that begin at most once, attached runs, maps of children, visits to another fleet, promises, people's
decisions, successors, attributes and compensations.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import Client, Context, RetryPolicy, RunFailedError, Sealing, Worker, step, workflow
from tests.support import short_folder, wait_until
from tests.system.proxy import Proxy, When

if TYPE_CHECKING:
    from collections.abc import Iterator

Conn = psycopg.Connection[Any]
SOON = timedelta(seconds=60)
LEASE = timedelta(seconds=6)
STATEMENTS_MAX = 60
HOT = "pgwf worker"

executed: Counter[str] = Counter()
tokens: dict[str, str] = {}


@step
def work(name: str) -> str:
    executed[name] += 1
    return name


@step(durability="deferred")
def compute(name: str) -> str:
    return name


@step(retry=RetryPolicy(max_attempts=2, initial=timedelta(0)))
def fail_once(name: str) -> str:
    executed[name] += 1
    if executed[name] == 1:
        raise OSError("once")
    return name


@step(at_most_once=True)
def charge(name: str) -> str:
    executed[name] += 1
    return name


@step(need="gpu")
def render(name: str) -> str:
    executed[name] += 1
    return name


@step
def give_away(name: str, token: str) -> None:
    tokens[name] = token


@step
def take_back(name: str) -> None:
    executed[f"{name} taken back"] += 1


@workflow
def part(ctx: Context, name: str) -> str:
    return ctx.step(work, name)


@workflow
def story(ctx: Context, name: str, found: list[str]) -> list[str]:
    if not found:
        found = [ctx.step(compute, f"{name}/computed"), ctx.step(fail_once, f"{name}/failed")]
        found += ctx.map(work, [f"{name}/left", f"{name}/right"])
        found.append(ctx.step(charge, f"{name}/charged"))
        found.append(ctx.attach(f"{name}/other", part))
        found += ctx.map(part, [f"{name}/part-1", f"{name}/part-2"])
        found.append(ctx.step(render, f"{name}/rendered"))
        promise = ctx.awakeable(str)
        ctx.step(give_away, name, promise.token)
        found.append(promise.wait())
        found.append(str(ctx.human("approve", name, bool, need="human.x").value))
        ctx.continue_as_new(story(name, found))
    ctx.set_attribute("stage", "second")
    return [*found, ctx.step(compute, f"{name}/again"), ctx.step(work, f"{name}/last")]


@workflow
def saga(ctx: Context, name: str) -> None:
    ctx.step(work.options(undo=take_back), f"{name}/first")
    ctx.step(work.options(undo=take_back), f"{name}/second")
    raise ValueError("nothing of it is to stay")


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    with short_folder() as folder, Proxy(dsn, folder) as proxy:
        yield proxy


def decided(client: Client) -> bool:
    """Whether there was a question, which is decided now."""
    for task in client.human.list():
        client.human.decide(task.task_id, True, by="ann")
        return True
    return False


def live_story(client: Client, name: str) -> None:
    client.start(part(f"{name}/other"), run_id=f"{name}/other")
    run = client.start(story(name, []), run_id=name)
    client.complete_awakeable(wait_until(lambda: tokens.get(name, ""), "the token is given away"), "woken")
    wait_until(lambda: decided(client), "somebody is asked")

    places = ["computed", "failed", "left", "right", "charged", "other", "part-1", "part-2", "rendered"]
    ends = [f"{name}/again", f"{name}/last"]
    assert run.result(timeout=SOON) == [*(f"{name}/{place}" for place in places), "woken", "True", *ends]


def live_saga(client: Client, name: str) -> None:
    with pytest.raises(RunFailedError, match="nothing of it is to stay"):
        client.start(saga(name), run_id=name).result(timeout=SOON)
    assert executed[f"{name}/first taken back"] == executed[f"{name}/second taken back"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("live", "sealing"),
    [(live_story, None), (live_saga, None), (live_saga, Sealing({"k1": bytes(32)}))],
    ids=["story", "saga", "sealed saga"],
)
def test_whatever_a_run_does_it_ends_as_if_no_statement_had_been_cut(
    proxy: Proxy, dsn: str, db: Conn, live: Any, sealing: Sealing | None, when: When
) -> None:
    executed.clear()
    tokens.clear()
    with Client(dsn, sealing=sealing) as starter, Client(proxy.dsn, sealing=sealing) as client:
        for number in range(1, STATEMENTS_MAX):
            worker = Worker(
                client,
                workflows=[story, part, saga],
                capabilities=["gpu"],
                lease=LEASE,
                poll=timedelta(milliseconds=200),
            )
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            wait_until(lambda: db.execute("select from pgwf.sleeper").rowcount, "the worker sleeps")
            proxy.cut_at(HOT, number, when)

            live(starter, f"run-{number}")

            worker.stop()
            thread.join(30)
            assert not thread.is_alive()
            if not proxy.has_cut.is_set():
                break
        else:
            raise AssertionError(f"more than {STATEMENTS_MAX} statements for one run")

    assert number > 1
    assert {name: count for name, count in executed.items() if count != 1 + name.endswith("/failed")} == {}
    doubled = "select n, key, phase from pgwf_journal.entries group by 1, 2, 3 having count(*) > 1"
    assert db.execute(doubled).fetchall() == []
    assert db.execute("select run_id from pgwf_sdk.runs where lapses > 0").fetchall() == []
    assert db.execute("select * from pgwf.check()").fetchall() == []
