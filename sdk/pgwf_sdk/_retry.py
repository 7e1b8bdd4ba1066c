"""When a failed step is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import check_timedelta, described

if TYPE_CHECKING:
    from random import Random

__all__ = ["NonRetryable", "RetryAfter", "RetryPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a step is tried again. The default gives up after six attempts, so that a fault shows.

    The pause after attempt n is drawn evenly from 0 to `min(initial * factor ** (n - 1), max_interval)`: "full jitter"
    of M. Brooker, Exponential Backoff And Jitter (2015), which spreads callers that failed together best. `max_elapsed`
    counts from the start of the first attempt; no attempt starts after it. An exception is retried when it is an
    instance of a class in `retry_on` and of none in `no_retry_on`. DefinitionError: a bound that makes no sense.
    """

    max_attempts: int = 6
    initial: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_interval: timedelta = timedelta(minutes=1)
    max_elapsed: timedelta | None = None
    retry_on: tuple[type[Exception], ...] = (Exception,)
    no_retry_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        self._check_kinds()
        zero = timedelta(0)
        for name, found, holds, expected in (
            ("max_attempts", self.max_attempts, self.max_attempts >= 1, "1 or more"),
            ("initial", self.initial, self.initial >= zero, "0 or longer"),
            ("factor", self.factor, self.factor >= 1, "1 or more"),
            ("max_interval", self.max_interval, self.max_interval >= self.initial, "`initial` or longer"),
            ("max_elapsed", self.max_elapsed, self.max_elapsed is None or self.max_elapsed > zero, "longer than 0"),
        ):
            if not holds:
                raise DefinitionError(f"RetryPolicy: {name} is {found}; expected {expected}")

    def _check_kinds(self) -> None:
        for name, kind, such_as in (
            ("max_attempts", int, "a whole number, such as 3"),
            ("initial", timedelta, "a timedelta, such as timedelta(seconds=1)"),
            ("factor", int | float, "a number, such as 2.0"),
            ("max_interval", timedelta, "a timedelta, such as timedelta(minutes=1)"),
            ("max_elapsed", timedelta | None, "a timedelta, such as timedelta(hours=1)"),
        ):
            found = getattr(self, name)
            if not isinstance(found, kind):
                raise DefinitionError(f"RetryPolicy: {name} is {described(found)}; expected {such_as}")
        for name in ("retry_on", "no_retry_on"):
            found = getattr(self, name)
            try:
                issubclass(Exception, found)
            except TypeError:
                raise DefinitionError(
                    f"RetryPolicy: {name} is {described(found)}; expected a tuple of exception classes, such as"
                    " (ValueError,)"
                ) from None

    def delay_after(self, attempt: int, error: BaseException, random: Random) -> timedelta | None:
        """Return the pause before the attempt after `attempt` (from 1), or None when there is to be none.

        Does not know the time: whoever does drops the retry when it would start later than `max_elapsed` allows.
        """
        if attempt >= self.max_attempts or not self.allows(error):
            return None
        if isinstance(error, RetryAfter):
            return error.delay
        return self.longest_delay_after(attempt) * random.random()

    def allows(self, error: BaseException) -> bool:
        """True when an exception of this class is one to try again after."""
        if isinstance(error, NonRetryable):
            return False
        return isinstance(error, self.retry_on) and not isinstance(error, self.no_retry_on)

    def longest_delay_after(self, attempt: int) -> timedelta:
        """Return the upper end of the pause after `attempt` (from 1), before jitter."""
        if self.initial == timedelta(0):
            return self.initial
        # Grown in the exponent's domain first: factor ** 5000 would overflow, and the cap makes it irrelevant.
        growth_max = self.max_interval / self.initial
        growth = 1.0
        for _ in range(attempt - 1):
            growth *= self.factor
            if growth >= growth_max:
                return self.max_interval
            if self.factor == 1.0:
                break
        return min(self.initial * growth, self.max_interval)


class NonRetryable(Exception):  # noqa: N818 - reads as what it says: raise NonRetryable("card stolen") from error
    """Raise it in a step to fail at once, whatever the retry policy says."""


class RetryAfter(Exception):  # noqa: N818 - reads as what it says: raise RetryAfter(timedelta(seconds=30), "busy")
    """Raise it in a step to be tried again after `delay` instead of the policy's pause. The attempt counts."""

    def __init__(self, delay: timedelta, message: str = "") -> None:
        super().__init__(message)
        check_timedelta(delay, used="RetryAfter(delay)")
        self.delay = delay
