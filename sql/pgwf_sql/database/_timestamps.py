"""Instants as PostgreSQL knows them: 'infinity' has no datetime, so the largest one stands for it."""

from datetime import UTC, datetime

from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader

NEVER = datetime.max.replace(tzinfo=UTC)
"""What a client sees where the database holds 'infinity': an instant that does not come."""
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
