"""Code that differs from what the journal records blocks the run, with a report that says where and what to do."""

from __future__ import annotations

import ast
import asyncio
import json
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgwf_journal import Kind
from pgwf_sdk import AsyncContext, Context, Step, Workflow, step, workflow
from pgwf_sdk.replay import Blocked, Completed, Source, with_sources
from pgwf_sdk.replay._report import fixes_for
from tests.sdk.replay.driver import Driver


@step
def load_cart() -> int:
    return 1


@step
def reserve() -> int:
    return 2


@step
def charge() -> int:
    return 3


@step
def apply_coupon() -> int:
    return 4


def program_of(*steps: Step[[], int]) -> Workflow[[], list[int]]:
    @workflow(name="checkout")
    def checkout(ctx: Context) -> list[int]:
        return [ctx.step(one) for one in steps]

    return checkout


def async_program_of(*steps: Step[[], int]) -> Workflow[[], list[int]]:
    @workflow(name="checkout")
    async def checkout(ctx: AsyncContext) -> list[int]:
        return [await ctx.step(one) for one in steps]

    return checkout


def line_of(text: str, offset: int = 0) -> str:
    """File and line of the first line of this file that has `text`, as reports show them."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if text in line) + offset}"


def report_of(old: Workflow[[], Any], new: Workflow[[], Any], *, keep: int | None = None) -> dict[str, Any]:
    """What the new code says to the old one's journal, or to its first `keep` entries."""
    before = Driver(old())
    before.run()
    after = Driver(new(), journal=before.journal[:keep])
    outcome = after.run()
    assert isinstance(outcome, Blocked)
    assert after.commands == []
    assert json.loads(json.dumps(outcome.report)) == outcome.report
    return outcome.report


@pytest.mark.parametrize("made_by", [program_of, async_program_of])
def test_an_inserted_call_is_reported_at_its_place(made_by: Any) -> None:
    report = report_of(made_by(load_cart, reserve, charge), made_by(load_cart, reserve, apply_coupon, charge))

    assert report["class"] == "inserted_or_renamed"
    assert report["position"] == 3
    assert report["expected"]["key"] == "/step:charge#1"
    assert report["actual"]["key"] == "/step:apply_coupon#1"
    assert report["actual"]["source"].startswith(f"{__file__}:")
    assert [entry["name"] for entry in report["last_matched"]] == ["load_cart", "reserve"]
    awaited = "await " if made_by is async_program_of else ""
    assert report["fixes"] == [
        f'if the call is new, guard it:\nif ctx.patched("add-apply_coupon"):\n    {awaited}ctx.step(apply_coupon, …)',
        'if it was renamed, keep the recorded name: .options(name="charge")',
        "or deploy the code this run was started with, and resume the run",
        "or do again what is recorded from there on, steps with new idempotency keys, in a new run (--price lists it):"
        " pgwf fork run-1 --before '/step:charge#1'. Then end this one: pgwf terminate run-1",
    ]


def test_a_removed_call_is_reported_with_what_comes_next() -> None:
    report = report_of(program_of(load_cart, reserve, charge), program_of(load_cart, charge))

    assert report["class"] == "out_of_order"
    assert 'if not ctx.patched("drop-reserve"):\n    ctx.step(reserve, …)' in report["fixes"][1]
    assert report["expected"]["key"] == "/step:reserve#1"
    assert [entry["key"] for entry in report["next_recorded"]] == ["/step:charge#1"]


def test_swapped_calls_are_reported() -> None:
    report = report_of(program_of(load_cart, reserve), program_of(reserve, load_cart))

    assert report["class"] == "out_of_order"
    assert report["position"] == 1


