"""A client's side of the embedded server: getting it to run, holding on to it, letting go of it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ._account import run_as, server_account
from ._binaries import find_binaries, reachable_binaries
from ._errors import DataVersionError, StartError, StopError, UnsupportedPlatformError
from ._home import PORT, Home, default_home, make_folder
from ._locks import FileLock, is_taken
from ._postmaster import POLL_SECONDS, Postmaster, Status
from ._warden import Order, dismiss, spawn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from ._account import Account

SUPERUSER = "postgres"
READY_SECONDS_MAX = 120.0  # recovery after a crash included
GONE_SECONDS_MAX = 90.0  # longer than the warden waits for postgres in all
SPAWNS_MAX = 3


class EmbeddedServer:
    """A PostgreSQL server on this machine that lives as long as any process wants it.

    All processes that name the same `home` (default: `default_home()`) share one server and its data; the data stays
    when the server stops. It is durable (fsync on) and reached through a Unix socket only, whose folder nobody but the
    server's account, and root, may enter.

    `binaries` names a folder with PostgreSQL's programs instead of looking for them; `settings` are added to
    postgresql.conf. Both matter only to the process that happens to start the server.

    Use it as a context manager, or call `start` and `stop`. EmbeddedError and its kinds say what is in the way.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise UnsupportedPlatformError("Windows")
        # Resolved, because processes are recognised by the path they were started with.
        self._home = Home((default_home() if home is None else Path(home)).resolve())
        self._postmaster = Postmaster(self._home.data)
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._hold: FileLock | None = None
        self._dsn: str | None = None

    @property
    def home(self) -> Path:
        """The folder everything of this server is in."""
        return self._home.path

    @property
    def dsn(self) -> str:
        """The connection string of the superuser to database postgres. RuntimeError: not started."""
        if self._dsn is None:
            raise RuntimeError(f"embedded server in {self.home}: not started; call start() or use it in a with block")
        return self._dsn

    def start(self) -> str:
        """Join the server, starting it if need be, and return its `dsn`. Starting twice is the same as once."""
        if self._hold is not None:
            return self.dsn
        account = server_account()
        self._home.prepare(account)
        with FileLock(self._home.start_lock) as start_lock, contextlib.ExitStack() as on_failure:
            start_lock.take()
            hold = FileLock(self._home.holders_lock)
            on_failure.callback(hold.close)
            hold.share()
            status = self._running_status(account)
            on_failure.pop_all()
        self._hold = hold
        self._dsn = f"postgresql://{SUPERUSER}@/postgres?host={quote(status.socket_folder, safe='')}"
        return self._dsn

    def stop(self) -> None:
        """Leave the server; it is stopped, and has gone on return, if nobody else holds on to it."""
        if self._hold is None:
            return
        with FileLock(self._home.start_lock) as start_lock:
            start_lock.take()
            self._hold.close()
            self._hold = self._dsn = None
            with FileLock(self._home.holders_lock) as holders_lock:
                if holders_lock.try_take():
                    self._stop_server()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _running_status(self, account: Account | None) -> Status:
        """Return the status of the server once it is ready and has a warden, which it is given if it has none."""
        spawns = 0
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            status = self._postmaster.status()
            if not is_taken(self._home.warden_lock):
                if spawns == SPAWNS_MAX or (spawns and status is None):
                    raise StartError("postgres ended each time it was started", self._home.log)
                spawns += 1
                self._spawn_warden(account)
            elif status is not None and status.is_ready:
                return status
            else:
                time.sleep(POLL_SECONDS)
        raise StartError(
            f"it was not ready after {READY_SECONDS_MAX:.0f} s; is its home in use by another machine or container?",
            self._home.log,
        )

    def _spawn_warden(self, account: Account | None) -> None:
        binaries = reachable_binaries(find_binaries(self._binaries), account, self._home.binaries)
        if not self._home.data.exists():
            self._initialise(binaries.folder, account)
        version = int((self._home.data / "PG_VERSION").read_text(encoding="ascii"))
        if version != binaries.major:
            raise DataVersionError(self._home.data, version, binaries.folder, binaries.major)
        socket_folder = self._home.socket_folder(account)
        self._write_settings(binaries.major, socket_folder)
        order = Order(
            home=str(self.home),
            socket_folder=str(socket_folder),
            command=[
                str(binaries.folder / "postgres"),
                *("-D", str(self._home.data)),
                *("-c", f"config_file={self._home.settings}"),
            ],
            account=account,
        )
        try:
            spawn(order)
        except (OSError, subprocess.SubprocessError) as error:
            raise StartError(f"its warden could not be started ({error})", self._home.warden_log) from error

    def _initialise(self, binaries: Path, account: Account | None) -> None:
        """Make the data directory under another name, then rename it: what is called data is always complete."""
        for remains in self.home.glob("initialising-*"):
            shutil.rmtree(remains, ignore_errors=True)  # what is still being written there goes at a later start
        unfinished = Path(tempfile.mkdtemp(prefix="initialising-", dir=self.home))
        make_folder(unfinished, 0o700, account)
        options = [
            "--username",
            SUPERUSER,
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        made = run_as(account, [binaries / "initdb", "-D", unfinished, *options])
        if made.returncode != 0:
            raise StartError(f"initdb in {self.home} ended with code {made.returncode}: {made.stderr.strip()}")
        unfinished.rename(self._home.data)

    def _write_settings(self, major: int, socket_folder: Path) -> None:
        settings = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(socket_folder),
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "jit": "off",
        }
        if major >= 18:
            settings["io_method"] = "sync"  # no idle worker processes on a developer's machine
        head = "# Written at each start. Settings of your own: ALTER SYSTEM, which wins over this file.\n"
        lines = (f"{name} = {_quoted(value)}\n" for name, value in (settings | self._settings).items())
        self._home.settings.write_text(head + "".join(lines), encoding="utf-8")
        self._home.settings.chmod(0o644)

    def _stop_server(self) -> None:
        """Have the warden stop the server, or do it here if there is no warden."""
        until = time.monotonic() + GONE_SECONDS_MAX
        dismiss(self._home)
        while is_taken(self._home.warden_lock):
            if time.monotonic() > until:
                status = self._postmaster.status()
                raise StopError(status.pid if status else 0, GONE_SECONDS_MAX)
            time.sleep(POLL_SECONDS)
        self._postmaster.stop()


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
