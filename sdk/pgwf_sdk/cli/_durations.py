"""Durations as they are typed: `30s`, `5m`."""

from datetime import timedelta

import click

from pgwf_sdk import ops


def duration(text: str) -> timedelta:
    """The type of an option that is a length of time."""
    try:
        return ops.parse_duration(text)
    except ops.FilterError as error:
        raise click.BadParameter(f"{text!r}: {error.expected}") from None