def test_a_call_inserted_before_another_of_its_name_is_not_said_to_be_a_removal_and_either_way_is_offered() -> None:
    @workflow(name="checkout")
    def old(ctx: Context) -> int:
        ctx.awakeable(int)
        return ctx.step(charge)

    @workflow(name="checkout")
    def new(ctx: Context) -> int:
        ctx.step(charge)
        ctx.awakeable(int)
        return ctx.step(charge)

    report = report_of(old, new)

    assert report["class"] == "out_of_order"
    assert "a call was inserted here, or a recorded one was removed or moved" in report["hint"]
    assert report["fixes"][:2] == [
        'if the call is new, guard it:\nif ctx.patched("add-charge"):\n    ctx.step(charge, …)',
        "if the recorded call was removed or moved, keep the recorded call where it was for runs that made it:\n"
        'if not ctx.patched("drop-awakeable"):\n    ctx.awakeable(…, name="awakeable")',
    ]


def gathering(*steps: Step[[], int]) -> Workflow[[], list[int]]:
    @workflow(name="checkout")
    async def checkout(ctx: AsyncContext) -> list[int]:
        return await asyncio.gather(*(ctx.step(one) for one in steps))

    return checkout


def test_an_insertion_is_known_when_the_code_has_made_the_recorded_calls_after_it_too() -> None:
    old = gathering(load_cart, reserve, charge)

    inserted = report_of(old, gathering(load_cart, charge, reserve, charge))
    assert inserted["class"] == "inserted"
    assert [fix.partition(":")[0] for fix in inserted["fixes"]] == [
        "if the call is new, guard it",
        "or deploy the code this run was started with, and resume the run",
        "or do again what is recorded from there on, steps with new idempotency keys, in a new run (--price lists it)",
    ]
    assert report_of(old, gathering(load_cart, charge, reserve))["class"] == "out_of_order"
    assert report_of(old, gathering(load_cart, charge, charge, reserve))["class"] == "out_of_order"


@pytest.mark.parametrize("kind", [kind.label for kind in Kind if kind not in (Kind.RUN, Kind.CANCEL, Kind.PATCH)])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_the_lines_that_are_offered_are_python(kind: str, is_awaited: bool) -> None:
    call = {"kind": kind, "name": "spam", "key": f"/{kind}:spam#1"}

    for found in ("inserted", "inserted_or_renamed", "out_of_order", "kind_changed", "not_reached"):
        for fix in fixes_for(found, call, call, run_id="run-1", is_awaited=is_awaited, before="2"):
            if "patched" in fix:
                lines = fix.partition("\n")[2].replace("…", "...").replace("..., name", "int, name")
                ast.parse("async def checkout(ctx):\n" + textwrap.indent(lines, "    "))


def test_a_renamed_call_is_reported_and_keeping_its_name_mends_it() -> None:
    report = report_of(program_of(charge), program_of(apply_coupon))
    assert report["class"] == "inserted_or_renamed"
    assert '.options(name="charge")' in report["fixes"][1]

    before = Driver(program_of(charge)())
    before.run()
    renamed = Driver(program_of(apply_coupon.options(name="charge"))(), journal=before.journal)
    assert renamed.run() == Completed(b"[3]", 1)


def test_a_call_of_another_kind_is_reported() -> None:
    @workflow(name="checkout")
    def waits(ctx: Context) -> int:
        return ctx.wait_signal("charge", int, timeout=timedelta(1))

    report = report_of(program_of(charge), waits)

    assert report["class"] == "kind_changed"
    assert report["fixes"][0] == (
        "keep the recorded call for runs that made it:\n"
        'if ctx.patched("change-charge"):\n    ctx.wait_signal("charge", …)\nelse:\n    ctx.step(charge, …)'
    )
    assert report["actual"]["kind"] == "signal"


def test_code_that_ends_before_its_journal_is_reported() -> None:
    report = report_of(program_of(load_cart, reserve), program_of(load_cart))

    assert report["class"] == "returned_early"
    assert report["expected"]["key"] == "/step:reserve#1"
    assert report["ended_at"] == line_of("def checkout", -1)


