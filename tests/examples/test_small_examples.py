from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from examples import approval, transfer_in_transaction
from examples.approval import Approve, Reject, pay
from examples.transfer_in_transaction import ship
from pgwf_sdk import Client, Worker
from pgwf_sdk.embedded import EmbeddedServer
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pgwf_sdk import Workflow

ROOT = Path(__file__).resolve().parents[2]
END = timedelta(seconds=30)


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as client:
        yield client


@contextmanager
def working(client: Client, workflow: Workflow[..., Any]) -> Generator[None]:
    """Run a worker for a workflow during the block."""
    worker = Worker(client, workflows=[workflow])
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


@pytest.fixture
def home() -> Iterator[Path]:
    """A short folder for an embedded server, which another account can enter."""
    home = Path(tempfile.mkdtemp(prefix="pgwf-hello-", dir="/tmp"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home)


def test_hello_goes_on_after_kill_9_and_says_hello_once(home: Path) -> None:
    def start(log: Path) -> subprocess.Popen[bytes]:
        with open(log, "wb") as output:
            return subprocess.Popen(
                [sys.executable, ROOT / "examples" / "hello.py"],
                env=os.environ | {"PGWF_HOME": str(home)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    first = start(home / "first.log")
    wait_until(lambda: "Hello, Ada" in (home / "first.log").read_text(), "hello is said", seconds=60)
    with EmbeddedServer(home) as server, Client(server.dsn) as client:
        wait_for_status(client.get("hello-Ada"), "waiting")
        first.send_signal(signal.SIGKILL)
        first.wait()

    second = start(home / "second.log")

    assert second.wait(60) == 0
    assert (home / "first.log").read_text() == "Hello, Ada\n"
    assert (home / "second.log").read_text() == "Goodbye, Ada\n['HELLO, ADA', 'GOODBYE, ADA']\n"


def test_the_readme_shows_hello_as_it_is() -> None:
    shown = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]

    assert shown in (ROOT / "examples/hello.py").read_text()


def test_hello_fits_on_a_page() -> None:
    assert len((ROOT / "examples" / "hello.py").read_text().splitlines()) <= 40


def test_a_payment_waits_for_a_person_and_pays_what_was_approved(client: Client) -> None:
    run = client.start(pay("A-17", 250_000), run_id="pay-17")
    with working(client, pay):
        (task,) = wait_until(lambda: client.human.list(need="human.payments"), "somebody is asked")
        client.human.decide(task.task_id, Approve(200_000), by="ada")

        assert run.result(timeout=END) == "paid 2000.00 for A-17"
    assert task.title == "Pay 2500.00 for A-17?"
    assert task.subject == '{"order":"A-17","cents":250000}'


def test_a_payment_may_be_rejected(client: Client) -> None:
    run = client.start(pay("A-18", 1), run_id="pay-18")
    with working(client, pay):
        (task,) = wait_until(lambda: client.human.list(need="human.payments"), "somebody is asked")
        client.human.decide(task.task_id, Reject("a duplicate"), by="ada")

        assert run.result(timeout=END) == "not paid: a duplicate"


def test_an_order_and_its_shipment_are_booked_together_or_not_at_all(dsn: str, client: Client) -> None:
    with working(client, ship):
        booked = subprocess.run(
            [sys.executable, ROOT / "examples" / "transfer_in_transaction.py"],
            env=os.environ | {"DATABASE_URL": dsn},
            capture_output=True,
            text=True,
            check=False,
        )

    assert booked.returncode == 0, booked.stderr
    assert re.fullmatch(r"B-2 was not booked.*amount is positive.*\npacked B-1\n", booked.stdout)
    assert [run.run_id for run in client.list(workflow="ship")] == ["ship-B-1"]
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select order_id from shop_order").fetchall() == [("B-1",)]


def test_the_examples_say_how_to_run_them() -> None:
    assert all(module.__doc__ and "pgwf dev" in module.__doc__ for module in (approval, transfer_in_transaction))
