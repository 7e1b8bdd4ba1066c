"""What the workflows of this folder do: steps that keep count, and a look at the journal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pgwf_sdk import RetryPolicy, step

if TYPE_CHECKING:
    from pgwf_sdk import Run
    from pgwf_sdk.testing import Environment

EXECUTED: Counter[str] = Counter()
"""How often each step was executed, by what it was given."""

ONCE = RetryPolicy(max_attempts=1)


class TransientError(Exception):
    """Trying again may help."""


@step
def greet(name: str) -> str:
    EXECUTED[name] += 1
    return f"Hello, {name}!"


@step
def add_one(number: int) -> int:
    EXECUTED[f"add_one({number})"] += 1
    return number + 1


@step
def nothing() -> None:
    EXECUTED["nothing"] += 1


@step(retry=ONCE)
def refuse(reason: str) -> str:
    EXECUTED[reason] += 1
    raise LookupError(reason)


def keys(env: Environment, run: Run[Any], *phases: str) -> list[str]:
    """The keys of the calls in a run's journal, in order; with `phases` only of entries of these."""
    return [
        entry.key
        for entry in env.journal(run)
        if entry.call and (entry.phase.label in phases if phases else entry.phase.is_resolving)
    ]
