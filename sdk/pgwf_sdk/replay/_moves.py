"""What moves a run as a whole, to other workers or into its successor, and is therefore not for its branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pgwf_sdk._errors import ContextError, RunContinued
from pgwf_sdk._misuse import check_call
from pgwf_sdk._names import check_need
from pgwf_sdk.replay._calls import HopCall

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pgwf_sdk._definition import Call
    from pgwf_sdk.replay._scope import Scope

__all__ = ["continuation", "leave", "open_hop"]


def open_hop(scope: Scope, need: str) -> HopCall:
    """The call that moves the run to workers that offer `need`."""
    _check_is_root(scope, "ctx.hop")
    call = HopCall(scope, check_need(need, "ctx.hop"))
    scope.machine.open(call)
    return call


def continuation(scope: Scope, call: Call[Any], excess: tuple[Any, ...]) -> RunContinued:
    """What the code is left with when the run goes on as `call`. SerialisationError: an argument cannot be stored."""
    check_call(call, excess, used="ctx.continue_as_new")
    _check_is_root(scope, "ctx.continue_as_new")
    call.encode()  # Refused here, where the code can still do something about it.
    return RunContinued(call)


def leave(scope: Scope, how: RunContinued) -> Coroutine[None, None, NoReturn]:
    """Leave the code of an async workflow with `how`, where that is awaited."""
    leaving = scope.machine.leaving = _raise(how)
    return leaving


async def _raise(how: RunContinued) -> NoReturn:
    raise how


def _check_is_root(scope: Scope, used: str) -> None:
    if scope.path:
        raise ContextError(
            f"{used} was called in the branch {scope.path}, but concerns the whole run; expected it outside of parallel"
            " and map"
        )
