"""What the options of a step may be, and which of them go together."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import described
from pgwf_sdk._names import check_need
from pgwf_sdk._retry import RetryPolicy

if TYPE_CHECKING:
    from pgwf_sdk._definition import Step

OnCancel = Literal["abort", "finish"]
"""What happens to an attempt of a step that nobody waits for any more."""

Durability = Literal["deferred"]
"""When the result of a step is recorded, if not by a commit of its own before the code sees it."""

_TYPES: Final[dict[str, type]] = {
    "need": str,
    "retry": RetryPolicy,
    "timeout": timedelta,
    "total_timeout": timedelta,
    "heartbeat_timeout": timedelta,
    "at_most_once": bool,
}
_EXAMPLES: Final[dict[type, str]] = {
    str: '"gpu"',
    RetryPolicy: "RetryPolicy(max_attempts=3)",
    timedelta: "timedelta(seconds=30)",
    bool: "True",
}


def check_options(step: Step[..., Any]) -> None:
    """DefinitionError: an option is not what it can be, or does not go together with another."""
    if step.isolate is not None:
        _check_isolation(step)
    for option, kind in _TYPES.items():
        value = getattr(step, option)
        if value is not None and not isinstance(value, kind):
            raise DefinitionError(
                f"step {step.name!r}: {option} is {described(value)}; expected a {kind.__name__},"
                f" such as {_EXAMPLES[kind]}"
            )
        if isinstance(value, timedelta) and value <= timedelta(0):
            raise DefinitionError(f"step {step.name!r}: {option} is {value}; expected longer than nothing")
    if step.need is not None:
        check_need(step.need, f"step {step.name!r}: need")
    if step.on_cancel not in (None, "abort", "finish"):
        raise DefinitionError(f"step {step.name!r}: on_cancel is {step.on_cancel!r}; expected 'abort' or 'finish'")
    if step.durability is not None:
        _check_durability(step)
    if step.undo is not None:
        _check_undo(step, step.undo_step)


def _check_isolation(step: Step[..., Any]) -> None:
    if step.isolate != "process":
        raise DefinitionError(f'step {step.name!r}: isolate is {step.isolate!r}; expected "process"')
    if step.is_async or step.is_transaction:
        what = "an async function" if step.is_async else "run in a transaction, on a connection of the worker"
        raise DefinitionError(f'step {step.name!r} is {what}; expected a plain def with isolate="process"')
    path = getattr(step.fn, "__qualname__", "")
    if not path or "<" in path:  # A lambda, or what only exists while another function runs.
        raise DefinitionError(
            f'step {step.name!r}: {step.fn!r} cannot be found from another process; with isolate="process" a step'
            " is a function at the top of a module, or in a class there"
        )


def _check_durability(step: Step[..., Any]) -> None:
    if step.durability != "deferred":
        raise DefinitionError(f'step {step.name!r}: durability is {step.durability!r}; expected "deferred"')
    promises = {
        "run in a transaction": step.is_transaction,
        "at_most_once": step.at_most_once,
        "given an undo": step.undo is not None,
        'let finish (on_cancel="finish")': step.on_cancel == "finish",
    }
    for promise, is_made in promises.items():
        if is_made:
            raise DefinitionError(
                f'step {step.name!r} has durability="deferred" and is {promise}: what it has done could be forgotten'
                " and done again; expected deferred only for steps without effects"
            )


def _check_undo(step: Step[..., Any], undo: Step[..., Any]) -> None:
    try:
        undo.parameters.check((None,), {})
    except TypeError as error:
        raise DefinitionError(f"step {step.name!r}: its undo is called with its result alone: {error}") from None
    if undo.undo is not None:
        raise DefinitionError(f"step {step.name!r}: its undo {undo.name!r} has one itself; expected one without")
    if undo.is_deferred:
        raise DefinitionError(
            f'step {step.name!r}: its undo {undo.name!r} has durability="deferred"; expected one whose end is recorded'
            " at once, so that it is not repeated"
        )