def test_code_that_raises_before_its_journal_ends_is_reported_with_the_line_that_raised() -> None:
    @workflow(name="checkout")
    def new(ctx: Context) -> int:
        return ctx.step(load_cart) // 0

    report = report_of(program_of(load_cart, reserve), new)

    assert report["class"] == "raised_early"
    assert report["expected"]["key"] == "/step:reserve#1"
    assert report["ended_at"] == line_of("return ctx.step(load_cart) // 0")
    assert report["detail"].startswith("ZeroDivisionError: ")
    assert f"this code: ended at {report['ended_at']}" in report["text"]


def test_code_that_waits_where_the_journal_goes_on_is_reported() -> None:
    @workflow(name="checkout")
    def old(ctx: Context) -> None:
        ctx.parallel(lambda c: c.step(load_cart), lambda c: c.step(reserve))

    @workflow(name="checkout")
    def new(ctx: Context) -> None:
        ctx.step(apply_coupon)

    report = report_of(old, new)

    assert report["class"] == "not_reached"
    assert report["expected"]["key"] == "/branch:parallel#1[0]/step:load_cart#1"
    assert report["waiting"] == ["/step:apply_coupon#1"]
    assert report["actual"]["source"] == line_of("        ctx.step(apply_coupon)")


@pytest.mark.parametrize("form", ["sync", "async"])
def test_the_line_at_which_the_code_waits_is_found_when_its_call_is_recorded(form: str) -> None:
    @workflow(name="checkout")
    async def old(ctx: AsyncContext) -> None:
        task = asyncio.ensure_future(ctx.wait_signal("go", int, timeout=timedelta(1)))
        await ctx.step(load_cart)
        await task

    @workflow(name="checkout")
    async def asynchronous(ctx: AsyncContext) -> None:
        await inner(ctx)

    async def inner(ctx: AsyncContext) -> None:
        await ctx.wait_signal("go", int, timeout=timedelta(1))  # async

    @workflow(name="checkout")
    def synchronous(ctx: Context) -> None:
        ctx.wait_signal("go", int, timeout=timedelta(1))  # sync

    report = report_of(old, synchronous if form == "sync" else asynchronous)

    assert report["class"] == "not_reached"
    assert report["expected"]["key"] == "/step:load_cart#1"
    assert report["actual"]["key"] == "/signal:go#1"
    assert report["stands_at"] == [line_of(f"# {form}")]
    assert report["actual"]["source"] == report["stands_at"][0]


def test_a_call_that_was_made_but_never_recorded_matches_anything() -> None:
    @workflow(name="checkout")
    async def old(ctx: AsyncContext) -> None:
        await asyncio.gather(ctx.step(load_cart), ctx.step(reserve))

    @workflow(name="checkout")
    async def new(ctx: AsyncContext) -> None:
        await asyncio.gather(ctx.step(apply_coupon), ctx.step(reserve))

    before = Driver(old())
    before.run()
    only_second = [before.journal[0], msgspec.structs.replace(before.journal[2], seq=2)]

    assert Driver(new(), journal=only_second).run() == Completed(None, 0)


def test_a_payload_that_no_longer_fits_blocks_the_run_until_a_type_fits() -> None:
    @step(name="charge")
    def text() -> str:
        return "3"

    report = report_of(program_of(charge), program_of(text))  # type: ignore[arg-type]

    assert report["class"] == "undecodable"
    assert "3 is no str" in report["detail"]
    assert "new fields need defaults" in report["fixes"][0]


def waiting_for(kind: str, type_: Any) -> Workflow[[], Any]:
    @workflow(name="checkout")
    def checkout(ctx: Context) -> Any:
        return ctx.wait_signal("go", type_) if kind == "signal" else ctx.awakeable(type_).wait()

    return checkout


