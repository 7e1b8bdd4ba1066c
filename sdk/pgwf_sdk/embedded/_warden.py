"""The warden: starts postgres, starts it again after a crash, stops it once no client is left, and goes with it.

It is a process of its own so that the server neither dies with the client that started it nor outlives them all, and
it is postgres's parent, so that no zombie is left where process 1 does not collect them. It uses nothing outside the
standard library and this package, which keeps it small and independent of the environment it was started from.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ._account import Account, server_environment
from ._home import PORT, Home
from ._locks import FileLock, is_taken
from ._postmaster import Postmaster

if TYPE_CHECKING:
    from types import FrameType

WATCH_SECONDS = 1.0  # how long the last client may be gone before it is noticed
LAUNCHES_MAX = 20  # in a row without the server getting ready
LAUNCH_PAUSE_SECONDS = 0.25
LOG_BYTES_MAX = 10_000_000
SPAWN_SECONDS_MAX = 30
# Appended to, so that no module of this package can stand in for one of the standard library.
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from embedded._warden import main; main(sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Order:
    """What the warden is started with."""

    home: str
    socket_folder: str
    command: list[str]
    account: Account | None


def spawn(order: Order) -> None:
    """Start a warden and return once it holds warden.lock, or at once if another one does.

    CalledProcessError, TimeoutExpired, OSError: it could not be started; warden.log says why.
    """
    program = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        PROGRAM,
        str(Path(__file__).parents[1]),
        json.dumps(asdict(order)),
    ]
    with Home(Path(order.home)).warden_log.open("ab") as log:
        subprocess.run(
            program,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=SPAWN_SECONDS_MAX,
            start_new_session=True,
            check=True,
        )


def dismiss(home: Home) -> None:
    """Tell the warden to stop the server. For the holder of start.lock; the lock is free once it has done so."""
    if is_taken(home.warden_lock):
        # Its holder wrote the file, and holds it still: the id cannot be another process's by now.
        os.kill(int(home.warden_lock.read_text(encoding="ascii")), signal.SIGTERM)


def main(order_text: str) -> None:
    """Become the warden of a home, unless it has one."""
    fields = json.loads(order_text)
    account = Account(**fields.pop("account")) if fields["account"] else fields.pop("account")
    order = Order(**fields, account=account)
    lock = FileLock(Home(Path(order.home)).warden_lock)
    if not lock.try_take():
        return
    pid = os.fork()
    if pid:
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, str(pid).encode("ascii"), 0)
        os._exit(0)  # the lock is the open file's, which the child shares
    _Warden(order).watch()


class _Warden:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._home = Home(Path(order.home))
        self._postmaster = Postmaster(self._home.data)
        self._start_lock = FileLock(self._home.start_lock)
        self._holders_lock = FileLock(self._home.holders_lock)
        self._child: subprocess.Popen[bytes] | None = None
        self._launches = 0
        self._pid: int | None = None
        self._signals, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, _noted)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def watch(self) -> None:
        while self._round():
            if signal.SIGTERM in self._pause(WATCH_SECONDS):
                self._stop()
                return

    def _round(self) -> bool:
        """Look once at who is there and act on it; return whether there is still something to watch."""
        if not self._holders_lock.is_in_place():
            self._stop()  # the home was removed, and with it the way to find this server
            return False
        is_running = self._look()
        if not self._start_lock.try_take():
            # A client waits for the server to come up, or is just leaving.
            return is_running or self._launch()
        try:
            if self._holders_lock.try_take():
                self._stop()
                return False
            # After an orderly stop by hand the file is gone, and so is our task; after a crash it is still there.
            return is_running or (self._postmaster.pid_file.exists() and self._launch())
        finally:
            self._holders_lock.let_go()
            self._start_lock.let_go()

    def _look(self) -> bool:
        """Note the server's process id and return whether it runs; one just launched has not written its file yet."""
        status = self._postmaster.status()
        if status is not None:
            self._pid = status.pid
            if status.is_ready:
                self._launches = 0
            return True
        return self._child is not None and self._child.poll() is None

    def _launch(self) -> bool:
        """Start postgres in place of a dead one; return False once that has failed too often."""
        if self._launches == LAUNCHES_MAX:
            return False
        if self._launches:
            time.sleep(LAUNCH_PAUSE_SECONDS)
        self._launches += 1
        self._postmaster.clear_remains()
        for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
            (Path(self._order.socket_folder) / name).unlink(missing_ok=True)
        if self._home.log.exists() and self._home.log.stat().st_size > LOG_BYTES_MAX:
            self._home.log.rename(self._home.log.with_suffix(".log.1"))
        account = self._order.account
        with self._home.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._order.command,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                cwd="/",
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid = self._child.pid
        return True

    def _stop(self) -> None:
        if self._pid is not None and self._postmaster.is_process(self._pid):
            self._postmaster.end(self._pid)

    def _pause(self, seconds: float) -> set[int]:
        """Wait until a signal or for `seconds`, and return the signals that came."""
        if not select.select([self._signals], [], [], seconds)[0]:
            return set()
        return set(os.read(self._signals, 4096))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Take a signal; what it asks for is read from the wake-up pipe."""
