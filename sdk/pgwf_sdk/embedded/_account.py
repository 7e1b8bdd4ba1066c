"""The account PostgreSQL runs as: our own, or an unprivileged one when we are root."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import NoAccountError

if sys.platform != "win32":
    import pwd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ACCOUNTS = ("postgres", "nobody")  # the first that exists is used when we are root
RUN_SECONDS_MAX = 120  # for initdb on a slow disk


@dataclass(frozen=True, slots=True)
class Account:
    """Whom to become before running a PostgreSQL program; None when we are that account already."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account to drop to, or None when this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise NoAccountError(f"there is no account named {' or '.join(ACCOUNTS)}")


def run_as(account: Account | None, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run `command` as `account` and return its exit code and output. OSError: it could not be started at all."""
    return subprocess.run(
        command,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        cwd="/",
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=RUN_SECONDS_MAX,
        start_new_session=True,
        check=False,
    )


def server_environment() -> dict[str, str]:
    """Return this process's environment without libpq's variables, which would also steer the server's programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def blocking_folder(path: Path, account: Account) -> Path | None:
    """Return the first folder on the way to `path` that `account` may not pass, by its mode; None if there is none."""
    for folder in [*reversed(path.parents), path]:
        status = folder.stat()
        if status.st_uid == account.uid:
            bit = 0o100
        elif status.st_gid == account.gid:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return folder
    return None
