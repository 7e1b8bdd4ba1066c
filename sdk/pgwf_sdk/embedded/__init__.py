"""A PostgreSQL of your own, for development and tests: shared by the processes of one home, stopped after the last.

    with EmbeddedServer() as server:
        client = Client(server.dsn)

Three parts look after it:

- `EmbeddedServer`, in every process that uses the server. It holds a shared lock on `holders.lock` as long as it
  wants the server; the kernel drops that lock when the process dies in whatever way.
- The warden, one small process per running server. It starts `postgres`, starts it again after a crash, and stops it
  once nobody holds `holders.lock` any more.
- `postgres` itself, in a session of its own, so that Ctrl-C in a terminal does not reach it.

Locks are taken in one order: `start.lock`, then `holders.lock`. Only the process that holds `warden.lock` may start
`postgres` or remove what a dead one left behind.
"""

from ._binaries import Binaries, find_binaries
from ._errors import (
    BinariesNotFoundError,
    DataVersionError,
    EmbeddedError,
    HomeError,
    NoAccountError,
    StartError,
    StopError,
    UnsupportedPlatformError,
)
from ._home import default_home
from ._server import EmbeddedServer

__all__ = [
    "Binaries",
    "BinariesNotFoundError",
    "DataVersionError",
    "EmbeddedError",
    "EmbeddedServer",
    "HomeError",
    "NoAccountError",
    "StartError",
    "StopError",
    "UnsupportedPlatformError",
    "default_home",
    "find_binaries",
]
