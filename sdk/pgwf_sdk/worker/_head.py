"""Where the journal of a run stands while one activation adds to it."""

from datetime import datetime

from pgwf_journal import Entry, NewEntry
from pgwf_sdk.worker._advance import Claim, Item
from pgwf_sdk.worker._batch import Batch


class Head:
    """The last entry, as far as this activation knows; `seq` None: not known, so nothing more can be appended.

    What the code is told before it is recorded bears the time of the entry it follows, here and in the journal: that is
    the time of the last thing the code knew to be recorded, and `ctx.now()` is the same in a replay.
    """

    __slots__ = ("_lease_no", "_recorded_at", "seq")

    def __init__(self, claim: Claim) -> None:
        self.seq: int | None = claim.head
        self._lease_no = claim.lease_no
        # Of a run that is only given back, nothing is read.
        self._recorded_at = claim.history[-1].recorded_at if claim.history else claim.now_at

    def ahead(self, batch: Batch) -> list[Entry]:
        """The entries that the news of `batch` will be."""
        seq = (self.seq or 0) + batch.told
        return [self._entry(seq + index, one.entry, self._recorded_at) for index, one in enumerate(batch.news, 1)]

    def entries_of(self, item: Item, now_at: datetime) -> list[Entry]:
        """The entries of an item that was committed at `now_at`."""
        seq = item.expected_seq or 0
        return [
            self._entry(seq + index, new, self._recorded_at if index <= item.told else now_at)
            for index, new in enumerate(item.entries, 1)
        ]

    def reached(self, entries: list[Entry]) -> None:
        """These entries are in the journal; the last one is its head."""
        if entries:
            self.seq, self._recorded_at = entries[-1].seq, entries[-1].recorded_at

    def _entry(self, seq: int, new: NewEntry, recorded_at: datetime) -> Entry:
        return Entry(
            seq,
            new.call,
            new.kind,
            new.phase,
            new.scope,
            new.name,
            new.occurrence,
            new.payload,
            new.encoding,
            recorded_at,
            self._lease_no,
            new.code,
        )
