#!/usr/bin/env python3
"""Everything a checkout can do, after making its own environment first; needs Python 3.11 or newer and nothing else.

python3 run.py demo [FOLDER] [--review]   audit the licences of every Python distribution found in FOLDER
python3 run.py test [pytest arguments]    run the test suite
python3 run.py check                      run the linters and both type checkers
python3 run.py setup                      make or repair .venv and stop there
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

try:
    import fcntl
except ImportError:  # Windows: two first calls at once are then the user's own to avoid
    fcntl = None  # type: ignore[assignment]

PYTHON_MIN = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
OUTER_PYTHON = str(getattr(sys, "_base_executable", sys.executable))  # also when called with the Python in .venv
STAMP = VENV / "pgwf-setup"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
PACKAGES = ["-c", str(CONSTRAINTS), "-e", f"{ROOT}[embedded,dev]"]


def say(text: str) -> None:
    print(f"run.py: {text}", file=sys.stderr, flush=True)


def fingerprint() -> list[str]:
    """Return what .venv is made from: its Python and place (scripts in it hold the path), and the packages."""
    place = f"{sys.version} {sys.base_prefix} {ROOT}".encode()
    packages = b"".join(path.read_bytes() for path in (ROOT / "pyproject.toml", CONSTRAINTS))
    return [hashlib.sha256(data).hexdigest() for data in (place, packages)]


def stamped() -> list[str]:
    """Return the fingerprint .venv was finished with; empty when it is absent, half made or its Python is gone."""
    try:
        return STAMP.read_text(encoding="ascii").split() if PYTHON.exists() else []
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def only_one() -> Generator[None]:
    """Hold the set-up lock; the kernel lets go of it when this process ends in any way."""
    with open(ROOT / ".venv.lock", "w", encoding="ascii") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another call is setting up .venv; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def install_with_uv(uv: str, afresh: bool) -> None:
    if afresh:
        run(uv, "venv", "--quiet", "--clear", "--python", OUTER_PYTHON, VENV)
    run(uv, "pip", "install", "--quiet", "--python", PYTHON, *PACKAGES)


def install_with_pip(afresh: bool) -> None:
    # Some systems ship Python without ensurepip; a pip of the outer Python can then serve the new environment.
    own_pip = importlib.util.find_spec("ensurepip") is not None
    if not own_pip and importlib.util.find_spec("pip") is None:
        sys.exit(
            f"run.py: {OUTER_PYTHON} has neither ensurepip nor pip, so it cannot fill {VENV}.\n"
            "        Install one of them (Debian, Ubuntu: apt-get install python3-venv) or uv, then call again."
        )
    if afresh:
        run(OUTER_PYTHON, "-m", "venv", "--clear", *([] if own_pip else ["--without-pip"]), VENV)
    elif own_pip and not list(BIN.glob("pip*")):  # as uv makes them
        run(PYTHON, "-m", "ensurepip")
    pip: list[str | Path] = [PYTHON, "-m", "pip"] if own_pip else [OUTER_PYTHON, "-m", "pip", "--python", PYTHON]
    run(*pip, "install", "--quiet", "--disable-pip-version-check", *PACKAGES)


def install(afresh: bool) -> None:
    uv = shutil.which("uv")
    if uv is not None:
        try:
            return install_with_uv(uv, afresh)
        except subprocess.CalledProcessError as error:
            say(f"uv failed (exit {error.returncode}); trying pip")
            afresh = True
    try:
        install_with_pip(afresh)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"run.py: setting up {VENV} failed: exit {error.returncode} from {' '.join(error.cmd)}\n"
            "        The lines above say why. Usual causes: no network or proxy to the package index, a full disk.\n"
            "        Nothing needs cleaning up: the next call starts afresh."
        )


def setup() -> None:
    wanted = fingerprint()
    if stamped() == wanted:
        return
    with only_one():
        found = stamped()
        if found == wanted:
            return
        afresh = found[:1] != wanted[:1]
        say("making .venv (about half a minute)" if afresh else "updating .venv")
        # Without its stamp an interrupted environment is known as half made and made afresh by the next call.
        STAMP.unlink(missing_ok=True)
        install(afresh)
        STAMP.write_text("\n".join(wanted), encoding="ascii")


def become(*command: str | Path) -> int:
    """Run `command` in the project's root instead of this process, so that signals and exit codes are its own."""
    arguments = [str(part) for part in command]
    os.chdir(ROOT)
    if os.name != "nt":
        os.execv(arguments[0], arguments)
    return subprocess.call(arguments)


def demo(arguments: Sequence[str]) -> int:
    """Every argument that is no option is a path and relative to the caller's folder."""
    paths = [text if text.startswith("-") else str(Path(text).resolve()) for text in arguments]
    return become(PYTHON, "-m", "examples.licence_audit", *paths)


def test(arguments: Sequence[str]) -> int:
    return become(PYTHON, "-m", "pytest", *arguments)


def check(_arguments: Sequence[str]) -> int:
    tools: dict[str, list[str | Path]] = {
        "ruff check": [PYTHON, "-m", "ruff", "check", "."],
        "ruff format": [PYTHON, "-m", "ruff", "format", "--check", "."],
        "mypy": [PYTHON, "-m", "mypy"],
        "basedpyright": [PYTHON, "-m", "basedpyright"],
        "lint-imports": [BIN / "lint-imports"],
    }
    failed: list[str] = []
    for name, command in tools.items():
        say(name)
        if subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    say(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "setup": lambda _arguments: 0,
    "demo": demo,
    "test": test,
    "check": check,
}


def main(arguments: Sequence[str]) -> int:
    if sys.version_info < PYTHON_MIN:
        found, wanted = (".".join(map(str, version)) for version in (sys.version_info[:3], PYTHON_MIN))
        sys.exit(
            f"run.py: Python {wanted} or newer is needed, {sys.executable} is {found}; call run.py with a newer one"
        )
    name, *rest = arguments or ["--help"]
    if name not in COMMANDS:
        print(__doc__)
        return 0 if name in ("-h", "--help", "help") else 2
    setup()
    return COMMANDS[name](rest)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as problem:
        sys.exit(f"run.py: {problem}")
