"""What a test hands to its environment and is no good is refused at once, in the test's own words."""

from __future__ import annotations

import warnings
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pgwf_sdk import Context, DefinitionError, RunFailedError, step, workflow
from pgwf_sdk.testing import Environment, Recording, UnusedMockWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgwf_sdk.embedded import EmbeddedServer


@step
def weigh(parcel: int) -> int:
    return parcel * 100


@workflow
def pack(ctx: Context, parcel: int) -> int:
    grams = ctx.step(weigh, parcel)
    ctx.sleep(timedelta(days=1))
    return grams


NAIVE = datetime(2031, 2, 3)  # noqa: DTZ001 - it is what is refused
REFUSED: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda env: env.advance(timedelta(days=-1)), ValueError, r"env.advance: found -1 day.* expected 0 or longer"),
    (lambda env: env.advance(float("nan")), TypeError, r"env.advance: found nan; expected a timedelta"),
    (lambda env: env.advance(60), TypeError, r"env.advance: found 60; expected a timedelta"),
    (lambda env: env.advance(timedelta.max), ValueError, r"env.advance: 999999999 days.* expected a shorter time"),
    (lambda env: env.reset(NAIVE), ValueError, r"env.reset\(now=…\): found .* has no time zone; expected one"),
    (
        lambda env: env.reset(date(2031, 2, 3)),
        TypeError,
        r"env.reset\(now=…\): found datetime.date\(.* expected a datetime",
    ),
    (
        lambda env: env.crash_everywhere(pack(1), now=NAIVE),
        ValueError,
        r"env.crash_everywhere\(now=…\): .* no time zone",
    ),
    (lambda env: env.crash_everywhere(pack), TypeError, r"found the workflow pack; expected a story, which is the"),
    (lambda env: env.crash_everywhere(3), TypeError, r"env.crash_everywhere: found 3, an int; expected a story"),
    (lambda env: env.crash_everywhere(pack(1), cuts_max="9"), TypeError, r"\(cuts_max=…\): found '9', a str; .* whole"),
    (lambda env: env.crash_everywhere(pack(1), cuts_max=0), ValueError, r"cuts_max=0\): expected 1 or more"),
    (lambda env: env.result("nope"), TypeError, r"env.result: found 'nope'; .*env.result\(env.client.get\('nope'\)\)"),
    (lambda env: env.result(pack(1)), TypeError, r"env.result: found .*pack.*; .*env.result\(env.start\(checkout"),
    (lambda env: env.record("nope"), TypeError, r"env.record: found 'nope'; expected the handle of a run"),
    (lambda env: env.journal(None), TypeError, r"env.journal: found None; expected the handle of a run"),
    (lambda env: env.add("pack"), TypeError, r"env.add: found 'pack', a str among them; expected workflows only"),
    (lambda env: env.mock(3, returns=1), DefinitionError, r"env.mock: found 3, an int; expected the step itself"),
    (
        lambda env: env.mock(pack, returns=1),
        DefinitionError,
        r"env.mock: found <Workflow pack>; expected a step\. A child run is a run .* mock the steps it calls",
    ),
    (lambda env: env.mock(pack(1), returns=1), DefinitionError, r"env.mock: found <Call of pack>; expected a step"),
    (lambda env: env.mock(weigh), TypeError, r"env.mock\('weigh'\): found none; expected either a function, returns="),
    (lambda env: env.mock(weigh, 100), TypeError, r"env.mock\('weigh'\): found 100; expected a function"),
    (lambda env: env.mock(weigh, len, returns=1), TypeError, r"found a replacement and returns=; expected either"),
    (lambda env: env.mock(weigh, return_value=1), TypeError, r"found return_value=; expected either"),
    (lambda env: env.mock(weigh, outcomes="abc"), TypeError, r"outcomes='abc'; expected a list with one for each call"),
    (lambda env: env.mock(weigh, outcomes=3), TypeError, r"outcomes=3; expected a list with one for each call"),
]


@pytest.mark.parametrize(("misuse", "kind", "said"), REFUSED)
def test_a_mistake_is_named_with_what_was_expected_and_changes_nothing(
    env: Environment, misuse: Callable[[Any], object], kind: type[Exception], said: str
) -> None:
    run = env.start(pack(3))
    before = env.now()

    with pytest.raises(kind, match=said):
        misuse(env)

    assert (env.now(), run.status()) == (before, "waiting")
    assert env.result(run) == 300


