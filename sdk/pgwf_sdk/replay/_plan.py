"""Steps that are planned while the code of a run goes on, and done when it has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgwf_sdk._definition import Step
    from pgwf_sdk.replay._places import Line

__all__ = ["Plan"]


class Plan(NamedTuple):
    """A step to be done at the end of the run; where it `undoes` a call (its key), only if the run did not complete.

    `code` is the user's line that planned it: the code has left when it is done.
    """

    step: Step[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    undoes: str | None
    code: Line | None
