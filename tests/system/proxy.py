"""A proxy in front of PostgreSQL that cuts one connection at one statement: before the server has it, or after the
server has done it and before the client knows; or amid the statement, or amid its answer. It can also fall silent, and
leave all connections open.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

When = Literal["before", "after"]

_PROTOCOL = 196608
_ENDS_OF_STATEMENTS = (b"Q", b"S")  # Query, Sync
_READY = b"Z"
_CHUNK_BYTES = 1 << 16


class Proxy:
    """Serves a Unix socket in `folder` and passes everything on to the server of `dsn`, until the block ends."""

    def __init__(self, dsn: str, folder: Path) -> None:
        found = conninfo_to_dict(dsn)
        self._server_path = f"{found['host']}/.s.PGSQL.{found.get('port', 5432)}"
        self.dsn = make_conninfo(dsn, host=str(folder), port=5432)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{folder}/.s.PGSQL.5432")
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._plan: tuple[str, int, When, float] | None = None
        self._links: set[_Link] = set()
        self.has_cut = threading.Event()
        self.flows = threading.Event()
        """Cleared by who wants no byte to pass any more, in either direction."""
        self.flows.set()

    def __enter__(self) -> Self:
        self._door.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for link in list(self._links):
            link.close()
        self.flows.set()

    def cut_at(self, application: str, statement: int, when: When, *, part: float = 0.0) -> None:
        """From now on count the statements of connections with this name, and cut the one that sends number
        `statement` (from 1). So much of the statement ("before") or of its answer ("after") passes; 1.0 is all."""
        with self._lock:
            self._counts.clear()
            self._plan = (application, statement, when, part)
            self.has_cut.clear()

    def verdict(self, application: str) -> tuple[When, float] | None:
        """A connection of this name has sent a statement: whether to cut it, and how much is to pass."""
        with self._lock:
            self._counts[application] += 1
            if self._plan is None or self._plan[:2] != (application, self._counts[application]):
                return None
            verdict, self._plan = self._plan[2:], None
        self.has_cut.set()
        return verdict

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server_path)
            self._links.add(_Link(self, client, server))


class _Link:
    """One connection through the proxy, on two threads."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._part: float | None = None
        for target in (self._from_client, self._from_server):
            threading.Thread(target=self._until_closed, args=(target,), daemon=True).start()

    def close(self) -> None:
        for side in (self._client, self._server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _until_closed(self, pump: object) -> None:
        assert callable(pump)
        try:
            pump()
        except OSError:
            pass  # The other pump has closed it.
        finally:
            self.close()

    def _from_client(self) -> None:
        head = _exactly(self._client, 8)
        size, code = struct.unpack("!ii", head)
        body = _exactly(self._client, size - 8)
        application = _application(body) if code == _PROTOCOL else ""
        self._proxy.flows.wait()
        self._server.sendall(head + body)
        gathered = b""
        while True:
            kind = _exactly(self._client, 1)
            (size,) = struct.unpack("!i", length := _exactly(self._client, 4))
            gathered += kind + length + _exactly(self._client, size - 4)
            if kind not in _ENDS_OF_STATEMENTS and kind in (b"P", b"B", b"D", b"E", b"C"):
                continue
            if kind in _ENDS_OF_STATEMENTS and (verdict := self._proxy.verdict(application)) is not None:
                when, part = verdict
                if when == "before":
                    self._server.sendall(_beginning(gathered, part))
                    return
                self._part = part
            self._proxy.flows.wait()
            self._server.sendall(gathered)
            gathered = b""

    def _from_server(self) -> None:
        held_back = b""
        while True:
            kind = _exactly(self._server, 1)
            (size,) = struct.unpack("!i", length := _exactly(self._server, 4))
            message = kind + length + _exactly(self._server, size - 4)
            self._proxy.flows.wait()
            if self._part is None:
                self._client.sendall(message)
                continue
            held_back += message
            if kind == _READY:
                self._client.sendall(_beginning(held_back, self._part))
                return


def _exactly(side: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = side.recv(min(count - len(received), _CHUNK_BYTES))
        if not chunk:
            raise ConnectionError("closed")
        received += chunk
    return received


def _beginning(message: bytes, part: float) -> bytes:
    return message[: int(len(message) * part)]


def _application(startup: bytes) -> str:
    words = startup.decode().split("\0")
    return dict(zip(words[::2], words[1::2], strict=False)).get("application_name", "")