@workflow
def repack(ctx: Context, parcel: int) -> int:
    return parcel


RECORDINGS: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda recording: recording.replay(repack), ValueError, r"found the workflow repack; expected pack, which run"),
    (lambda recording: recording.replay(pack(3)), TypeError, r"recording.replay: found a call of a workflow"),
    (lambda recording: recording.replay(weigh), TypeError, r"recording.replay: found the step weigh; expected a"),
    (lambda recording: recording.replay(len), TypeError, r"recording.replay: found <built-in .* expected a workflow"),
    (lambda recording: recording.save(3), TypeError, r"recording.save\(path\): found 3, an int; expected the path"),
    (lambda _: Recording.load(cast("Any", 3)), TypeError, r"Recording.load\(path\): found 3, an int; expected the"),
    (
        lambda _: Recording.load("a.json", sealing=cast("Any", {"2026": b"s3cret"})),
        TypeError,
        r"Recording.load\(sealing=…\): found a dict; expected the keys by their names",
    ),
]


@pytest.mark.parametrize(("misuse", "kind", "said"), RECORDINGS)
def test_a_recording_is_replayed_by_its_own_workflow_only(
    env: Environment, misuse: Callable[[Any], object], kind: type[Exception], said: str
) -> None:
    recording = env.record(env.start(pack(3)))

    with pytest.raises(kind, match=said):
        misuse(recording)

    recording.replay(pack)


def test_a_run_is_recorded_by_its_id(env: Environment) -> None:
    run = env.start(pack(3))

    with pytest.raises(TypeError, match=r"Recording.of\(…, run_id\): found <Run .*; expected a text: its run_id"):
        Recording.of(env.client, cast("Any", run))


@pytest.mark.parametrize("server", ["localhost", ""])
def test_an_environment_is_told_that_its_server_is_none(server: str) -> None:
    with pytest.raises(ValueError, match=r"Environment\(server\): found '.*'; expected a PostgreSQL connection string"):
        Environment(server)


def test_a_call_beyond_the_outcomes_fails_at_once_however_often_the_step_would_be_tried(env: Environment) -> None:
    mock = env.mock(weigh, outcomes=[OSError("down")])

    with pytest.raises(RunFailedError, match="is call 2, but given: 1 outcome; give one for each call and each retry"):
        env.run(pack(3))
    assert [call.attempt for call in mock.calls] == [1, 2]


def test_outcomes_are_those_that_were_given_whatever_becomes_of_the_list(env: Environment) -> None:
    outcomes = [1, 2]
    env.mock(weigh, outcomes=outcomes)
    outcomes.clear()

    assert (env.run(pack(7)), env.run(pack(7))) == (1, 2)


def test_a_mock_may_return_none_or_anything_that_can_be_called(env: Environment) -> None:
    @workflow
    def ask(ctx: Context) -> object:
        return ctx.step(len, "four")

    env.mock("len", returns=None)
    assert env.run(ask()) is None


def test_a_mock_that_nothing_called_is_warned_of_at_its_line_with_the_steps_that_were_called(env: Environment) -> None:
    env.mock(weigh, returns=1)
    env.mock("wiegh", returns=1)
    assert env.run(pack(7)) == 1

    with pytest.warns(UnusedMockWarning) as warned:
        env.reset()

    (said,) = (str(one.message) for one in warned)
    assert said == (
        "mock of step 'wiegh' was not called: the steps executed were 'weigh'; give it the name that the step has in"
        " the journal, or leave it out"
    )
    assert Path(warned[0].filename) == Path(__file__)
    assert "wiegh" in Path(__file__).read_text().splitlines()[warned[0].lineno - 1]


def test_a_mock_that_another_took_the_place_of_is_not_missed(env: Environment) -> None:
    env.mock(weigh, returns=1)
    env.mock(weigh, returns=2)

    assert env.run(pack(7)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.retire_mocks()


def test_closing_an_environment_tells_of_mocks_that_nothing_called(server: EmbeddedServer) -> None:
    with pytest.warns(UnusedMockWarning, match="no step was executed"), Environment(server.dsn) as env:
        env.mock("weigh", returns=1)


def test_a_reset_to_an_instant_of_another_zone_is_the_same_instant(env: Environment) -> None:
    instant = datetime(2031, 2, 3, 12, tzinfo=UTC)

    env.reset(instant.astimezone())

    assert env.now() == instant
