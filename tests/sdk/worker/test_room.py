"""What a worker asks for: never more than it has room for, by capability and in all; and not what it cannot execute."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import AsyncContext, Client, Context, Worker, step, workflow
from pgwf_sdk._errors import DefinitionError
from pgwf_sdk.worker._room import REST_SECONDS, Occupant, Room
from tests.support import wait_until

if TYPE_CHECKING:
    from psycopg import Connection

    from tests.sdk.worker.conftest import StartWorker

SOON = timedelta(seconds=60)


def guest(current_need: str, **steps: int) -> Occupant:
    """A run in a worker."""
    return Occupant(current_need, lambda need: steps.get(need, 0))


def room_of(*guests: Occupant, concurrency: int = 10, limits: dict[str, int] | None = None) -> Room:
    return Room(
        ["gpu", "gpu@b", "python"],
        concurrency=concurrency,
        limits=limits or {},
        build="b",
        occupied_count=lambda: len(guests),
        occupants=lambda: guests,
    )


def test_without_limits_everything_offered_is_asked_for_up_to_the_free_places() -> None:
    staying, leaving = guest("python"), guest("python")
    room = room_of(staying, leaving, concurrency=3)

    assert room.free() == (["gpu", "gpu@b", "python"], 1)
    assert room.free([leaving]) == (["gpu", "gpu@b", "python"], 2)


def test_no_more_is_asked_for_than_the_tightest_limit_has_room_for() -> None:
    assert room_of(guest("gpu"), limits={"gpu": 3}).free() == (["gpu", "gpu@b", "python"], 2)


@pytest.mark.parametrize("visitor", [guest("gpu"), guest("gpu@b"), guest("python", gpu=1)])
def test_what_has_no_room_is_not_asked_for_until_its_user_leaves(visitor: Occupant) -> None:
    room = room_of(visitor, limits={"gpu": 1})

    assert room.free() == (["python"], 9)
    assert room.free([visitor]) == (["gpu", "gpu@b", "python"], 1)


def test_a_run_that_was_handed_over_for_a_capability_takes_one_place_with_its_first_step() -> None:
    visitor = guest("gpu")
    assert room_of(visitor, limits={"gpu": 1}).offers("gpu", visitor)

    visitor = guest("gpu", gpu=1)
    assert not room_of(visitor, limits={"gpu": 1}).offers("gpu", visitor)
    assert room_of(visitor, limits={"gpu": 2}).offers("gpu@b", visitor)


def test_what_is_not_offered_is_done_elsewhere_whatever_room_there_is() -> None:
    visitor = guest("python")

    assert not room_of(visitor).offers("trucks", visitor)
    assert room_of(visitor).offers("gpu", visitor)


def test_a_need_that_brought_a_stranger_rests_and_the_stranger_is_held_back_longer_each_time() -> None:
    async def scenario() -> None:
        changed = asyncio.Event()
        room = room_of()
        room.changed = changed.set

        delays = [room.turn_away(7, "python").total_seconds() for _ in range(9)]

        assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]
        assert room.turn_away(8, "python").total_seconds() == 0
        assert room.free() == (["gpu", "gpu@b"], 10)
        async with asyncio.timeout(100 * REST_SECONDS):
            await changed.wait()
        assert room.free() == (["gpu", "gpu@b", "python"], 10)

    asyncio.run(scenario())


def test_limits_that_make_no_sense_are_refused(client: Client) -> None:
    with pytest.raises(DefinitionError, match="limit of 'gpu' is 0; expected 1 or more"):
        Worker(client, workflows=[], capabilities=["gpu"], limits={"gpu": 0})
    with pytest.raises(DefinitionError, match="a limit for 'gpu', which it does not offer; expected one of 'python'"):
        Worker(client, workflows=[], capabilities=["python"], limits={"gpu": 1})


class Crowd:
    """Steps that count how many of a kind are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.door = threading.Event()

    def enter(self, kind: str) -> None:
        with self._lock:
            self._inside[kind] += 1
            self.most[kind] = max(self.most[kind], self._inside[kind])

    def leave(self, kind: str) -> None:
        with self._lock:
            self._inside[kind] -= 1


