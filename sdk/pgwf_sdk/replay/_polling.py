"""Polling: a step that is asked again until its answer will do.

Each answer that will not do is a failed attempt, kept beside the journal until the last one: however long it takes, the
journal has one entry, and between two attempts the run is in no worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from pgwf_sdk._errors import WaitTimeoutError
from pgwf_sdk._retry import RetryAfter, RetryPolicy
from pgwf_sdk._wording import limit_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from random import Random

    from pgwf_sdk._definition import Step

__all__ = ["polling_step"]

_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace(RetryPolicy):
    every: timedelta

    def delay_after(self, attempt: int, error: BaseException, random: Random) -> timedelta | None:
        if isinstance(error, RetryAfter):
            return error.delay
        return self.every if isinstance(error, WaitTimeoutError) or self.allows(error) else None


def polling_step(
    step: Step[..., Any], *, until: Callable[[Any], object], every: timedelta, timeout: timedelta
) -> Step[..., Any]:
    """Return the step as one that fails with WaitTimeoutError while `until` does not accept what it returns."""
    fn: Any = step.fn

    def accepted(answer: Any) -> Any:
        if until(answer):
            return answer
        shown = repr(answer)
        if len(shown) > _SHOWN_CHARACTERS_MAX:
            shown = f"{shown[: _SHOWN_CHARACTERS_MAX - 1]}…"
        raise WaitTimeoutError(
            f"{step.name!r} did not give what is waited for within {limit_words(timeout)}; its last answer: {shown}",
            name=step.name,
        )

    if step.is_async:

        @wraps(fn)
        async def acheck(*args: Any, **kwargs: Any) -> Any:
            return accepted(await fn(*args, **kwargs))

        check: Any = acheck
    else:

        @wraps(fn)
        def scheck(*args: Any, **kwargs: Any) -> Any:
            return accepted(fn(*args, **kwargs))

        check = scheck
    retry = step.retry
    pace = _Pace(every=every, max_elapsed=timeout, retry_on=retry.retry_on, no_retry_on=retry.no_retry_on)
    return replace(step, fn=check, retry=pace)
