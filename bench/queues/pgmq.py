"""pgmq, installed from the SQL file of a checkout; read, and delete or archive, as it documents, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.queues._queue import Connection, QueueSystem, count

if TYPE_CHECKING:
    from pathlib import Path

SQL_FILE = "pgmq-extension/sql/pgmq.sql"
FILL_BATCH = 10_000
VISIBILITY_SECONDS = 60

_READ = f"select msg_id from pgmq.read('q', {VISIBILITY_SECONDS}, %s)"
_DELETE = "select count(*) from pgmq.delete('q', %s::bigint[])"
_ARCHIVE = "select count(*) from pgmq.archive('q', %s::bigint[])"
_DELETE_AND_READ = f"""
select d.done, r.msg_id
from (select count(*) as done from pgmq.delete('q', %s::bigint[]) offset 0) as d
left join lateral pgmq.read('q', {VISIBILITY_SECONDS}, case when d.done >= 0 then %s end) as r on true
"""


class TwoCalls:
    """read, then delete: each a commit of its own."""

    END = _DELETE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def submit(self, count: int) -> None:
        self._connection.execute("select pgmq.send_batch('q', %s::jsonb[])", [['{"a":1}'] * count])

    def take(self, limit: int) -> int:
        claimed = [row[0] for row in self._connection.execute(_READ, [limit]).fetchall()]
        return self._end(claimed) if claimed else 0

    def finish(self) -> int:
        return 0

    def left(self) -> int:
        return count(self._connection, "select count(*) from pgmq.q_q")

    def fill(self, count: int) -> None:
        for start in range(0, count, FILL_BATCH):
            self.submit(min(FILL_BATCH, count - start))

    def _end(self, claimed: list[int]) -> int:
        row = self._connection.execute(self.END, [claimed]).fetchone()
        assert row == (len(claimed),), row
        return len(claimed)


class Archived(TwoCalls):
    """read, then archive, which keeps what was done, as pgwf does."""

    END = _ARCHIVE


class OneCall(TwoCalls):
    """delete of the last batch and read of the next in one statement."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._claimed: list[int] = []

    def take(self, limit: int) -> int:
        rows = self._connection.execute(_DELETE_AND_READ, [self._claimed, limit]).fetchall()
        done = int(rows[0][0])
        assert done == len(self._claimed), (done, len(self._claimed))
        self._claimed = [row[1] for row in rows if row[1] is not None]
        return done

    def finish(self) -> int:
        claimed, self._claimed = self._claimed, []
        return self._end(claimed) if claimed else 0


def systems(checkout: Path) -> list[QueueSystem]:
    """pgmq as documented, keeping nothing or all, and with one call a batch less than documented."""
    script = (checkout / SQL_FILE).read_text(encoding="utf-8")

    def install(connection: Connection) -> None:
        connection.execute("create schema if not exists pgmq")
        connection.execute(script.encode())
        connection.execute("select pgmq.create('q')")

    return [
        QueueSystem("pgmq", install=install, connect=TwoCalls),
        QueueSystem("pgmq, archived", install=install, connect=Archived),
        QueueSystem("pgmq, one call", install=install, connect=OneCall),
    ]
