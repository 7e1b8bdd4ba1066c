"""The folder an embedded server lives in, and what lies where below it."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ._account import blocking_folder, run_as
from ._errors import HomeError

if TYPE_CHECKING:
    from ._account import Account

PORT = 5432  # only names the socket: the server listens on no address
# macOS allows 103 bytes for the path of a socket, Linux 107.
SOCKET_BYTES_MAX = 103


def default_home() -> Path:
    """Return PGWF_HOME, else /var/lib/pgwf for root, else pgwf below the user's state folder (XDG_STATE_HOME)."""
    if named := os.environ.get("PGWF_HOME"):
        return Path(named).absolute()
    if os.name == "posix" and os.geteuid() == 0:
        return Path("/var/lib/pgwf")
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pgwf"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home. Whatever the server's account writes is in `data` and in the socket's folder."""

    path: Path

    @property
    def start_lock(self) -> Path:
        return self.path / "start.lock"

    @property
    def holders_lock(self) -> Path:
        return self.path / "holders.lock"

    @property
    def warden_lock(self) -> Path:
        return self.path / "warden.lock"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def settings(self) -> Path:
        return self.path / "postgresql.conf"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def warden_log(self) -> Path:
        return self.path / "warden.log"

    @property
    def binaries(self) -> Path:
        return self.path / "binaries"

    def prepare(self, account: Account | None) -> None:
        """Make the home if it is missing. HomeError: it cannot be made, or `account` may not enter it."""
        try:
            for folder in [*reversed(self.path.parents), self.path]:
                make_folder(folder, 0o755 if account else 0o700)
        except OSError as error:
            raise HomeError(self.path, f"cannot be made ({error})") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise HomeError(self.path, "is not writable for this user")
        if account and run_as(account, ["/bin/sh", "-c", 'cd "$1"', "sh", self.path]).returncode != 0:
            blocker = blocking_folder(self.path, account) or self.path
            raise HomeError(
                self.path,
                f"account {account.name}, which PostgreSQL runs as because we are root, may not enter {blocker} "
                f"(mode {stat.S_IMODE(blocker.stat().st_mode):04o})",
            )

    def socket_folder(self, account: Account | None) -> Path:
        """Make and return the folder of the socket: below the home, or in a short place when that path is too long."""
        folder = self.path / "socket"
        if not _fits(folder):
            name = f"pgwf-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]}"
            places = [Path(place).resolve() / name for place in (tempfile.gettempdir(), "/tmp")]
            folder = next(filter(_fits, places), places[-1])
        make_folder(folder, 0o700, account)
        found, wanted = folder.lstat(), account.uid if account else os.geteuid()
        # The name below the temporary folder can be guessed, so somebody else may have made it first.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != wanted or found.st_mode & 0o077:
            raise HomeError(self.path, f"the folder for its socket, {folder}, belongs to or is open to somebody else")
        return folder


def make_folder(folder: Path, mode: int, owner: Account | None = None) -> None:
    """Make `folder` with exactly this mode and owner; one that is there already is left as it is.

    Only a folder that is still ours, as after a crash between making it and giving it away, is given to `owner`.
    """
    try:
        folder.mkdir(mode=mode)
        folder.chmod(mode)
    except FileExistsError:
        if folder.lstat().st_uid != os.geteuid():
            return
    if owner is not None:
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)


def _fits(folder: Path) -> bool:
    """Return whether PostgreSQL takes `folder` as its socket's: short enough, and nothing its list syntax splits at."""
    path = str(folder / f".s.PGSQL.{PORT}")
    return len(os.fsencode(path)) <= SOCKET_BYTES_MAX and not set(path) & set(",'\"\\\n")
