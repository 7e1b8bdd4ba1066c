"""Durations, instants and counts in words: short ones that fit a column, and whole ones for sentences."""

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Final

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN_CHARS_MAX: Final = 200
_PLAIN_WORD: Final = re.compile(r"[\w@%+=:,./][\w@%+=:,./~#-]*", re.ASCII)  # In bash and zsh, as they come.


def duration_words(seconds: float) -> str:
    """The length of time as two units at most: `3 ms`, `1.2 s`, `4m 10s`, `18h 2m`, `3d 4h`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit_seconds, unit, part_seconds, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= unit_seconds:
            return f"{whole // unit_seconds}{unit} {whole % unit_seconds // part_seconds}{part}"
    raise AssertionError(f"{seconds} s is at least a minute")


def short_duration_words(seconds: float) -> str:
    """The length of time in one unit, rounded: `3ms`, `12s`, `4m`, `18h`, `3d`."""
    for unit_seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        if seconds >= 0.99 * unit_seconds:  # 59m 43s is nearer to one hour than "60m" suggests.
            return f"{seconds / unit_seconds:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"


def limit_words(limit: timedelta) -> str:
    """A limit that somebody chose, as a sentence names it: `14 days`, `1 hour 30 minutes`, `2.5 seconds`.

    One that was over before it began is `0 seconds`.
    """
    seconds = max(limit.total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:g} second" if seconds == 1 else f"{seconds:g} seconds"
    for unit_seconds, unit, part_seconds, part in (
        (86_400, "day", 3_600, "hour"),
        (3_600, "hour", 60, "minute"),
        (60, "minute", 1, "second"),
    ):
        whole, rest = divmod(int(seconds), unit_seconds)
        if whole:
            more = rest // part_seconds
            return count_words(whole, unit) + (f" {count_words(more, part)}" if more else "")
    raise AssertionError(f"{seconds} s is at least a minute")


def within_words(limit: timedelta | None) -> str:
    """What is said of a time limit behind a verb, with a space before it; nothing where there is none."""
    return "" if limit is None else f" within {limit_words(limit)}"


def instant_words(instant: datetime) -> str:
    """A time as sentences have it, to the second and the same for everybody: `2031-02-03 12:00:00 UTC`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count_words(count: int, noun: str) -> str:
    """`1 entry`, `3 entries`: the count and the noun in the right number."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith(("ch", "ss")):
        return f"{count} {noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}s"


def shell_word(text: str) -> str:
    """`text` as one word of a command that is proposed: quoted where a shell would make something else of it."""
    return text if _PLAIN_WORD.fullmatch(text) else shlex.quote(text)


def stuck_words(status: str, run_id: str) -> str | None:
    """What ends the wait of a run that does not go on by itself; None for any other status."""
    if status == "paused":
        return f"it goes on after `pgwf resume {shell_word(run_id)}`"
    if status in {"blocked", "crash_concern"}:
        return f"it does not go on until somebody acts: `pgwf why {shell_word(run_id)}` says what to do"
    return None


def not_over_words(status: str, run_id: str, waited_seconds: float) -> str:
    """What is said of a run that was waited for in vain, and what to do next."""
    goes_on = f"it goes on: ask again later, or see why with `pgwf why {shell_word(run_id)}`"
    return (
        f"run {run_id} is {status} after {duration_words(waited_seconds)}, expected it to be over;"
        f" {stuck_words(status, run_id) or goes_on}"
    )


def without_addresses(text: str) -> str:
    """What `repr` says of objects, without where they are in memory: a replay says the same."""
    return _ADDRESS.sub("", text)


def text_of(error: object) -> str:
    """What an error or note says; of one that raises when it is asked, what that raised."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - a broken __str__ of the user must not hide the failure itself
        return f"(its message cannot be read: {type(fault).__name__})"


def shown(found: object) -> str:
    """What `repr` says of any object, in a line that fits a sentence; of one whose `repr` raises, what that raised."""
    try:
        text = without_addresses(repr(found))
    except Exception as fault:  # noqa: BLE001 - whatever it is, the sentence it stands in has to be said
        return f"<{type(found).__name__} that cannot be shown: {type(fault).__name__}>"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
