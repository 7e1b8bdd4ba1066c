"""Nothing that a user's values say is in the database in clear, and everything works as without sealing."""

from __future__ import annotations

import asyncio
import base64
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    AsyncClient,
    ChildFailedError,
    Client,
    Context,
    RetryPolicy,
    RunCancelledError,
    RunConflictError,
    RunFailedError,
    SealedError,
    Sealing,
    current_step,
    ops,
    step,
    workflow,
)
from pgwf_sdk.cli._app import run_command
from pgwf_sdk.replay import Blocked, try_replay
from pgwf_sdk.testing import Environment, Recording, ReplayDifferenceError
from tests.sdk.sealing.at_rest import in_clear

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgwf_sdk.embedded import EmbeddedServer

pytest.importorskip("cryptography")

KEY = os.urandom(32)
SECRET = "s3cret"


@step(retry=RetryPolicy(max_attempts=2))
def charge(card: str) -> str:
    current_step().heartbeat(f"{card} is being charged")
    if current_step().attempt == 1:
        raise OSError(f"cannot charge {card}")
    return f"{card} charged"


@workflow
def child(ctx: Context, card: str) -> str:
    if card.endswith("!"):
        raise ValueError(f"{card} refused")
    return f"{card} checked"


@workflow
def slow(ctx: Context, card: str) -> str:
    ctx.sleep(timedelta(hours=1))
    return f"{card} checked"


@workflow
def shop(ctx: Context, card: str) -> list[Any]:
    charged = ctx.step(charge, card)
    try:
        ctx.call(child(card + "!"))
    except ChildFailedError as error:
        refused = str(error.__cause__)
    else:
        refused = ""
    note = ctx.wait_signal("note", str)
    decision = ctx.human("release", {"card": card}, str, need="human.risk", prefill=f"{SECRET}?")
    return [charged, ctx.call(child(card)), refused, note, decision.value, ctx.side_effect(lambda: card)]


@workflow
def watcher(ctx: Context, card: str) -> list[str]:
    found = [ctx.attach("checked", child), ctx.attach("checked", child)]
    try:
        ctx.attach("failing", failing)
    except RunFailedError as error:
        found.append(str(error.__cause__))
    return found


@workflow
def failing(ctx: Context, card: str) -> None:
    raise ValueError(f"{card} is no card")


@pytest.fixture(scope="module")
def sealed_environment(server: EmbeddedServer) -> Iterator[Environment]:
    with Environment(server.dsn, sealing=Sealing({"k1": KEY})) as environment:
        yield environment


@pytest.fixture
def env(sealed_environment: Environment) -> Iterator[Environment]:
    sealed_environment.reset()
    yield sealed_environment
    sealed_environment.check()


def play(env: Environment) -> list[Any]:
    run = env.start(shop(SECRET), run_id="shop")
    env.advance(timedelta(minutes=1))
    run.signal("note", f"{SECRET} noted")
    env.settle()
    (task,) = env.client.human.list()
    assert (task.subject, task.prefill) == (f'{{"card":"{SECRET}"}}', f'"{SECRET}?"')
    env.client.human.decide(task.task_id, f"{SECRET} released", by="ann")
    return env.result(run)


def test_inputs_results_signals_decisions_children_and_errors_are_sealed_at_rest(env: Environment) -> None:
    result = play(env)
    with pytest.raises(RunFailedError, match="s3cret is no card"):
        env.run(failing(SECRET), run_id="failing")

    assert result == [
        f"{SECRET} charged",
        f"{SECRET} checked",
        f"{SECRET}! refused",
        f"{SECRET} noted",
        f"{SECRET} released",
        SECRET,
    ]
    assert in_clear(env.dsn, SECRET) == []


def test_what_a_run_hears_of_others_is_sealed_on_its_way_and_read(env: Environment) -> None:
    env.start(slow(SECRET), run_id="checked")
    env.start(failing(SECRET), run_id="failing")
    run = env.start(watcher(SECRET))
    assert in_clear(env.dsn, SECRET) == []

    assert env.result(run) == [f"{SECRET} checked", f"{SECRET} checked", f"{SECRET} is no card"]
    assert in_clear(env.dsn, SECRET) == []