def rendering(crowd: Crowd) -> Any:
    @step(need="gpu")
    async def render(x: int) -> int:
        crowd.enter("gpu")
        await asyncio.sleep(0.01)
        crowd.leave("gpu")
        return x

    @step(need="gpu", at_most_once=True)
    async def render_once(x: int) -> int:
        y: int = await render.fn(x)
        return y

    @workflow(name="rendering", need="python")
    async def rendering(ctx: AsyncContext, x: int) -> int:
        frames = await ctx.map(render, [x, x, x])
        return sum(frames) + await ctx.step(render_once, x)

    return rendering


def test_a_worker_does_no_more_for_a_capability_than_its_limit_also_for_runs_it_has_already(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    crowd = Crowd()
    definition = rendering(crowd)
    start_worker(definition, capabilities=["python", "gpu"], limits={"gpu": 1})
    runs = [client.start(definition(x)) for x in range(6)]

    assert [run.result(timeout=SOON) for run in runs] == [4 * x for x in range(6)]

    assert crowd.most == {"gpu": 1}
    assert db.execute("select sum(lapses) from pgwf_sdk.runs").fetchone() == (0,)


def test_runs_that_have_to_wait_for_a_capability_hold_no_place_meanwhile(
    client: Client, start_worker: StartWorker
) -> None:
    crowd = Crowd()

    @step(need="gpu")
    def render() -> None:
        assert crowd.door.wait(60)

    @workflow(need="python")
    def picture(ctx: Context) -> str:
        ctx.step(render)
        return "picture"

    @workflow(need="python")
    def note(ctx: Context) -> str:
        return "note"

    start_worker(picture, note, capabilities=["python", "gpu"], limits={"gpu": 1}, concurrency=2)
    pictures = [client.start(picture()) for _ in range(5)]
    notes = [client.start(note()) for _ in range(5)]

    assert [run.result(timeout=SOON) for run in notes] == ["note"] * 5
    crowd.door.set()
    assert [run.result(timeout=SOON) for run in pictures] == ["picture"] * 5


def test_a_worker_leases_no_more_runs_than_it_has_places(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    crowd = Crowd()

    @step
    def stay() -> None:
        assert crowd.door.wait(60)

    @workflow
    def staying(ctx: Context) -> None:
        ctx.step(stay)

    runs = [client.start(staying()) for _ in range(20)]
    start_worker(staying, concurrency=3)
    wait_until(lambda: db.execute("select 1 from pgwf.lease having count(*) = 3").fetchone(), "it is full")
    more = client.start(staying())

    assert db.execute("select count(*) from pgwf.lease").fetchone() == (3,)

    crowd.door.set()
    for run in [*runs, more]:
        run.result(timeout=SOON)


def test_a_run_goes_at_once_from_workers_that_do_not_know_it_to_one_that_does(
    client: Client, start_worker: StartWorker, db: Connection[Any]
) -> None:
    """Each of the others meets it once at most before it has found the one, however many runs there are."""

    @workflow(name="other")
    def other(ctx: Context) -> str:
        return "other"

    @workflow(need="shared", name="foreign")
    def foreign(ctx: Context) -> str:
        return "known"

    for _ in range(2):
        start_worker(other, capabilities=["shared"], poll=timedelta(seconds=30))
    start_worker(foreign, capabilities=["shared"], poll=timedelta(seconds=30))

    runs_count = 20
    for _ in range(runs_count):
        run = client.start(foreign())
        assert run.result(timeout=SOON) == "known"

    leases = db.execute("select count(*) from pgwf.trace where event_type in ('get_work', 'lease_job')").fetchone()
    assert leases is not None
    assert leases[0] <= 3 * runs_count
    assert db.execute("select count(*) from pgwf.trace where event_type = 'lease_lapsed'").fetchone() == (0,)
