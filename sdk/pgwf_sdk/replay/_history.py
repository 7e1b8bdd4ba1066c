"""The entries an activation knows, in journal order, with a cursor between what was delivered and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgwf_journal import Kind
from pgwf_sdk._errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgwf_journal import Entry

__all__ = ["History"]

_PATCH: Final = Kind.PATCH  # Until Python 3.12 a look at a member of an enumeration takes as long as a call.


class History:
    """Entries by order, and the first of each call by scope and ordinal."""

    __slots__ = ("_by_scope", "cursor", "entries", "last_call", "markers")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries: list[Entry] = []
        self.cursor = 0
        self.last_call = -1
        """Position of the last entry of a call that the activation began with: up to there the code repeats itself."""
        self.markers: set[str] = set()
        self._by_scope: dict[str, dict[int, Entry]] = {}
        self.extend(entries)
        for position, entry in enumerate(self.entries):
            if entry.call:
                self.last_call = position
                self.calls_in(entry.scope).setdefault(entry.call, entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add entries that were committed since. HistoryError: they do not follow the last one without a gap."""
        known = self.entries
        for entry in entries:
            if known and entry.seq != known[-1].seq + 1:
                expected = known[-1].seq + 1
                raise HistoryError(
                    f"entry {entry.seq} was fed after entry {known[-1].seq}; expected entry {expected}: feed every"
                    " committed entry of the run, opened ones too, once and in order of seq",
                    expected_seq=expected,
                    found_seq=entry.seq,
                )
            if entry.kind == _PATCH:
                self.markers.add(entry.name)
            known.append(entry)

    def calls_in(self, scope: str) -> dict[int, Entry]:
        """The first entry of each recorded call of a scope."""
        calls = self._by_scope.get(scope)
        if calls is None:
            calls = self._by_scope[scope] = {}
        return calls

    def scopes(self) -> Iterable[tuple[str, dict[int, Entry]]]:
        """The scopes that the activation began with or has opened since, each with its recorded calls."""
        return self._by_scope.items()

    @property
    def is_replaying(self) -> bool:
        """True while the code has not come further than it had when the activation began."""
        return self.cursor <= self.last_call