def test_a_cancellation_before_the_run_began_is_read_and_replayed(env: Environment) -> None:
    run = env.client.start(slow(SECRET), run_id="late")

    assert run.cancel(by="ann", reason="wrong card") == "cancelled"

    with pytest.raises(RunCancelledError, match="run late was cancelled by ann: wrong card"):
        run.result()
    assert in_clear(env.dsn, SECRET) == []
    recording = env.record(run)
    assert [entry.key for entry in recording.entries] == ["/run:slow#1", "/cancel:cancel#1", "/run:slow#1"]
    recording.replay(slow)


def test_a_story_with_sealed_values_ends_alike_wherever_its_worker_is_killed(env: Environment) -> None:
    def story(env: Environment) -> object:
        run = env.start(shop(SECRET), run_id="shop")
        env.advance(timedelta(minutes=1))
        run.signal("note", "x")
        env.settle()
        env.client.human.decide(env.client.human.list()[0].task_id, "y", by="ann")
        return env.result(run)

    report = env.crash_everywhere(story)

    assert len(report.cuts) == 2 * report.append_count


def test_starting_a_known_id_with_the_same_input_finds_the_run_also_under_another_key(env: Environment) -> None:
    env.start(shop(SECRET), run_id="shop")

    with Client(env.dsn, sealing=Sealing({"k2": os.urandom(32), "k1": KEY})) as client:
        assert not client.start(shop(SECRET), run_id="shop").created
        with client.connection() as connection, connection.transaction():
            assert not client.start(shop(SECRET), run_id="shop", connection=connection).created
        with pytest.raises(RunConflictError, match="another input"):
            client.start(shop("other"), run_id="shop")


def test_the_async_client_does_the_same(env: Environment) -> None:
    async def start_again() -> bool:
        async with AsyncClient(env.dsn, sealing=Sealing({"k1": KEY})) as client:
            return (await client.start(failing(SECRET), run_id="failing")).created

    env.client.start(failing(SECRET), run_id="failing")

    assert not asyncio.run(start_again())


