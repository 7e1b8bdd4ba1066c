"""The door every database error leaves by: a room's own class where the SQLSTATE is one of its own."""

from collections.abc import Callable
from typing import NoReturn

import psycopg

Translate = Callable[[psycopg.Error], Exception]
"""Turns a database error into the room's own (by SQLSTATE), or returns it unchanged."""


def raise_translated(error: psycopg.Error, translate: Translate) -> NoReturn:
    """Raise what `translate` makes of `error`.

    An error of the room's own says it all: the database's, which only repeats it, is not shown with it.
    """
    translated = translate(error)
    if translated is error:
        raise error
    raise translated from None


def message_of(error: psycopg.Error) -> str:
    """What the database said: its message, then its hint as the next step."""
    return with_hint(error.diag.message_primary or str(error), error.diag.message_hint)


def with_hint(message: str, hint: str | None) -> str:
    """A message and what the database proposes, in one sentence."""
    if not hint:
        return message
    is_word = hint[:1].isupper() and hint[1:2].islower()  # "SQL …" and the like stay as they are.
    return f"{message}; {hint[0].lower() + hint[1:] if is_word else hint}".removesuffix(".")
