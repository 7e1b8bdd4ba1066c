#!/usr/bin/env python3
"""Everything a checkout can do, after making its own environment first; needs Python 3.11 or newer and nothing else.

python3 run.py demo [FOLDER] [--review]   audit the licences of every Python distribution found in FOLDER
python3 run.py test [pytest arguments]    run the test suite
python3 run.py soak [MINUTES]             run the long forms of the random tests and of those at volume (default 30)
python3 run.py check                      run the linters and both type checkers
python3 run.py bench quick|full [options] measure pgwf beside its peers, in an environment of its own, .venv-bench
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

try:
    import fcntl
except ImportError:  # Windows: two first calls at once are then the user's own to avoid
    fcntl = None  # type: ignore[assignment]

PYTHON_MIN = (3, 11)
ROOT = Path(__file__).resolve().parent
OUTER_PYTHON = str(getattr(sys, "_base_executable", sys.executable))  # also when called with the Python in .venv
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the checkout: its folder, what is installed into it, and the files that name that."""

    folder: Path
    packages: tuple[str, ...]
    sources: tuple[Path, ...]

    @property
    def bin(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> Path:
        return self.bin / ("python.exe" if os.name == "nt" else "python")

    @property
    def stamp(self) -> Path:
        """What it was made from; missing while it is half made."""
        return self.folder / "pgwf-setup"


PYPROJECT = ROOT / "pyproject.toml"
PROJECT = Environment(ROOT / ".venv", ("-c", str(CONSTRAINTS), "-e", f"{ROOT}[embedded,dev]"), (PYPROJECT, CONSTRAINTS))
PEERS = ROOT / "requirements" / "bench.txt"
BENCH = Environment(
    ROOT / ".venv-bench",
    ("-c", str(CONSTRAINTS), "-r", str(PEERS), "-e", f"{ROOT}[embedded]"),
    (PYPROJECT, CONSTRAINTS, PEERS),
)


def say(text: str) -> None:
    print(f"run.py: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    """The call itself is wrong."""
    say(text)
    sys.exit(2)


def fingerprint(environment: Environment) -> list[str]:
    """Return what it is made from: its Python and place (scripts in it hold the path), and the packages."""
    place = f"{sys.version} {sys.base_prefix} {ROOT}".encode()
    packages = b"".join(path.read_bytes() for path in environment.sources)
    return [hashlib.sha256(data).hexdigest() for data in (place, packages)]


def stamped(environment: Environment) -> list[str]:
    """Return the fingerprint it was finished with; empty when it is absent, half made or its Python is gone."""
    try:
        return environment.stamp.read_text(encoding="ascii").split() if environment.python.exists() else []
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
                say("another call is setting up an environment; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)


def install_with_uv(uv: str, environment: Environment, afresh: bool) -> None:
    if afresh:
        run(uv, "venv", "--quiet", "--clear", "--python", OUTER_PYTHON, environment.folder)
    run(uv, "pip", "install", "--quiet", "--python", environment.python, *environment.packages)


def install_with_pip(environment: Environment, afresh: bool) -> None:
    # Some systems ship Python without ensurepip; a pip of the outer Python can then serve the new environment.
    python = environment.python
    own_pip = importlib.util.find_spec("ensurepip") is not None
    if not own_pip and importlib.util.find_spec("pip") is None:
        sys.exit(
            f"run.py: {OUTER_PYTHON} has neither ensurepip nor pip, so it cannot fill {environment.folder}.\n"
            "        Install one of them (Debian, Ubuntu: apt-get install python3-venv) or uv, then call again."
        )
    if afresh:
        run(OUTER_PYTHON, "-m", "venv", "--clear", *([] if own_pip else ["--without-pip"]), environment.folder)
    elif own_pip and not list(environment.bin.glob("pip*")):  # as uv makes them
        run(python, "-m", "ensurepip")
    pip: list[str | Path] = [python, "-m", "pip"] if own_pip else [OUTER_PYTHON, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", "--disable-pip-version-check", *environment.packages)


def install(environment: Environment, afresh: bool) -> None:
    uv = shutil.which("uv")
    if uv is not None:
        try:
            return install_with_uv(uv, environment, afresh)
        except subprocess.CalledProcessError as error:
            say(f"uv failed (exit {error.returncode}); trying pip")
            afresh = True
    try:
        install_with_pip(environment, afresh)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"run.py: setting up {environment.folder} failed: exit {error.returncode} from {' '.join(error.cmd)}\n"
            "        The lines above say why. Usual causes: no network or proxy to the package index, a full disk.\n"
            "        Nothing needs cleaning up: the next call starts afresh."
        )


def setup(environment: Environment) -> None:
    wanted = fingerprint(environment)
    if stamped(environment) == wanted:
        return
    with only_one():
        found = stamped(environment)
        if found == wanted:
            return
        afresh = found[:1] != wanted[:1]
        name = environment.folder.name
        say(f"making {name} (about half a minute)" if afresh else f"updating {name}")
        # Without its stamp an interrupted environment is known as half made and made afresh by the next call.
        environment.stamp.unlink(missing_ok=True)
        install(environment, afresh)
        environment.stamp.write_text("\n".join(wanted), encoding="ascii")


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
    return become(PROJECT.python, "-m", "examples.licence_audit", *paths)


def test(arguments: Sequence[str]) -> int:
    return become(PROJECT.python, "-m", "pytest", *arguments)


def bench(arguments: Sequence[str]) -> int:
    # Its options name paths; they are relative to the project's root, like the results.
    return become(BENCH.python, "-m", "bench", *arguments)


SOAK_MINUTES = 30
SOAK_JOBS = 1_000_000
SOAK_TESTS = (
    *("tests/pgwf/test_stress.py", "tests/pgwf/test_model.py", "tests/pgwf/test_volume.py"),
    *("tests/sdk/replay/test_laws.py", "tests/sdk/sql/test_many_sessions.py", "tests/sql"),
    *("tests/sdk/testing/test_programs.py", "tests/system/test_programs.py"),
)


def soak(arguments: Sequence[str]) -> int:
    """Each kind gets a share of the minutes; how long it takes depends on the machine. Variables that are set win."""
    if len(arguments) > 1 or not all(text.isdigit() and int(text) > 0 for text in arguments):
        refuse(f"soak takes a number of minutes, found {' '.join(arguments)}; try `python3 run.py soak 30`")
    minutes = int(arguments[0]) if arguments else SOAK_MINUTES
    long_forms = {
        "PGWF_STRESS_SECONDS": 15 * minutes,  # there are three of it
        "PGWF_MODEL_EXAMPLES": 20 * minutes,
        "PGWF_LAWS_EXAMPLES": 40 * minutes,
        "PGWF_KILLS_EXAMPLES": 4 * minutes,  # there are four of it
        "PGWF_TEST_VOLUME": SOAK_JOBS,
    }
    for name, value in long_forms.items():
        say(f"{name}={os.environ.setdefault(name, str(value))}")
    seconds_max = 60 * (2 * minutes + 30)
    return become(PROJECT.python, "-m", "pytest", "-n", "auto", f"--timeout={seconds_max}", *SOAK_TESTS)


def check(_arguments: Sequence[str]) -> int:
    tools: dict[str, list[str | Path]] = {
        "ruff check": [PROJECT.python, "-m", "ruff", "check", "."],
        "ruff format": [PROJECT.python, "-m", "ruff", "format", "--check", "."],
        "mypy": [PROJECT.python, "-m", "mypy"],
        "basedpyright": [PROJECT.python, "-m", "basedpyright"],
        "lint-imports": [PROJECT.bin / "lint-imports"],
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
    "soak": soak,
    "check": check,
    "bench": bench,
}


def main(arguments: Sequence[str]) -> int:
    if sys.version_info < PYTHON_MIN:
        found, wanted = (".".join(map(str, version)) for version in (sys.version_info[:3], PYTHON_MIN))
        sys.exit(
            f"run.py: Python {wanted} or newer is needed, {sys.executable} is {found}; call run.py with a newer one"
        )
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if name not in COMMANDS:
        refuse(f"found {name!r}; expected one of {', '.join(COMMANDS)}: `python3 run.py --help` says what they do")
    if rest and name in ("setup", "check"):
        refuse(f"{name} takes no arguments, found {' '.join(rest)}; try `python3 run.py {name}`")
    setup(BENCH if name == "bench" else PROJECT)
    return COMMANDS[name](rest)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as problem:
        sys.exit(f"run.py: {problem}")