def test_a_reader_without_the_key_is_told_so_and_sees_nothing(
    env: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(env)

    with Client(env.dsn, sealing=Sealing()) as client, pytest.raises(SealedError, match="sealed with key 'k1'"):
        client.get("shop").result()
    first = next(iter(ops.read_journal(env.client, "shop")))
    assert first.payload == f'{{"args":["{SECRET}"],"kwargs":{{}}}}'
    for keys, shows in (("", False), (f"k1={base64.b64encode(KEY).decode()}", True)):
        monkeypatch.setenv("PGWF_KEYS", keys)
        assert run_command(["--dsn", env.dsn, "show", "shop", "--journal"]) == 0
        said = capsys.readouterr().out
        assert (SECRET in said) is shows
        assert ('{"sealed":"' in said) is not shows


def test_a_worker_without_the_key_gives_the_run_back_and_says_why(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Environment(server.dsn) as env, Client(env.dsn, sealing=Sealing({"k1": KEY})) as client:
        env.add(failing)
        run = client.start(failing(SECRET), run_id="failing")

        env.settle()

        assert "sealed with key 'k1', which this reader does not have" in caplog.text
        assert run.status() == "waiting"
        why = ops.why_not_running(env.client, "failing")
        assert "It waits to be taken again." in why
        assert "gave it back with: input of failing: it is sealed with key 'k1'" in why


def test_a_sealed_journal_is_checked_with_the_key_and_refused_without(env: Environment) -> None:
    play(env)

    @workflow(name="shop")
    def changed(ctx: Context, card: str) -> str:
        raise ValueError(f"{card} is changed")

    assert ops.check_runs(env.client, [shop], is_finished_too=True).differing_count == 0
    (found,) = ops.check_runs(env.client, [changed], is_finished_too=True).differences
    assert found.report["class"] == "raised_early"
    assert ops.recorded_run(env.client, "shop").entries[0].payload == f'{{"args":["{SECRET}"],"kwargs":{{}}}}'.encode()
    with Client(env.dsn, sealing=Sealing()) as client, pytest.raises(SealedError, match="sealed with key 'k1'"):
        ops.check_runs(client, [shop], is_finished_too=True)


LACKING = "sealed with key 'k1', which this reader does not have; give its reader the key"


def test_a_sealed_journal_that_is_replayed_without_the_key_asks_for_it(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PGWF_KEYS", raising=False)
    play(env)
    file = tmp_path / "shop.json"
    with Client(env.dsn) as client:
        Recording.of(client, "shop").save(file)
        with pytest.raises(SealedError, match=LACKING):
            ops.check_runs(client, [shop], is_finished_too=True)

    recording = Recording.load(file)
    with pytest.raises(SealedError, match=LACKING):
        recording.replay(shop)
    outcome = try_replay(shop, recording.recorded.info, recording.entries).outcome
    assert isinstance(outcome, Blocked)
    assert outcome.report["class"] == "sealed"
    assert LACKING in outcome.report["detail"]
    assert "fix: give whoever reads it the key" in outcome.report["text"]
    assert "deploy" not in outcome.report["text"]
    for more in (["--dsn", env.dsn, "--finished"], ["--journal", str(file)]):
        assert run_command(["replay", "--check", f"{__name__}:shop", *more]) not in {0, 9}
        said = capsys.readouterr().err
        assert LACKING in said
        assert "PGWF_KEYS" in said
        assert "missing a required argument" not in said


def test_a_client_without_sealing_is_told_which_key_it_lacks(env: Environment) -> None:
    play(env)
    with pytest.raises(RunFailedError):
        env.run(failing(SECRET), run_id="failing")

    with Client(env.dsn) as client:
        for run_id in ("shop", "failing"):
            with pytest.raises(SealedError, match=LACKING) as caught:
                client.get(run_id).result()
            assert "resume the run" not in str(caught.value)


def test_the_report_on_a_blocked_run_says_nothing_of_sealed_values(server: EmbeddedServer) -> None:
    is_changed = False

    @workflow
    def turning(ctx: Context, card: str) -> str:
        if is_changed:
            raise ValueError(f"{card} is changed")
        return ctx.wait_signal("go", str, timeout=timedelta(days=1)) + ctx.step(charge, card)

    with Environment(server.dsn, sealing=Sealing({"k1": KEY}), replay=False) as env:
        env.reset()
        run = env.start(turning(SECRET))
        run.signal("go", "x")
        is_changed = True
        with pytest.raises(ReplayDifferenceError):
            env.settle()

        assert run.status() == "blocked"
        assert in_clear(env.dsn, SECRET) == []


def test_a_sealed_file_is_replayed_where_the_key_is_given(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(env)
    file = tmp_path / "shop.json"
    with Client(env.dsn) as client:
        Recording.of(client, "shop").save(file)
    assert SECRET not in file.read_text()

    Recording.load(file, sealing=Sealing({"k2": os.urandom(32), "k1": KEY})).replay(shop)
    with pytest.raises(SealedError, match="sealed with key 'k1', which this reader does not have; it has k2"):
        Recording.load(file, sealing=Sealing({"k2": KEY}))
    for key, code in ((f"k1={base64.b64encode(KEY).decode()}", 0), (f"k2={base64.b64encode(KEY).decode()}", 6)):
        monkeypatch.setenv("PGWF_KEYS", key)
        assert run_command(["replay", "--check", f"{__name__}:shop", "--journal", str(file)]) == code
    assert "it has k2" in capsys.readouterr().err


def test_a_worker_that_meets_a_sealed_value_after_a_clear_input_gives_the_run_back_and_asks_for_the_key(
    server: EmbeddedServer,
) -> None:
    @workflow
    def noting(ctx: Context) -> str:
        return ctx.wait_signal("first", str) + ctx.wait_signal("second", str)

    with (
        Environment(server.dsn) as env,
        Client(env.dsn, sealing=Sealing({"k1": KEY})) as knowing,
    ):
        run = env.start(noting())
        knowing.signal(run.run_id, "first", SECRET)
        env.settle()

        assert run.status() == "waiting"
        why = ops.why_not_running(env.client, run.run_id)
        assert "signal first: it is sealed with key 'k1', which this reader does not have; it has none" in why
        assert "give its reader the key" in why
        assert "deploy" not in why


def test_a_sealed_error_of_an_attempt_is_read_in_timeline_and_why_with_the_key_and_named_without(
    env: Environment,
) -> None:
    env.start(shop(SECRET), run_id="shop")

    said = f"OSError: cannot charge {SECRET}"
    assert said in ops.why_not_running(env.client, "shop")
    assert said in noted(ops.timeline(env.client, "shop"))
    with Client(env.dsn) as client:
        assert "an error that cannot be read: it is sealed with key 'k1'" in noted(ops.timeline(client, "shop"))


def noted(timeline: ops.Timeline) -> str:
    return "\n".join(row.note for row in timeline.rows)
