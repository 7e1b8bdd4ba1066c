"""The door every database error leaves by: a room's own class where the SQLSTATE is one of its own."""

from collections.abc import Callable
from typing import NoReturn

import psycopg

Translate = Callable[[psycopg.Error], Exception]
"""Turns a database error into the room's own (by SQLSTATE), or returns it unchanged."""


def raise_translated(error: psycopg.Error, translate: Translate) -> NoReturn:
    """Raise what `translate` makes of `error`, with the database's error as its cause."""
    translated = translate(error)
    if translated is error:
        raise error
    raise translated from error


def message_of(error: psycopg.Error) -> str:
    """What the database said: its message, then its hint as the next step."""
    message = error.diag.message_primary or str(error)
    hint = error.diag.message_hint
    return f"{message}; {hint}" if hint else message
