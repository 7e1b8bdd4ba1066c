"""What the lint finds, what it lets pass, and how the command says so."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

from pgwf_sdk.cli._app import run_command
from pgwf_sdk.lint import RULES, lint_source

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HEAD = """
import asyncio
import contextlib
import datetime
import logging
import os
import random
import threading
import time
import uuid
from datetime import datetime as dt
from pathlib import Path

import pgwf_sdk
from pgwf_sdk import AsyncContext, Context, step, workflow

@step
def charge(order): return order

total = 0
"""


def rules_in(body: str, *, head: str = "@workflow\ndef shop(ctx: Context, order):") -> list[str]:
    return [one.rule for one in lint_source(HEAD + head + "\n" + textwrap.indent(textwrap.dedent(body), "    "))]


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("time.time()", "PGWF101"),
        ("dt.now()", "PGWF101"),
        ("datetime.date.today()", "PGWF101"),
        ("random.random()", "PGWF102"),
        ("uuid.uuid4()", "PGWF102"),
        ("os.urandom(8)", "PGWF102"),
        ("open('a')", "PGWF103"),
        ("print('a')", "PGWF103"),
        ("logging.info('a')", "PGWF103"),
        ("Path('a').read_text()", "PGWF103"),
        ("os.environ['A']", "PGWF104"),
        ("os.environ.get('A')", "PGWF104"),
        ("os.getenv('A')", "PGWF104"),
        ("ctx.step(charge, ctx)", "PGWF105"),
        ("for one in {1, 2}: ctx.step(charge, one)", "PGWF107"),
        ("wanted = set(order)\n[ctx.step(charge, one) for one in wanted]", "PGWF107"),
        ("ctx.map(charge, {1, 2})", "PGWF107"),
        ("threading.Thread(target=len).start()", "PGWF108"),
        ("try: ctx.step(charge, 1)\nexcept: pass", "PGWF109"),
        ("try: ctx.step(charge, 1)\nexcept BaseException: pass", "PGWF109"),
        ("try: ctx.step(charge, 1)\nexcept (ValueError, pgwf_sdk.RunCancelled): pass", "PGWF109"),
        ("try: ctx.step(charge, 1)\nfinally: order.close()", "PGWF110"),
        ("ctx.step(lambda: 1)", "PGWF111"),
        ("charge(order)", "PGWF112"),
        ("global total\ntotal = 1", "PGWF113"),
        ("time.sleep(1)", "PGWF114"),
        ("ctx.parallel(lambda own: ctx.step(charge, 1))", "PGWF115"),
        ("ctx.map(lambda own, one: own.step(charge, ctx.now()), order)", "PGWF115"),
        (
            "def each(own, one): return own.parallel(lambda inner: ctx.step(charge, one))\nctx.map(each, order)",
            "PGWF115",
        ),
        ("def each(own, one): return helper(ctx, one)\nctx.map(each, order)", "PGWF115"),
    ],
)
def test_each_rule_finds_what_it_is_for(body: str, rule: str) -> None:
    assert rules_in(body) == [rule]


@pytest.mark.parametrize(
    "body",
    [
        "ctx.now(); ctx.random.random(); ctx.uuid4(); ctx.log.info('a')",
        "ctx.side_effect(lambda: time.time())",
        "ctx.map(charge, sorted({1, 2}))",
        "for one in {1, 2}: order.append(one)",
        "try: ctx.step(charge, 1)\nexcept Exception: pass",
        "try: ctx.step(charge, 1)\nexcept BaseException:\n    ctx.step(charge, 2)\n    raise",
        "try: ctx.step(charge, 1)\nfinally: ctx.step(charge, 2)",
        "random.Random(17).random()",
        "datetime.timedelta(days=1); dt(2026, 1, 1); order.open(); order.print()",
        "ctx.parallel(lambda ctx: ctx.step(charge, 1), lambda own: own.parallel(lambda ctx: ctx.step(charge, 1)))",
        "def each(own, one):\n    ctx.log.info(ctx.run_id)\n    return own.step(charge, one)\nctx.map(each, order)",
        "def each(own, one):\n    ctx = own\n    return ctx.step(charge, one)\nctx.map(each, order)",
        "def later(): return ctx.step(charge, 1)\nlater()",
        "time.time()  # pgwf: ignore PGWF101",
        "time.time()  # pgwf: ignore",
    ],
)
def test_what_is_harmless_passes(body: str) -> None:
    assert rules_in(body) == []


def test_an_excuse_is_for_its_rule_only() -> None:
    assert rules_in("time.time()  # pgwf: ignore PGWF102") == ["PGWF101"]


def test_calls_of_an_async_context_that_nobody_awaits_are_found() -> None:
    head = "@workflow\nasync def shop(ctx: AsyncContext, order):"

    assert rules_in("ctx.step(charge, 1)", head=head) == ["PGWF106"]
    assert rules_in("await ctx.step(charge, 1)\nctx.log.info('a')", head=head) == []
    assert rules_in("tasks = [ctx.step(charge, 1)]\nawait asyncio.gather(*tasks)", head=head) == []


def test_code_outside_workflows_is_not_looked_at() -> None:
    assert rules_in("time.time(); open('a')", head="def plain(order):") == []
    assert rules_in("return time.time()", head="@step(name='read')\ndef read(order):") == []


def test_what_workflows_call_is_looked_at_wherever_it_is_in_the_module() -> None:
    found = lint_source(
        HEAD
        + textwrap.dedent("""
        @pgwf_sdk.workflow(name="shop")
        def shop(ctx: Context): return today()

        def today(): return dt.now()

        def with_context(ctx: Context): return random.random()
        """)
    )

    assert [one.rule for one in found] == ["PGWF101", "PGWF102"]
    assert "(called by workflow 'shop')" in found[0].message


def test_a_step_that_uses_a_context_is_found() -> None:
    assert rules_in("return 1", head="@step\ndef bad(ctx: Context):") == ["PGWF105"]
    assert rules_in("@step\ndef inner(): return ctx.now()\nreturn ctx.step(inner)") == ["PGWF105"]


def test_what_is_no_python_is_a_finding_with_its_place() -> None:
    (found,) = lint_source("def :", "shop.py")

    assert (found.rule, found.file, found.line) == ("PGWF000", "shop.py", 1)


def test_the_examples_have_nothing_to_be_found() -> None:
    found = [one for file in EXAMPLES.rglob("*.py") for one in lint_source(file.read_text("utf-8"), str(file))]

    assert found == []


def test_the_command_reads_files_folders_and_modules_and_ends_with_one_when_it_finds_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "shop.py"
    bad.write_text(HEAD + "@workflow\ndef shop(ctx):\n    return time.time()\n")

    codes = [run_command(["lint", str(bad)])]
    as_text = capsys.readouterr().out
    codes.append(run_command(["lint", "-o", "json", str(tmp_path)]))
    as_json = capsys.readouterr().out
    codes.append(run_command(["lint", "pgwf_sdk.lint"]))
    codes.append(run_command(["lint", "no_such_module"]))

    assert codes == [1, 1, 0, 6]
    assert as_text.startswith(f"{bad}:23:12: PGWF101 time.time(…) in workflow code: use ctx.now()")
    (found,) = msgspec.json.decode(as_json)
    assert (found["rule"], found["line"], found["workflow"]) == ("PGWF101", 23, "shop")


def test_looking_at_no_file_is_an_error_and_one_file_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["lint", str(tmp_path)]) == 2
    assert "no Python file in" in capsys.readouterr().err
    (tmp_path / "shop.py").write_text(HEAD + "@workflow\ndef shop(ctx): return 1\n")
    assert run_command(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "nothing found in 1 file\n"


def test_files_without_a_workflow_are_told_from_files_in_which_nothing_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.py").write_text(HEAD)
    assert run_command(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "no workflow in 1 file\n"

    (tmp_path / "helpers.py").write_text("import pgwf_sdk as p\ndef total(ctx: p.Context): return ctx.now()\n")
    assert run_command(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "nothing found in 2 files\n"


CLOCK = "import time\n@workflow\nasync def shop(ctx: AsyncContext):\n    ctx.sleep(1)\n    time.time()\n"


def test_names_of_pgwf_are_known_by_a_star_import() -> None:
    assert [one.rule for one in lint_source("from pgwf_sdk import *\n" + CLOCK)] == ["PGWF106", "PGWF101"]


@pytest.mark.parametrize(
    "line",
    [
        "from base import *",
        "from .base import *",
        "from flows.base import *",
        "from base import AsyncContext, workflow",
        "from . import *",
        "from again import *",
    ],
)
def test_names_of_pgwf_are_known_through_modules_beside_the_file(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "base.py").write_text("from pgwf_sdk import *\nfrom again import *\n")
    (folder / "again.py").write_text("from .base import *\n")
    (folder / "__init__.py").write_text("from .base import AsyncContext, workflow\n")

    found = lint_source(f"{line}\n{CLOCK}", str(folder / "shop.py"))

    assert [one.rule for one in found] == ["PGWF106", "PGWF101"]


def test_a_star_import_does_not_make_pgwf_of_what_its_module_defines(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("from pgwf_sdk import AsyncContext\ndef workflow(fn): return fn\n")

    assert lint_source("from base import *\n" + CLOCK.replace("AsyncContext", "int"), str(tmp_path / "shop.py")) == []


def test_the_rules_are_listed_without_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["lint", "--rules"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(RULES)
