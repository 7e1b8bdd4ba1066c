"""The journal on its own, for programs that keep one without the SDK."""

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, Connection

from pgwf_journal import _calls
from pgwf_journal._entry import Entry, NewEntry
from pgwf_journal._errors import translate
from pgwf_sql.database import CONNECTIONS_MAX, AsyncClosing, AsyncDatabase, Closing, Database


class Journal(Closing):
    """Journals of one database; safe to share between threads. Close it, or use it as a context manager.

    Every call takes `connection`: then it is part of that connection's transaction, and becomes true when it commits.
    """

    def __init__(self, dsn: str, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._database = Database(dsn, translate=translate, connections_max=connections_max)

    def open(self, journal_id: str, *, connection: Connection[Any] | None = None) -> int:
        """Open the journal `journal_id` (1 to 512 bytes) and return its number; idempotent."""
        return self._database.run(_calls.open_journal(journal_id), connection)

    def append(
        self,
        journal_id: str,
        entries: Sequence[NewEntry],
        *,
        expected_seq: int | None,
        connection: Connection[Any] | None = None,
    ) -> int:
        """Append `entries` after `expected_seq` and return the new head (first entry is 1; 0 means an empty journal).

        All or nothing. None appends after whatever is last. JournalConflictError: somebody else wrote first; read what
        is new and decide again. JournalNotFoundError: it was never opened. JournalOwnedError: it is a run's.
        """
        return self._database.run(_calls.append(journal_id, entries, expected_seq=expected_seq), connection)

    def read(
        self,
        journal_id: str,
        *,
        after_seq: int = 0,
        limit: int = _calls.READ_COUNT_MAX,
        connection: Connection[Any] | None = None,
    ) -> tuple[Entry, ...]:
        """The entries after `after_seq`, in order, at most `limit`. A journal that was never opened has none."""
        return self._database.run(_calls.read(journal_id, after_seq=after_seq, limit=limit), connection)

    def head(self, journal_id: str, *, connection: Connection[Any] | None = None) -> int:
        """The number of the last entry, 0 for an empty journal. JournalNotFoundError: it was never opened."""
        return self._database.run(_calls.head(journal_id), connection)

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._database.close()


class AsyncJournal(AsyncClosing):
    """Journals of one database, for one event loop; otherwise as Journal."""

    def __init__(self, dsn: str, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._database = AsyncDatabase(dsn, translate=translate, connections_max=connections_max)

    async def open(self, journal_id: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """Open the journal `journal_id` (1 to 512 bytes) and return its number; idempotent."""
        return await self._database.run(_calls.open_journal(journal_id), connection)

    async def append(
        self,
        journal_id: str,
        entries: Sequence[NewEntry],
        *,
        expected_seq: int | None,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Append `entries` after `expected_seq` and return the new head; see Journal.append."""
        return await self._database.run(_calls.append(journal_id, entries, expected_seq=expected_seq), connection)

    async def read(
        self,
        journal_id: str,
        *,
        after_seq: int = 0,
        limit: int = _calls.READ_COUNT_MAX,
        connection: AsyncConnection[Any] | None = None,
    ) -> tuple[Entry, ...]:
        """The entries after `after_seq`, in order, at most `limit`. A journal that was never opened has none."""
        return await self._database.run(_calls.read(journal_id, after_seq=after_seq, limit=limit), connection)

    async def head(self, journal_id: str, *, connection: AsyncConnection[Any] | None = None) -> int:
        """The number of the last entry, 0 for an empty journal. JournalNotFoundError: it was never opened."""
        return await self._database.run(_calls.head(journal_id), connection)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._database.close()
