"""The deploy gate: recorded runs replayed by new code, from the database and from exported journals."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_journal import Kind, Phase
from pgwf_sdk import AsyncContext, Client, Context, Workflow, ops, step, workflow
from pgwf_sdk.cli._app import run_command
from tests.sdk.sql.hand import Hand, entry, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Conn = psycopg.Connection[Any]


@step
def reserve() -> int:
    raise AssertionError("a check executes nothing")


@step
def charge() -> int:
    raise AssertionError("a check executes nothing")


def peek() -> int:
    raise AssertionError("a check executes nothing")


def version(form: str, *, is_renamed: bool) -> Workflow[[], int]:
    paid = charge.options(name="pay") if is_renamed else charge

    @workflow(name="checkout")
    def checkout(ctx: Context) -> int:
        total = ctx.step(reserve)
        total += sum(ctx.parallel(lambda c: c.step(paid), lambda c: c.step(paid)))
        ctx.wait_signal("go", int)
        ctx.log.error("this must not be said")
        return total + ctx.side_effect(peek)

    @workflow(name="checkout")
    async def async_checkout(ctx: AsyncContext) -> int:
        async def pay(ctx: AsyncContext) -> int:
            return await ctx.step(paid)

        total = await ctx.step(reserve)
        total += sum(await ctx.parallel(pay, pay))
        await ctx.wait_signal("go", int)
        ctx.log.error("this must not be said")
        return total + await ctx.side_effect(peek)

    return checkout if form == "sync" else async_checkout


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


def recorded(db: Conn, run_id: str, *, is_over: bool = False) -> None:
    """A run that has paid in one branch, or is over."""
    hand = Hand(db, "w", ["python"])
    start(db, run_id)
    code = db.execute("select code from pgwf_journal.code_numbers('b1', array['shop.py'], array[7])").fetchone()
    assert code is not None
    paid = entry("charge", 1, scope="/branch:parallel#1[0]")
    entries = [
        entry("reserve", 1),
        type(paid)(**{name: getattr(paid, name) for name in paid.__struct_fields__} | {"code": code[0]}),
    ]
    if not is_over:
        hand.say(hand.take().item("park", *entries))
        return
    waited = [
        entry("go", 3, kind=Kind.SIGNAL, phase=phase, payload=b"1" if phase is Phase.COMPLETED else None)
        for phase in (Phase.OPENED, Phase.COMPLETED)
    ]
    entries += [entry("charge", 1, scope="/branch:parallel#1[1]"), *waited]
    hand.say(hand.take().end(entries=entries))


@pytest.mark.parametrize("form", ["sync", "async"])
def test_code_that_follows_the_journals_of_live_runs_passes(
    client: Client, db: Conn, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        recorded(db, f"order-{number}")
    recorded(db, "order-9", is_over=True)
    before = db.execute("select count(*), max(xmin::text::bigint) from pgwf_journal.entry").fetchone()

    check = ops.check_runs(client, [version(form, is_renamed=False)])
    with_finished = ops.check_runs(client, [version(form, is_renamed=False)], is_finished_too=True)

    assert (check.run_count, check.entry_count, check.differing_count) == (3, 9, 0)
    assert (with_finished.run_count, with_finished.differing_count) == (4, 0)
    assert db.execute("select count(*), max(xmin::text::bigint) from pgwf_journal.entry").fetchone() == before
    assert db.execute("select count(*) from pgwf.lease").fetchone() == (0,)
    assert caplog.records == []


@pytest.mark.parametrize("form", ["sync", "async"])
def test_code_that_does_not_is_reported_once_for_all_runs_that_differ_alike(
    client: Client, db: Conn, form: str
) -> None:
    for number in range(3):
        recorded(db, f"order-{number}")
    start(db, "order-new")

    check = ops.check_runs(client, [version(form, is_renamed=True)])

    assert (check.run_count, check.differing_count) == (4, 3)
    (found,) = check.differences
    assert (found.run_count, found.run_ids) == (3, ["order-2", "order-1", "order-0"])
    assert found.report["class"] == "inserted_or_renamed"
    assert found.report["expected"]["source"] == "shop.py:7"
    assert found.report["actual"]["key"] == "/branch:parallel#1[0]/step:pay#1"
    assert found.report["actual"]["source"].startswith(f"{__file__}:")


def test_only_the_newest_runs_are_read_and_only_of_the_workflows_given(client: Client, db: Conn) -> None:
    for number in range(5):
        recorded(db, f"order-{number}")
    start(db, "refund-1", workflow="refund")

    assert ops.check_runs(client, [version("sync", is_renamed=False)], limit=2).run_count == 2
    assert ops.check_runs(client, []).run_count == 0


def test_a_check_goes_through_all_pages_and_holds_one_journal_at_a_time(
    client: Client, db: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgwf_sdk.ops import _replays

    monkeypatch.setattr(_replays, "_PAGE_RUNS", 2)
    monkeypatch.setattr(_replays, "_PAGE_ENTRIES", 2)
    for number in range(5):
        recorded(db, f"order-{number}")

    check = ops.check_runs(client, [version("sync", is_renamed=True)])

    assert (check.run_count, check.entry_count, check.differing_count) == (5, 15, 5)


def test_postgresql_itself_refuses_a_check_that_writes(client: Client, db: Conn) -> None:
    from pgwf_sdk.ops import _replays

    recorded(db, "order-1")
    with (
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        _replays._reading(client) as connection,  # pyright: ignore[reportPrivateUsage]
    ):
        connection.execute("select pgwf_sdk.pause_run('order-1', 'ann')")


def test_a_workflow_that_ends_its_process_does_not_end_the_check(client: Client, db: Conn) -> None:
    recorded(db, "order-1")

    @workflow(name="checkout")
    def leaving(ctx: Context) -> None:
        ctx.step(reserve)
        raise SystemExit(0)

    (found,) = ops.check_runs(client, [leaving]).differences

    assert found.report["class"] == "would_fail"
    assert found.report["detail"].startswith("SystemExit: 0")


def test_an_error_of_new_code_where_a_journal_ends_is_told(client: Client, db: Conn) -> None:
    recorded(db, "order-1")
    recorded(db, "order-2", is_over=True)

    @workflow(name="checkout")
    def broken(ctx: Context) -> int:
        ctx.step(reserve)
        ctx.parallel(lambda c: c.step(charge), lambda c: 1 // 0)
        return ctx.wait_signal("go", int)

    (found,) = ops.check_runs(client, [broken]).differences

    assert (found.report["class"], found.run_ids) == ("would_fail", ["order-1"])
    assert found.report["detail"].startswith("ZeroDivisionError: ")


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def module_of(definition: Workflow[..., Any]) -> str:
        module = ModuleType("checked_shop")
        vars(module)["checkout"] = definition
        monkeypatch.setitem(sys.modules, "checked_shop", module)
        return "checked_shop"

    return module_of


@pytest.mark.parametrize("form", ["sync", "async"])
def test_the_command_tells_by_its_exit_code_whether_runs_would_be_blocked(
    dsn: str, db: Conn, shop: Callable[..., str], capfd: pytest.CaptureFixture[str], form: str
) -> None:
    for number in range(2):
        recorded(db, f"order-{number}")
    arguments = ["--dsn", dsn, "replay", "--check"]

    assert run_command([*arguments, shop(version(form, is_renamed=False))]) == 0
    assert capfd.readouterr().err == "replayed 2 runs with 6 entries: none would be blocked or fail\n"
    assert run_command([*arguments, shop(version(form, is_renamed=True))]) == 9
    said = capfd.readouterr()
    assert said.err == "replayed 2 runs with 6 entries: 2 would be blocked or fail\n"
    assert "recorded:  /branch:parallel#1[0]/step:charge#1 at shop.py:7 by build b1" in said.out
    assert "the same in 1 other run: order-0" in said.out
    assert run_command([*arguments, "checked_shop", "-o", "json"]) == 9
    (found,) = json.loads(capfd.readouterr().out)
    assert (found["schema"], found["run_count"]) == ("pgwf.difference/1", 2)
    assert run_command([*arguments, "checked_shop", "-o", "ids"]) == 9
    assert capfd.readouterr().out == "order-1\norder-0\n"


def blocked(db: Conn, run_id: str, report: dict[str, Any]) -> None:
    hand = Hand(db, "w", ["python"])
    db.execute("select pgwf_sdk.signal(%s, 'spam')", [run_id])  # It is handed out again.
    hand.say(hand.take().item("block", note=json.dumps(report)))


@pytest.mark.parametrize("form", ["sync", "async"])
def test_runs_that_are_blocked_already_are_told_apart_and_do_not_close_the_gate(
    dsn: str, db: Conn, client: Client, shop: Callable[..., str], capfd: pytest.CaptureFixture[str], form: str
) -> None:
    recorded(db, "order-1")
    (found,) = ops.check_runs(client, [version(form, is_renamed=True)]).differences
    blocked(db, "order-1", found.report)
    arguments = ["--dsn", dsn, "replay", shop(version(form, is_renamed=True))]

    assert run_command(arguments) == 0
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == (
        "replayed 1 run with 3 entries: none would be blocked or fail\n"
        "1 run is blocked already, and stays so: `pgwf why order-1`\n"
    )
    assert run_command([*arguments, "--blocked"]) == 9
    assert "1 would be blocked or fail\n" in capfd.readouterr().err
    assert run_command([*arguments, "-o", "json"]) == 0
    assert [one["is_blocked_already"] for one in json.loads(capfd.readouterr().out)] == [True]
    assert run_command([*arguments, "-o", "ids"]) == 0
    assert capfd.readouterr().out == ""

    recorded(db, "order-2")
    assert run_command([*arguments, "-o", "ids"]) == 9
    assert capfd.readouterr().out == "order-2\n"
    assert run_command(["--dsn", dsn, "replay", "--blocked", shop(version(form, is_renamed=False))]) == 0


def test_a_blocked_run_that_would_be_blocked_elsewhere_counts(client: Client, db: Conn) -> None:
    recorded(db, "order-1")
    (found,) = ops.check_runs(client, [version("sync", is_renamed=True)]).differences
    blocked(db, "order-1", found.report)

    @workflow(name="checkout")
    def failing(ctx: Context) -> None:
        raise ValueError

    @workflow(name="checkout")
    def earlier(ctx: Context) -> None:
        ctx.step(charge)

    assert ops.check_runs(client, [failing]).differing_count == 1
    assert ops.check_runs(client, [earlier]).differing_count == 1
    assert ops.check_runs(client, [version("sync", is_renamed=True)]).blocked_count == 1


def test_the_code_may_be_named_with_or_without_the_option(
    dsn: str, db: Conn, shop: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    recorded(db, "order-1")
    module = shop(version("sync", is_renamed=True))

    for arguments in ([module], ["--check", module], [module, "--check", module]):
        assert run_command(["--dsn", dsn, "replay", *arguments]) == 9
        assert capfd.readouterr().err == "replayed 1 run with 3 entries: 1 would be blocked or fail\n"
    assert run_command(["--dsn", dsn, "replay"]) == 2
    assert "no code to replay" in capfd.readouterr().err


def test_an_exported_journal_is_checked_without_a_database(
    dsn: str, db: Conn, shop: Callable[..., str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recorded(db, "order-1")
    file = tmp_path / "order.json"

    assert run_command(["--dsn", dsn, "export", "order-1", "--to", str(file)]) == 0
    assert run_command(["--dsn", dsn, "export", "order-1"]) == 0
    assert capfd.readouterr().out == file.read_text(encoding="utf-8")
    assert json.loads(file.read_bytes())["entries"][2]["code"] == ["shop.py", 7]
    for is_renamed, code in ((False, 0), (True, 9)):
        checked = ["replay", "--check", shop(version("sync", is_renamed=is_renamed)), "--journal", str(file)]
        assert run_command(checked) == code
    assert "/step:charge#1 at shop.py:7" in capfd.readouterr().out
    file.write_text(file.read_text().replace("checkout", "refund"))
    assert run_command(["replay", "--check", "checked_shop", "--journal", str(file)]) == 6
    file.write_text("{}")
    assert run_command(["replay", "--check", "checked_shop", "--journal", str(file)]) == 6
    assert "no exported journal" in capfd.readouterr().err
