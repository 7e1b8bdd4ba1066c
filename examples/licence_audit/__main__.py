"""The demo's command line: `python3 run.py demo`, or `python -m examples.licence_audit` in the project's root."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg

from examples.licence_audit import demo, inventory
from examples.licence_audit.demo import DemoError, Options
from examples.licence_audit.inventory import FolderError
from pgwf_sdk import PgwfError
from pgwf_sdk.embedded import EmbeddedError
from pgwf_sql import SchemaVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

FAILED, REFUSED, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str]) -> int:
    """Run the demo and return its exit code: 1 it failed, 2 it was called with something unusable, 130 stopped."""
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    demo.say(f"looking for Python distributions in {parsed.folder}")
    try:
        options = Options(
            folder=inventory.discover(parsed.folder).folder,
            output=_output(parsed.output),
            dsn=parsed.dsn or os.environ.get("DATABASE_URL"),
            is_decided_by_person=_is_decided_by_person(parsed.review),
        )
        demo.run(options)
    except FolderError as error:
        return _fail(str(error), REFUSED)
    except (DemoError, EmbeddedError, PgwfError, SchemaVersionError) as error:
        return _fail(str(error), FAILED)
    except psycopg.Error as error:
        return _fail(f"the database cannot be used: {' '.join(str(error).split())}", FAILED)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from where the audit is", INTERRUPTED)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py demo",
        description="Audit the licences of every Python distribution in a folder; one worker is killed in the middle.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        default=sysconfig.get_paths()["purelib"],
        help="any folder with *.dist-info or *.egg-info below it (default: this environment)",
    )
    parser.add_argument("--review", action="store_true", help="decide yourself about doubtful licences")
    parser.add_argument(
        "--output", default="licence-report", metavar="DIR", help="where reports go (default: licence-report)"
    )
    parser.add_argument(
        "--dsn", help="a PostgreSQL database to use (default: DATABASE_URL, else an embedded server); write --dsn=…"
    )
    return parser


def _output(folder: str) -> Path:
    """Return the folder for reports, made if need be. FolderError: nothing can be written there."""
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise FolderError(
            f"{path}: reports cannot be written there ({error.strerror}); give another --output"
        ) from None
    return path


def _is_decided_by_person(is_asked_for: bool) -> bool:
    if is_asked_for and not sys.stdin.isatty():
        demo.say("--review needs a terminal; without one the scripted reviewer decides")
        return False
    return is_asked_for


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"demo: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
