"""Sessions that listen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from tests.support import Connect


class Ear:
    """A session that listens on names, and tells which of them it heard since it was asked last."""

    def __init__(self, connect: Connect, *names: str) -> None:
        self._conn = connect()
        self._names = dict[str, str]()
        for name in names:
            (channel,) = self._conn.execute("select pgwf.channel(%s)", [name]).fetchone() or ("",)
            self._names[channel] = name
            self._conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def heard(self) -> list[str]:
        self._conn.execute("select")
        return sorted(self._names[notification.channel] for notification in self._conn.notifies(timeout=0))
