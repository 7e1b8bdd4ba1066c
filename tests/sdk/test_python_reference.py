"""docs/python-reference.md has every public name, and every signature as it is."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pgwf
import pgwf_journal
import pgwf_sdk
import pgwf_sdk.testing
from pgwf_sdk import AsyncContext, Client, Context, ForkPrice, Run, RunFailedError, Worker
from pgwf_sdk._client import HumanTasks
from pgwf_sdk.ops import RunSummary, TaskSummary
from pgwf_sdk.testing import CrashReport, Cut, Environment, MockCall, Recording, StepMock

PAGE = Path(__file__).parents[2] / "docs" / "python-reference.md"

MODULES = (pgwf_sdk, pgwf_sdk.testing, pgwf, pgwf_journal)

NOT_SAID = {"self", "excess"}
"""`*excess: Never` is there for type checkers, and for the message of who passes arguments beside the call."""

CLASSES: dict[str, Any] = {
    "Context, AsyncContext": Context,
    "Client": Client,
    "Run, AsyncRun": Run,
    "client.human": HumanTasks,
    "Worker": Worker,
    "Environment": Environment,
    "pgwf.Client": pgwf.Client,
    "Lease": pgwf.Lease,
    "pgwf_journal.Journal": pgwf_journal.Journal,
}
"""Whose methods each have a row below the heading."""

FOR_OURSELVES: dict[type, set[str]] = {
    Environment: {"reset_story", "run_ids"},  # of crash_everywhere
}

SINGLE: dict[str, Any] = {
    "Step.options": pgwf_sdk.Step.options,
    "Sealing": pgwf_sdk.Sealing,
    "Telemetry": pgwf_sdk.Telemetry,
    "workflow": pgwf_sdk.workflow,
    "step": pgwf_sdk.step,
    "RetryPolicy": pgwf_sdk.RetryPolicy,
    "RetryAfter": pgwf_sdk.RetryAfter,
    "Decision": pgwf_sdk.Decision,
    "Vote": pgwf_sdk.Vote,
    "MinSuccessful": pgwf_sdk.MinSuccessful,
    "ToleratedFailures": pgwf_sdk.ToleratedFailures,
    "JournalLimits": pgwf_sdk.JournalLimits,
    "Worker": Worker,
    "Client": Client,
    "Environment": Environment,
    "RunSummary": RunSummary,
    "TaskSummary": TaskSummary,
    "ForkPrice": ForkPrice,
    "MockCall": MockCall,
    "CrashReport": CrashReport,
    "Cut": Cut,
    "Recording.of": Recording.of,
    "Recording.load": Recording.load,
    "Recording.save": Recording.save,
    "Recording.replay": Recording.replay,
    "StepMock.rewind": StepMock.rewind,
    "Entry": pgwf_journal.Entry,
    "NewEntry": pgwf_journal.NewEntry,
    "Journal": pgwf_journal.Journal,
    "key_of": pgwf_journal.key_of,
}

Signature = list[tuple[str, str, str | None]]
"""Of each parameter: its kind, its name, its default if it has one."""


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8").replace("\\|", "|")


def section(heading: str) -> str:
    """The text below a heading, up to the next of its level or above."""
    found = re.search(rf"^(##+) {re.escape(heading)}\n(.*?)(?=^##|\Z)", page(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE.name}: expected a heading {heading!r}"
    return found[2]


def documented(name: str, text: str) -> list[Signature]:
    """Every signature of that name, in a row or a block."""
    names = f"(?:{re.escape(name)}|{re.escape(name.rpartition('.')[2])})"
    starts = rf"(?:^\| `|^```python\n@?){names}(\([^`]*?)(?:` \||\n```)"
    return [parsed(match[1]) for match in re.finditer(starts, text, re.MULTILINE | re.DOTALL)]


def parsed(signature: str) -> Signature:
    function = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    without: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    told = [
        ("/" if each in given.posonlyargs else "", each.arg, text_of(default))
        for each, default in zip(positional, [*without, *given.defaults], strict=True)
    ]
    told += [("*args", given.vararg.arg, None)] if given.vararg else []
    told += [
        ("*", each.arg, text_of(default)) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return told + ([("**", given.kwarg.arg, None)] if given.kwarg else [])


def text_of(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "/",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.VAR_POSITIONAL: "*args",
    inspect.Parameter.KEYWORD_ONLY: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def real(function: Any) -> Signature:
    parameters = inspect.signature(function).parameters.values()
    return [(KINDS[each.kind], each.name, default_of(each)) for each in parameters if each.name not in NOT_SAID]


def default_of(parameter: inspect.Parameter) -> str | None:
    value = parameter.default
    if value is parameter.empty:
        return None
    if isinstance(value, pgwf_sdk.RetryPolicy | pgwf_sdk.JournalLimits):
        return f"{type(value).__name__}()"
    if value == (Exception,):
        return "(Exception,)"
    if "factory" in repr(value):  # Of a dataclass: it makes something empty.
        return "()"
    return ast.unparse(ast.parse(repr(value).replace("datetime.", ""), mode="eval"))


def methods(cls: type) -> list[str]:
    return [
        name
        for name in dir(cls)
        if not name.startswith("_")
        and name not in FOR_OURSELVES.get(cls, ())
        and (callable(getattr(cls, name)) or isinstance(inspect.getattr_static(cls, name), property))
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_there(module: Any) -> None:
    assert [name for name in module.__all__ if not re.search(rf"\b{name}\b", page())] == []


@pytest.mark.parametrize("heading", CLASSES)
def test_every_method_is_there_with_its_parameters_and_defaults(heading: str) -> None:
    cls, text = CLASSES[heading], section(heading)
    for name in methods(cls):
        if isinstance(inspect.getattr_static(cls, name), property):
            assert f"| `{name}` |" in text, f"{heading}: no row for {name}"
        elif (cls, name) != (Environment, "mock"):  # Overloaded: its answers are **answers to Python.
            assert real(getattr(cls, name)) in documented(name, text), f"{heading}: {name}{real(getattr(cls, name))}"


@pytest.mark.parametrize("name", SINGLE)
def test_every_other_signature_is_as_it_is(name: str) -> None:
    assert real(SINGLE[name]) in documented(name, page())


def test_answers_of_mocks_are_those_of_the_page() -> None:
    (told,) = documented("mock", section("Environment"))

    assert [name for _, name, _ in told] == ["step", "replacement", "returns", "outcomes"]


@pytest.mark.parametrize("option", [each.name for each in fields(pgwf_sdk.Step)][2:-1])
def test_every_option_of_a_step_has_a_row(option: str) -> None:
    assert f"| `{option}` |" in section("step")


@pytest.mark.parametrize("option", list(inspect.signature(Worker).parameters))
def test_every_option_of_a_worker_has_a_row(option: str) -> None:
    assert f"| `{option}` |" in section("Worker")


@pytest.mark.parametrize("field", [each.name for each in fields(pgwf_sdk.RetryPolicy)])
def test_every_field_of_a_retry_policy_has_a_row(field: str) -> None:
    assert f"| `{field}` |" in section("RetryPolicy")


def test_every_attribute_of_a_running_step_has_a_row() -> None:
    told = section("In a step")

    missing = [name for name in methods(pgwf_sdk.StepContext) if name != "end" and f"| `{name}" not in told]
    attributes = [name for name in pgwf_sdk.StepContext.__slots__ if not name.startswith("_")]
    assert missing + [name for name in attributes if f"| `{name}`" not in told] == []


ERRORS = [
    getattr(pgwf_sdk, name)
    for name in pgwf_sdk.__all__
    if inspect.isclass(getattr(pgwf_sdk, name)) and issubclass(getattr(pgwf_sdk, name), BaseException)
]


@pytest.mark.parametrize("error", [each for each in ERRORS if each.__module__ != "pgwf_sdk._retry"])
def test_every_error_has_a_row_with_its_base_and_its_attributes(error: type[BaseException]) -> None:
    row = next((line for line in section("Errors").splitlines() if line.startswith(f"| `{error.__name__}` |")), "")

    bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    assert row.startswith(f"| `{error.__name__}` | {bases} |")
    own = vars(error).get("__init__")
    given = inspect.signature(own).parameters.values() if own else ()
    assert [each.name for each in given if each.kind is each.KEYWORD_ONLY and f"`{each.name}`" not in row] == []


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [
        (Context, AsyncContext),
        (Client, pgwf_sdk.AsyncClient),
        (Run, pgwf_sdk.AsyncRun),
        (pgwf_sdk.Child, pgwf_sdk.AsyncChild),
        (pgwf_sdk.Awakeable, pgwf_sdk.AsyncAwakeable),
        (pgwf.Client, pgwf.AsyncClient),
        (pgwf.Lease, pgwf.AsyncLease),
        (pgwf_journal.Journal, pgwf_journal.AsyncJournal),
    ],
)
def test_what_is_awaited_has_the_same_methods_as_the_page_says(plain: type, awaited: type) -> None:
    assert methods(awaited) == methods(plain)
    for name in methods(plain):
        if callable(getattr(plain, name)) and name != "wake":
            assert real(getattr(awaited, name)) == real(getattr(plain, name)), name


def test_a_signature_that_is_stale_is_found() -> None:
    text = "| `signal(run_id: str, name: str = 'x', /, *, dedup: int = 3) -> bool` | sends |"

    assert documented("signal", text) == [[("/", "run_id", None), ("/", "name", "'x'"), ("*", "dedup", "3")]]
    assert documented("signal", text) != [real(Client.signal)]
    assert RunFailedError in ERRORS
