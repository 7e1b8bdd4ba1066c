"""Limits for all workers at once, as operators type them for needs and for singleton keys."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pgwf_sdk.cli._output import talk
from pgwf_sdk.cli._session import dsn_option

F = TypeVar("F", bound=Callable[..., Any])


def filled(text: str) -> str:
    """The type of an argument that names a need or a key."""
    if not text:
        raise click.BadParameter("found '', expected a name of 1 to 512 bytes")
    return text


def limit_options(*, active_min: int) -> Callable[[F], F]:
    """Adds --active, --rate, --burst, --none and --dsn."""
    options = (
        click.option(
            "--active", "max_active", type=click.IntRange(active_min), help="Runs that are with workers for it at once."
        ),
        click.option("--rate", type=click.FloatRange(0, min_open=True), help="Runs handed out for it, per second."),
        click.option(
            "--burst", type=click.FloatRange(1), help="Runs handed out at once after a quiet time (default: the rate)."
        ),
        click.option("--none", "is_lifted", is_flag=True, help="No limit any more."),
        dsn_option,
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def set_limits(
    name: str,
    act: Callable[[int | None, float | None, float | None], None],
    *,
    max_active: int | None,
    rate: float | None,
    burst: float | None,
    is_lifted: bool,
    unlimited: str,
) -> None:
    """Check what was typed, do it, and say what holds now."""
    if (max_active is None and rate is None) != is_lifted:
        raise click.UsageError("give --active, --rate or both; or --none to lift the limits")
    if burst is not None and rate is None:
        raise click.UsageError("--burst goes with --rate")
    for option, number in (("--rate", rate), ("--burst", burst)):
        if number is not None and not math.isfinite(number):
            raise click.UsageError(f"{option} is {number}; expected a number such as 10 or 0.5")
    act(max_active, rate, burst)
    bounds = limit_words(max_active, rate)
    talk(f"{name}: {bounds}, from the next run on" if bounds else f"{name}: {unlimited}")


def limit_words(max_active: int | None, rate: float | None) -> str:
    """Limits as a table or a sentence shows them; nothing when there are none."""
    bounds: Sequence[str] = [
        *([] if max_active is None else [f"{max_active} at once"]),
        *([] if rate is None else [f"{rate:g}/s"]),
    ]
    return ", ".join(bounds)
