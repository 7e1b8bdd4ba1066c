"""What callers without a type checker get wrong, told in the words of the call that they should have made."""

from __future__ import annotations

from datetime import timedelta

from pgwf_sdk._definition import Call, Step, Workflow


def check_call(found: object, excess: tuple[object, ...], *, used: str) -> None:
    """TypeError: `found` is no call of a workflow, or arguments follow it. `used` is what was called: `ctx.call`."""
    if isinstance(found, Call) and not excess:
        return
    if isinstance(found, Workflow):
        arguments = "its arguments beside it" if excess else "no arguments"
        raise TypeError(
            f"{used}: found the workflow {found.name} with {arguments}; expected a call, which holds its arguments:"
            f" {used}({found.name}{'(…)' if found.signature.parameters else '()'}),"
            f" where {found.name} takes {found.signature}"
        )
    if isinstance(found, Call):
        raise TypeError(
            f"{used}: found {len(excess)} more after the call; expected the arguments of the workflow inside the call:"
            f" {used}(checkout(order))"
        )
    what = f"the step {found.name}" if isinstance(found, Step) else f"{found!r}, a {type(found).__name__}"
    raise TypeError(
        f"{used}: found {what}; expected the call of a workflow, such as {used}(checkout(order)). Steps are called by"
        " workflows only, and calling one anywhere else runs its function at once"
    )


def check_timedelta(found: object, *, used: str) -> None:
    """TypeError: a number lacks a unit. `used` is the option as it was written: `result(timeout=3)`."""
    if not isinstance(found, timedelta):
        raise TypeError(f"{used}: found {found!r}; expected a timedelta, such as timedelta(seconds=5)")
