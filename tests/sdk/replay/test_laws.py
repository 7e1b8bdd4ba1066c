"""Laws of replay, tried on generated programs with a shuffled outside world."""

from __future__ import annotations

import os
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgwf_journal import Kind, Phase
from pgwf_sdk import AsyncContext, Call, Context, Workflow, _failure, workflow
from pgwf_sdk.replay import AsyncActivation, Command, Completed, Failed, Outcome, Suspended, SyncActivation
from tests.sdk.replay.driver import Answer as Ended
from tests.sdk.replay.driver import Driver
from tests.sdk.replay.entries import booked, by_scope, taken_back, without_traceback
from tests.sdk.replay.interpreters import AsyncInterpreter, Interpreter
from tests.sdk.replay.programs import Answer, Program, Promise, Receive, Rival, awaited, programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_journal import Entry

CLEANUP = b'{"type":"pgwf_sdk._errors:CleanupFailedError",'

laws = settings(
    max_examples=int(os.environ.get("PGWF_LAWS_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def sync_of(program: Program) -> Workflow[..., Any]:
    @workflow(name="program")
    def sync_program(ctx: Context) -> Any:
        return Interpreter().run(ctx, program)

    return sync_program


def async_of(program: Program) -> Workflow[..., Any]:
    @workflow(name="program")
    async def async_program(ctx: AsyncContext) -> Any:
        return await AsyncInterpreter().run(ctx, program)

    return async_program


SENT = 200


ENDS: dict[str, Ended] = {
    "over": (Phase.COMPLETED, b"7", 1),
    "failed": (Phase.FAILED, _failure.describe(LookupError("another run")), 1),
    "long": (Phase.OPENED, None, 0),
}
"""How the runs ended that programs attach to."""


def driver(definition: Workflow[..., Any], program: Program, shuffle: Random | None = None) -> Driver:
    """A driver that gives a program what the outside owes it."""
    call: Call[Any] = definition()
    driver = Driver(call, shuffle=shuffle, ends=ENDS)
    for op, _ in awaited(program):
        if op.after is not None:
            driver.arrivals[op.name] = timedelta(seconds=op.after + 0.5)  # At no instant at which a timer ends.
        match op:
            case Receive(comes=True) | Rival(comes=True):
                driver.signals[op.name] = [len(op.name)] * SENT
            case Answer(how="value") | Promise(how="value"):
                driver.completions[op.name] = [len(op.name)] * SENT
            case Answer(how="error") | Promise(how="error"):
                driver.completions[op.name] = [ValueError("refused")] * SENT
            case _:
                pass
    return driver


def replayed(played: Driver) -> Outcome:
    """The outcome of a further activation on the same journal, which must want nothing."""
    if played.workflow.is_async:
        activation = AsyncActivation(played.workflow, played.info, played.journal)
        assert activation.start() == []
        assert activation.outcome is not None
        return activation.outcome

    def refuse(commands: list[Command]) -> Sequence[Entry]:
        raise AssertionError(f"an unchanged journal led to {commands}")

    return SyncActivation(played.workflow, played.info, played.journal).run(refuse)


def said(outcome: Outcome) -> object:
    """An outcome without what differs from one activation to the next: tracebacks, and the order of what was undone."""
    match outcome:
        case Completed(payload, encoding):
            return payload, encoding
        case Failed(payload):
            return CLEANUP if payload.startswith(CLEANUP) else without_traceback(payload)
        case _:
            return outcome


def cut(whole: Driver, resumed: Driver, entries: int) -> Driver:
    """Let a driver go on from so many entries of what another one recorded."""
    resumed.journal[1:] = whole.journal[1:entries]
    return resumed


seeds = st.integers(0, 2**16).map(Random)


@laws
@given(programs(), seeds)
def test_replaying_an_unchanged_journal_of_a_def_workflow_changes_nothing(program: Program, shuffle: Random) -> None:
    played = driver(sync_of(program), program, shuffle)
    outcome = played.run()

    assert said(replayed(played)) == said(outcome)


@laws
@given(programs(with_asyncio=True), seeds)
def test_replaying_an_unchanged_journal_of_an_async_workflow_changes_nothing(program: Program, shuffle: Random) -> None:
    played = driver(async_of(program), program, shuffle)
    outcome = played.run()

    assert said(replayed(played)) == said(outcome)


@laws
@given(programs(is_ordered=True), seeds, st.data())
def test_going_on_from_any_cut_of_the_journal_ends_alike(
    program: Program, shuffle: Random, data: st.DataObject
) -> None:
    for definition in (sync_of(program), async_of(program)):
        whole = driver(definition, program, shuffle)
        outcome = whole.run()
        resumed = cut(whole, driver(definition, program, shuffle), data.draw(st.integers(1, len(whole.journal))))

        assert said(resumed.run()) == said(outcome)
        assert by_scope(resumed.journal) == by_scope(whole.journal)


@laws
@given(programs(is_ordered=True), seeds, st.integers(1, 4))
def test_a_run_that_is_given_up_again_and_again_ends_alike(program: Program, shuffle: Random, entries: int) -> None:
    for definition in (sync_of(program), async_of(program)):
        whole = driver(definition, program, shuffle)
        outcome = whole.run()
        resumed = driver(definition, program, shuffle)
        found: Outcome = Suspended()
        while isinstance(found, Suspended):
            resumed.suspend_after = len(resumed.journal) + entries
            found = resumed.run()

        assert resumed.asked_when_suspended == 0
        assert said(found) == said(outcome)
        assert by_scope(resumed.journal) == by_scope(whole.journal)


@laws
@given(programs(is_ordered=True, escapes=True), seeds, seeds, st.data())
def test_a_failure_that_leaves_a_scope_leads_to_the_same_end_however_far_the_other_branches_were(
    program: Program, shuffle: Random, other_shuffle: Random, data: st.DataObject
) -> None:
    for definition in (sync_of(program), async_of(program)):
        whole = driver(definition, program, shuffle)
        outcome = whole.run()
        resumed = cut(whole, driver(definition, program, other_shuffle), data.draw(st.integers(1, len(whole.journal))))

        assert said(resumed.run()) == said(outcome)
        assert by_scope(resumed.journal).get("") == by_scope(whole.journal).get("")


@laws
@given(programs(), programs(with_asyncio=True), seeds, st.integers(0, 20), st.data())
def test_a_cancelled_run_is_replayed_to_the_same_end_and_undoes_once_what_it_did(
    program: Program, async_program: Program, shuffle: Random, exchange: int, data: st.DataObject
) -> None:
    for definition, body in ((sync_of(program), program), (async_of(async_program), async_program)):
        played = driver(definition, body, shuffle)
        played.cancel_at = exchange
        outcome = played.run()
        resumed = cut(played, driver(definition, body, shuffle), data.draw(st.integers(1, len(played.journal))))
        resumed.cancel_at = exchange if all(entry.kind != Kind.CANCEL for entry in resumed.journal) else None
        found = resumed.run()

        assert said(replayed(played)) == said(outcome)
        assert said(replayed(resumed)) == said(found)
        assert taken_back(played.journal) == (0 if isinstance(outcome, Completed) else booked(played.journal))
        assert taken_back(resumed.journal) == (0 if isinstance(found, Completed) else booked(resumed.journal))


@laws
@given(programs(is_ordered=True), seeds)
def test_a_def_and_an_async_def_write_the_same_journal(program: Program, shuffle: Random) -> None:
    sync = driver(sync_of(program), program, shuffle)
    asynchronous = driver(async_of(program), program, shuffle)

    assert said(sync.run()) == said(asynchronous.run())
    assert by_scope(sync.journal) == by_scope(asynchronous.journal)


@laws
@given(programs(), seeds)
def test_a_journal_of_a_def_workflow_is_replayed_by_its_async_twin_and_back(program: Program, shuffle: Random) -> None:
    for first, second in ((sync_of(program), async_of(program)), (async_of(program), sync_of(program))):
        played = driver(first, program, shuffle)
        outcome = played.run()
        twin = driver(second, program)
        twin.journal[1:] = played.journal[1:]

        assert said(replayed(twin)) == said(outcome)
