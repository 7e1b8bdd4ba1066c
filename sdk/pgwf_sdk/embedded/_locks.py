"""File locks that the kernel lets go of when their process ends, however it ends."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self


class FileLock:
    """One open file and the lock held through it. Take it shared or exclusive, waiting or not; close it to let go.

    A lock belongs to the open file, not to the process: two FileLocks on one path exclude each other even inside one
    process, and a forked child shares its parent's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self.fd = os.open(path, flags, 0o600)

    def take(self) -> None:
        """Wait for the exclusive lock."""
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def try_take(self) -> bool:
        """Take the exclusive lock if that needs no waiting, and say whether it is held now."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Wait for the shared lock."""
        fcntl.flock(self.fd, fcntl.LOCK_SH)

    def let_go(self) -> None:
        """Release the lock and keep the file open."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the file that is locked; not so once somebody has removed it."""
        try:
            return os.path.samestat(os.fstat(self.fd), self.path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock; closing twice does no harm."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def is_taken(path: Path) -> bool:
    """Return whether anybody holds the exclusive lock on `path` right now."""
    with FileLock(path) as lock:
        return not lock.try_take()