@pytest.mark.parametrize(
    ("kind", "key"),
    [(Kind.SIGNAL, "/signal:go#1"), (Kind.AWAKEABLE, "2")],
    ids=["signal", "promise"],
)
def test_a_wrong_value_that_was_sent_is_the_senders_and_the_ways_out_are_named(kind: Kind, key: str) -> None:
    sent = {"go": ["nine"], "awakeable": ["nine"]}

    outcome = Driver(waiting_for(kind.label, int)(), signals=sent, completions=sent).run()

    assert isinstance(outcome, Blocked)
    text = outcome.report["text"]
    assert outcome.report["class"] == "undecodable"
    assert f"pgwf fork run-1 --before '{key}'" in outcome.report["fixes"][0]
    assert "pgwf terminate run-1" in outcome.report["fixes"][0]
    assert "new fields need defaults" in outcome.report["fixes"][1]
    assert "first difference" not in text
    assert "not recorded" not in text
    assert "<- this value" in text


def test_a_wrong_input_ends_the_run_since_no_fork_has_another_one() -> None:
    @workflow(name="checkout")
    def counting(ctx: Context, count: int) -> int:
        return count

    @workflow(name="checkout")
    def saying(ctx: Context, count: str) -> str:
        return count

    driver = Driver(saying("nine"))
    outcome = Driver(counting(9), journal=driver.journal).run()

    assert isinstance(outcome, Blocked)
    assert outcome.report["fixes"] == [
        "if the input is wrong, end the run and start a run with the right one: pgwf terminate run-1",
        "if the input is right: deploy a type that accepts the stored payload (new fields need defaults), then resume"
        " the run",
    ]
    assert "≠ nothing" not in outcome.report["text"]


def test_waiting_for_what_nothing_will_bring_about_is_reported() -> None:
    @workflow
    async def program(ctx: AsyncContext) -> None:
        await asyncio.Event().wait()

    outcome = Driver(program()).run()

    assert isinstance(outcome, Blocked)
    assert outcome.report["class"] == "stalled"


def test_a_difference_is_final_for_the_activation_whatever_the_code_catches() -> None:
    @workflow(name="checkout")
    def new(ctx: Context) -> str:
        try:
            ctx.step(apply_coupon)
        except BaseException:  # noqa: BLE001 - the point of the test
            return "swallowed"
        return ""

    assert report_of(program_of(charge), new)["class"] == "inserted_or_renamed"


def test_the_text_shows_both_sides_with_their_source_lines() -> None:
    report = report_of(program_of(load_cart, charge), program_of(load_cart, apply_coupon, charge))
    shown = with_sources(
        report, {2: Source("b41", "flows/cart.py", 9), 3: Source("b41", "flows/checkout.py", 36)}, build="b42"
    )

    lines = shown["text"].splitlines()
    assert lines[0].startswith("run run-1 (workflow 'checkout') cannot go on with build b42:")
    assert lines[1] == "  inserted_or_renamed at scope /, position 2"
    assert "/step:load_cart#1 (flows/cart.py:9)" in lines[2]
    assert lines[3].startswith("  >    2  /step:charge#1")
    assert "(flows/checkout.py:36)" in lines[3]
    assert f"/step:apply_coupon#1  {__file__}:" in lines[3]
    assert lines[3].endswith("<- first difference")
    assert lines[4].startswith("  recorded:  /step:charge#1 at flows/checkout.py:36 by build b41, 2026-")
    assert lines[5] == f"  this code: /step:apply_coupon#1 at {report['actual']['source']}"
    assert lines[6:9] == [
        "  fix: if the call is new, guard it:",
        '         if ctx.patched("add-apply_coupon"):',
        "             ctx.step(apply_coupon, …)",
    ]
    assert report["expected"]["source"] is None


def test_entries_of_other_kinds_are_no_calls() -> None:
    driver = Driver(program_of(charge)())
    driver.run()
    driver._append(0, Kind.RUN, driver.journal[-1].phase, "", "checkout", 1, b"[3]", 1)

    assert driver.run() == Completed(b"[3]", 1)
