"""Durations and instants as they are typed: `30s`, `5m`, `2026-12-01T09:00Z`."""

from datetime import datetime, timedelta

import click

from pgwf_sdk import ops


def duration(text: str) -> timedelta:
    """The type of an option that is a length of time."""
    try:
        return ops.parse_duration(text)
    except ops.FilterError as error:
        raise click.BadParameter(f"{text!r}: {error.expected}") from None


def instant(text: str) -> datetime | timedelta:
    """The type of an option that is a point in time: one with its zone, or how long from the database's present."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _length(text)
    if found.tzinfo is None:
        said = found.isoformat()  # A date alone is the beginning of the day, and takes no zone as it stands.
        raise click.BadParameter(f"{text!r} has no time zone; expected one, such as {said}Z or {said}+01:00")
    return found


def _length(text: str) -> timedelta:
    try:
        return ops.parse_duration(text)
    except ops.FilterError:
        raise click.BadParameter(
            f"{text!r}: expected a time with its zone, such as 2026-12-01T09:00Z, or how long from now, such as 2h"
        ) from None
