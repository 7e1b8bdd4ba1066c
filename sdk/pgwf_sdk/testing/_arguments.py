"""What a test hands to its environment, checked before anything happens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from pgwf_sdk._client import Run
from pgwf_sdk._kinds import check_timedelta
from pgwf_sdk._wording import instant_words

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_run(found: object, *, used: str) -> None:
    """TypeError: `found` is no run's handle."""
    if isinstance(found, Run):
        return
    advice = f"{used}(env.client.get({found!r}))" if isinstance(found, str) else f"{used}(env.start(checkout(order)))"
    raise TypeError(f"{used}: found {found!r}; expected the handle of a run: {advice}")


def instant_after(now: datetime, duration: timedelta, *, used: str) -> datetime:
    """Return the time a duration later. TypeError: no duration. ValueError: a negative one, or beyond all calendars."""
    check_timedelta(duration, used=used)
    if duration < timedelta(0):
        raise ValueError(f"{used}: found {duration}; expected 0 or longer: only env.reset(instant) sets the clock back")
    try:
        return now + duration
    except OverflowError:
        raise ValueError(
            f"{used}: {duration} after {instant_words(now)} is beyond what a datetime holds; expected a shorter time"
        ) from None


def mock_answer(replacement: object, answers: Mapping[str, Any], *, used: str) -> Any:
    """Return what answers for a step: a function, or a list of outcomes. TypeError: not exactly one was given."""
    known = {name: answers[name] for name in ("returns", "outcomes") if name in answers}
    given = [*([] if replacement is None else ["a replacement"]), *(f"{name}=" for name in answers)]
    if len(given) != 1 or len(known) != len(answers):
        found = " and ".join(given) or "none"
        raise TypeError(f"{used}: found {found}; expected either a function, returns=… or outcomes=[…]")
    if "returns" in known:
        return _Constant(known["returns"])
    if "outcomes" in known:
        return _outcomes(known["outcomes"], used=used)
    if not callable(replacement):
        raise TypeError(f"{used}: found {replacement!r}; expected a function with the step's parameters, or returns=…")
    return replacement


@dataclass(frozen=True, slots=True)
class _Constant:
    """Answers the same whatever it is called with."""

    value: object

    def __call__(self, *_args: object, **_kwargs: object) -> object:
        return self.value


def _outcomes(found: object, *, used: str) -> list[Any]:
    """A list of its own: what the caller does with theirs later changes nothing."""
    if isinstance(found, str | bytes) or not hasattr(found, "__iter__"):
        raise TypeError(f"{used}: outcomes={found!r}; expected a list with one for each call and each retry")
    return list(cast("Any", found))
