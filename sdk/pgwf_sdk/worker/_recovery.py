"""Runs that were leased by a call whose answer was lost with its connection: nobody works on them, so they go back.

Otherwise each would wait for its lease to end, and count a crash that was none.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection

from pgwf_sdk.worker._advance import Claim
from pgwf_sql.database import Row, Statement, execute_async

log = logging.getLogger("pgwf_sdk.worker")


class Recovery:
    """Looks for leases of this worker that it does not know of, and has them given back.

    Only between two calls of the hot connection: what such a call brings is not known before its answer.
    """

    def __init__(
        self, worker_id: str, *, known: Callable[[], Iterable[int]], give_back: Callable[[Claim], None]
    ) -> None:
        self._worker_id = worker_id
        self.known = known
        self._give_back = give_back

    async def look(self, connection: AsyncConnection[Any]) -> None:
        """Give back what is there now. A call that the server has not ended yet is not seen."""
        for claim in await execute_async(connection, _strays(self._worker_id, self.known())):
            log.warning("run %s: leased by a call whose answer was lost; given back", claim.run_id)
            self._give_back(claim)


def _strays(worker_id: str, known: Iterable[int]) -> Statement[list[Claim]]:
    def read(rows: Sequence[Row]) -> list[Claim]:
        return [Claim(**row, history=[], inbox=[], attempts={}) for row in rows]

    return Statement("sdk_stray_leases", {"worker_id": worker_id, "known": list(known)}, read)
