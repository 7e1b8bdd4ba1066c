"""Instants as PostgreSQL knows them: 'infinity' has no datetime, so the largest one stands for it."""

from datetime import UTC, datetime

from psycopg.abc import AdaptContext, Buffer
from psycopg.types.datetime import DatetimeDumper, TimestamptzLoader

NEVER = datetime.max.replace(tzinfo=UTC)
"""An instant that does not come: what a client sees, and what it may send, where the database holds 'infinity'."""
_ALWAYS = datetime.min.replace(tzinfo=UTC)


class NeverLoader(TimestamptzLoader):
    """Loads timestamptz in text format; 'infinity' becomes NEVER instead of an error."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data)
        if text == b"infinity":
            return NEVER
        if text == b"-infinity":
            return _ALWAYS
        return super().load(data)


class NeverDumper(DatetimeDumper):
    """Dumps datetimes in text format; NEVER becomes 'infinity'."""

    def dump(self, obj: datetime) -> Buffer | None:
        return b"infinity" if obj == NEVER else super().dump(obj)


def adapt_never(context: AdaptContext) -> None:
    """Make 'infinity' and NEVER the same for what `context` (a cursor) sends and receives, and for nothing else."""
    context.adapters.register_loader("timestamptz", NeverLoader)
    context.adapters.register_dumper(datetime, NeverDumper)
