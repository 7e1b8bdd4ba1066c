"""What is refused with the words of the call that should have been made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pgwf_sdk import Client, Context, Worker, step, workflow
from pgwf_sdk._wording import limit_words


@step
def charge(order: str) -> str:
    return order


@workflow
def checkout(ctx: Context, order: str) -> str:
    return ctx.step(charge, order)


def plain() -> None:
    """No workflow."""


@pytest.mark.parametrize(
    ("workflows", "message"),
    [
        (checkout, r"found the workflow checkout; expected a list: workflows=\[checkout\]"),
        ([charge], r"found the step charge among them; .*a worker runs any step of the workflows it is given"),
        ([checkout("17")], r"found a call of a workflow among them; .*@workflow, uncalled"),
        ([checkout, plain], r"found <function plain .*, a function among them; .*decorated with @workflow"),
        (plain, r"found <function plain .*, a function; expected a list of workflows"),
        (None, r"found None, a NoneType; expected a list of workflows: workflows=\[checkout\]"),
    ],
)
def test_a_worker_without_a_list_of_workflows_is_told_what_to_write(workflows: Any, message: str) -> None:
    with Client("postgresql://nobody@nowhere/none") as client, pytest.raises(TypeError, match=message):
        Worker(client, workflows=workflows)


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [("gpu", r"found the text 'gpu'; expected a list: \['gpu'\]"), ([1], r"found 1, a int; .*such as \['gpu'\]")],
)
def test_the_letters_of_a_text_are_no_capabilities(capabilities: Any, message: str) -> None:
    with Client("postgresql://nobody@nowhere/none") as client, pytest.raises(TypeError, match=message):
        Worker(client, workflows=[checkout], capabilities=capabilities)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (timedelta(days=14), "14 days"),
        (timedelta(days=1, hours=1, minutes=5), "1 day 1 hour"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=90), "1 hour 30 minutes"),
        (timedelta(minutes=1, seconds=1), "1 minute 1 second"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(milliseconds=50), "0.05 seconds"),
        (timedelta(0), "0 seconds"),
    ],
)
def test_a_limit_is_named_as_its_author_would(limit: timedelta, words: str) -> None:
    assert limit_words(limit) == words
