"""run.py's set-up: made once, mended when half made, safe to call twice at once. An installer that only notes its
calls stands in for uv, so nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
# Notes the call, makes what uv venv would make, and waits or fails if a file beside it says so.
INSTALLER = """#!/bin/sh
here=$(dirname "$0")
echo "$1" >>"$here/calls"
if [ "$1" = venv ]; then
  mkdir -p .venv/bin && ln -sf "{python}" .venv/bin/python
else
  while [ -e "$here/hold" ]; do sleep 0.02; done
  [ ! -e "$here/fail" ]
fi
"""


class Checkout:
    """A project folder with run.py and a stand-in for uv on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir(parents=True)
        shutil.copy(ROOT / "run.py", folder)
        (folder / "pyproject.toml").write_text("[project]\nname = 'project'\nversion = '1'\n")
        (folder / "requirements").mkdir()
        (folder / "requirements" / "constraints.txt").touch()
        installer = self.tools / "uv"
        installer.write_text(INSTALLER.format(python=sys.executable))
        installer.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "run.py", *arguments],
            cwd=self.folder,
            env=os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    @property
    def calls(self) -> Sequence[str]:
        """What the installer was asked to do, in order."""
        noted = self.tools / "calls"
        return noted.read_text().split() if noted.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_environment_is_made_by_the_first_call_only(checkout: Checkout) -> None:
    assert checkout.run("setup").returncode == 0
    assert checkout.calls == ["venv", "pip"]

    assert checkout.run("setup").returncode == 0
    assert checkout.calls == ["venv", "pip"]


def test_environment_is_updated_in_place_when_the_packages_change(checkout: Checkout) -> None:
    checkout.run("setup")
    (checkout.folder / "requirements" / "constraints.txt").write_text("click==8.0\n")

    assert checkout.run("setup").returncode == 0

    assert checkout.calls == ["venv", "pip", "pip"]


def test_two_first_calls_at_once_make_one_environment(checkout: Checkout) -> None:
    (checkout.tools / "hold").touch()
    first, second = checkout.start("setup"), checkout.start("setup")
    assert second.stderr is not None
    assert first.stderr is not None
    wait_until(lambda: "pip" in checkout.calls, "one of them installs")

    (checkout.tools / "hold").unlink()
    for each in (first, second):
        each.communicate(timeout=60)
        assert each.returncode == 0

    assert checkout.calls == ["venv", "pip"]


def test_environment_left_half_made_by_a_kill_is_made_afresh(checkout: Checkout) -> None:
    (checkout.tools / "hold").touch()
    killed = checkout.start("setup")
    wait_until(lambda: "pip" in checkout.calls, "it installs")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    (checkout.tools / "hold").unlink()

    assert checkout.run("setup").returncode == 0

    assert checkout.calls == ["venv", "pip", "venv", "pip"]


def test_environment_whose_python_is_gone_is_made_afresh(checkout: Checkout) -> None:
    checkout.run("setup")
    (checkout.folder / ".venv" / "bin" / "python").unlink()

    assert checkout.run("setup").returncode == 0

    assert checkout.calls == ["venv", "pip", "venv", "pip"]


def test_failing_uv_is_followed_by_venv_and_pip_and_their_failure_says_what_to_do(checkout: Checkout) -> None:
    (checkout.tools / "fail").touch()
    # Found before the standard library's, as if making the environment failed.
    (checkout.tools / "venv.py").write_text("raise SystemExit(3)\n")

    failed = checkout.run("setup", PYTHONPATH=str(checkout.tools))

    assert failed.returncode == 1
    assert "uv failed (exit 1); trying pip" in failed.stderr
    assert "exit 3 from" in failed.stderr
    assert "the next call starts afresh" in failed.stderr


def test_interrupt_during_the_set_up_ends_it_without_a_traceback(checkout: Checkout) -> None:
    (checkout.tools / "hold").touch()
    interrupted = checkout.start("setup")
    wait_until(lambda: "pip" in checkout.calls, "it installs")

    os.killpg(interrupted.pid, signal.SIGINT)
    _, err = interrupted.communicate(timeout=60)

    assert interrupted.returncode == 130
    assert "Traceback" not in err


def test_command_replaces_run_py_so_that_its_exit_code_is_the_commands(checkout: Checkout) -> None:
    """Here the command is missing from the bare environment, which its Python says by itself."""
    ended = checkout.run("demo", ".")

    assert ended.returncode == 1
    assert "examples" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dance"], "found 'dance'; expected one of setup, demo, test, soak, check, bench: `python3 run.py --help`"),
        (["setup", "now"], "setup takes no arguments, found now; try `python3 run.py setup`"),
        (["check", "sdk"], "check takes no arguments, found sdk"),
    ],
)
def test_a_call_that_is_wrong_is_told_what_to_write_and_makes_nothing(
    checkout: Checkout, arguments: list[str], said: str
) -> None:
    refused = checkout.run(*arguments)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"run.py: {said}")
    assert not checkout.calls


def test_help_says_what_the_commands_do(checkout: Checkout) -> None:
    shown = checkout.run("--help")

    assert shown.returncode == 0
    assert "python3 run.py demo" in shown.stdout
    assert not checkout.calls
