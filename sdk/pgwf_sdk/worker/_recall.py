"""What became of an item whose answer was lost: sent again it is refused, and the journal tells what its first try did.

While the lease is held nobody else appends. So if the journal has the item's entries, under this lease, the first try
was committed, with all that goes with them, and the run goes on from there without any of its code being run again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pgwf_journal import Entry
from pgwf_sdk._errors import SealedError
from pgwf_sdk._sealing import Sealing
from pgwf_sdk.ops._statements import history_statement
from pgwf_sdk.worker._advance import Disposition, Item, ItemAnswer, ItemStatus
from pgwf_sdk.worker._seals import opened_entries
from pgwf_sql.database import AsyncDatabase

if TYPE_CHECKING:
    from pgwf_sdk.worker._driver import Driver

log = logging.getLogger("pgwf_sdk.worker")

_AGAIN_SECONDS: Final = 1.0


class Recall:
    """Reads what items have left in their journals, on a connection beside the hot one."""

    def __init__(
        self,
        database: AsyncDatabase,
        sealing: Sealing | None,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._database = database
        self._sealing = sealing
        self._spawn = spawn

    def ask(self, driver: "Driver", item: Item) -> None:
        """Tell `driver` what became of an earlier try of `item`, or that it is unknown."""
        self._spawn(self._ask(driver, item))

    async def _ask(self, driver: "Driver", item: Item) -> None:
        claim = driver.claim
        question = history_statement(claim.run_id, after_seq=item.expected_seq or 0, limit=len(item.entries) + 1)
        while not driver.is_over:  # Its lease is kept alive meanwhile, or lost.
            try:
                found = await self._database.run(question)
                entries = opened_entries(self._sealing, found) if _are_of(item, claim.lease_no, found) else []
            except SealedError as error:
                driver.broke(error)
                return
            except psycopg.Error as error:
                log.warning("run %s: what was recorded of it cannot be read just now: %s", claim.run_id, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            status = _STATUSES.get(item.disposition, "unknown") if entries else "unknown"
            driver.settled(item, ItemAnswer(status, claim.now_at, [], [], entries))
            return


# The lease is still held: where it was to be given back, something had arrived.
_STATUSES: Final[dict[Disposition, ItemStatus]] = {"keep": "ok", "park": "unread"}


def _are_of(item: Item, lease_no: int, found: Sequence[Entry]) -> bool:
    """Whether these are the entries that the item was to append."""
    said = [(new.call, new.kind, new.phase, new.scope, new.name, new.occurrence, lease_no) for new in item.entries]
    return said == [(one.call, one.kind, one.phase, one.scope, one.name, one.occurrence, one.lease_no) for one in found]
