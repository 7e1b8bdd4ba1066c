"""What callers without a type checker get wrong, told in the words of the call that they should have made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from pgwf_sdk._definition import Call, Step, Workflow
from pgwf_sdk._kinds import described, kind_of
from pgwf_sdk._sealing import Sealing


def check_call(found: object, excess: tuple[object, ...], *, used: str) -> None:
    """TypeError: `found` is no call of a workflow, or arguments follow it. `used` is what was called: `ctx.call`."""
    if isinstance(found, Call) and not excess:
        return
    if isinstance(found, Workflow):
        arguments = "its arguments beside it" if excess else "no arguments"
        raise TypeError(
            f"{used}: found the workflow {found.name} with {arguments}; expected a call, which holds its arguments:"
            f" {used}({found.name}{'(…)' if len(found.parameters) else '()'}),"
            f" where {found.name} takes {found.parameters}"
        )
    if isinstance(found, Call):
        raise TypeError(
            f"{used}: found {len(excess)} more after the call; expected the arguments of the workflow inside the call:"
            f" {used}(checkout(order))"
        )
    raise TypeError(
        f"{used}: found {_described(found)}; expected the call of a workflow, such as {used}(checkout(order))."
        " Steps are called by workflows only, and calling one anywhere else runs its function at once"
    )


def check_story(found: object, *, used: str) -> None:
    """TypeError: neither the call of a workflow nor a function that tells a story."""
    if not isinstance(found, Call) and (isinstance(found, Step | Workflow) or not callable(found)):
        raise TypeError(
            f"{used}: found {_described(cast('Any', found))}; expected a story, which is the call of a workflow or a"
            f" function of the environment: {used}(lambda env: env.run(checkout(order)))"
        )


def check_attach(run_id: object, workflow: object) -> None:
    """TypeError: no id of a run, or what should tell its workflow does not."""
    if not isinstance(run_id, str):
        raise TypeError(
            f"ctx.attach: found {_described(run_id)}; expected the id of a run that was started, such as 'order-17';"
            " a workflow that is to be started goes to ctx.call or ctx.spawn"
        )
    if workflow is not None and not isinstance(workflow, Workflow):
        raise TypeError(
            f"ctx.attach({run_id!r}, …): found {_described(workflow)}; expected the workflow that the run is of,"
            f" uncalled: ctx.attach({run_id!r}, checkout)"
        )


def check_workflow(found: object, *, used: str) -> None:
    """TypeError: no workflow, or one that was called."""
    if not isinstance(found, Workflow):
        raise TypeError(f"{used}: found {_described(found)}; expected a workflow, uncalled, such as checkout")


def check_sealing(found: object, *, used: str) -> None:
    """TypeError: neither None nor a Sealing."""
    if found is not None and not isinstance(found, Sealing):
        raise TypeError(
            f"{used}: found {kind_of(found)}; expected the keys by their names: Sealing({{'2026-11': key}})"
        )


def check_workflows(found: object, *, used: str) -> list[Workflow[..., Any]]:
    """Return the workflows. TypeError: one that is not in a list, or something else in the list."""
    if isinstance(found, Workflow):
        raise TypeError(f"{used}: found the workflow {found.name}; expected a list: workflows=[{found.name}]")
    if not isinstance(found, Iterable):
        raise TypeError(f"{used}: found {_described(found)}; expected a list of workflows: workflows=[checkout]")
    listed: list[object] = list(cast("Any", found))
    for one in listed:
        if isinstance(one, Workflow):
            continue
        is_step = isinstance(one, Step)
        advice = "a worker runs any step of the workflows it is given" if is_step else _ADVICE
        raise TypeError(f"{used}: found {_described(one)} among them; expected workflows only: {advice}")
    return cast("list[Workflow[..., Any]]", listed)


def check_names(found: object, *, used: str, such_as: str) -> list[str]:
    """Return the names. TypeError: a single text, whose letters would be taken for names, or no texts."""
    if isinstance(found, str):
        raise TypeError(f"{used}: found the text {found!r}; expected a list: [{found!r}]")
    listed = list(cast("Iterable[object]", found)) if isinstance(found, Iterable) else [found]
    for one in listed:
        if not isinstance(one, str):
            raise TypeError(f"{used}: found {_described(one)}; expected a list of texts, such as [{such_as!r}]")
    return cast("list[str]", listed)


_ADVICE = "functions decorated with @workflow, uncalled"


def _described(found: object) -> str:
    if isinstance(found, Step):
        return f"the step {found.name}"
    if isinstance(found, Workflow):
        return f"the workflow {found.name}"
    return "a call of a workflow" if isinstance(found, Call) else described(found)
