"""One data directory's postgres process, seen from outside through what it writes there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ._errors import StopError

PROC = Path("/proc")
POLL_SECONDS = 0.02
# Each signal, from polite to certain, and how long it may take before the next one is sent.
ORPHAN_SIGNALS = (signal.SIGQUIT, signal.SIGKILL)
ORPHAN_SECONDS = 2.0  # for backends to go after each of them
STOP_SIGNALS = (
    (signal.SIGINT, 60.0),  # fast shutdown: transactions are aborted, a checkpoint is written
    (signal.SIGQUIT, 10.0),  # immediate shutdown: the next start recovers from the log
    (signal.SIGKILL, 10.0),
)


@dataclass(frozen=True, slots=True)
class Status:
    """What a running postgres says of itself."""

    pid: int
    is_ready: bool
    socket_folder: str


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The postgres process of one data directory, running or not."""

    data: Path

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    def status(self) -> Status | None:
        """Return what is running, or None. A zombie, and a process that was given a dead server's id, do not count."""
        try:
            lines = self.pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
            pid = abs(int(lines[0]))
        except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
            return None
        if not self.is_process(pid):
            return None
        # The file grows line by line while the server starts: line 5 is its socket's folder, line 8 its state.
        return Status(pid, len(lines) >= 8 and lines[7].strip() == "ready", lines[4] if len(lines) >= 5 else "")

    def is_process(self, pid: int) -> bool:
        """Return whether process `pid` is a live postgres that was started for this data directory."""
        if PROC.is_dir():
            try:
                return os.fsencode(self.data) in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return False
        listed = subprocess.run(
            ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout.strip()
        return str(self.data) in listed and not listed.startswith("Z")

    def stop(self) -> None:
        """Stop it and wait until it has gone; nothing to do when it is not running. StopError: it would not go."""
        status = self.status()
        if status is not None:
            self.end(status.pid)

    def end(self, pid: int) -> None:
        """Stop process `pid` of this data directory, politely first, and wait until it has gone."""
        for number, seconds in STOP_SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if not self.is_process(pid):
                    return
                time.sleep(POLL_SECONDS)
        raise StopError(pid, sum(seconds for _, seconds in STOP_SIGNALS))

    def clear_remains(self) -> None:
        """Remove what a killed postgres left behind, so that a new one will start.

        Hazard: only for the holder of warden.lock, and only while `status()` is None: a second postgres on the same
        data destroys it.
        """
        for number in ORPHAN_SIGNALS:
            for pid in self._orphans():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            # One that is still attached to the shared memory would make the new postgres give up.
            until = time.monotonic() + ORPHAN_SECONDS
            while self._orphans() and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        self.pid_file.unlink(missing_ok=True)

    def _orphans(self) -> list[int]:
        """Return backends that outlived their postgres: a busy one may not notice for as long as its query takes.

        They are known by their working folder, which /proc shows; elsewhere they are left to notice by themselves.
        """
        pids: list[int] = []
        for entry in PROC.glob("[0-9]*"):
            try:
                if os.readlink(entry / "cwd") == str(self.data) and os.readlink(entry / "exe").endswith("/postgres"):
                    pids.append(int(entry.name))
            except OSError:
                continue
        return pids
