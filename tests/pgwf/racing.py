"""Sessions that race: calls of the leasing core that stay open, block, and go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.support import Session

Rows = list[tuple[Any, ...]]


class Racer:
    """One session. `call` waits for the answer; `start` does not, and `blocked` waits until it waits for a lock."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self) -> None:
        self.session.run("begin")

    def commit(self) -> None:
        self.session.run("commit")

    def rollback(self) -> None:
        self.session.run("rollback")

    def call(self, function: str, **arguments: Any) -> Rows:
        return self.session.run(statement(function, arguments), arguments)

    def start(self, function: str, **arguments: Any) -> Future[Rows]:
        return self.session.start(statement(function, arguments), arguments)

    def start_blocked(self, function: str, **arguments: Any) -> Future[Rows]:
        """Start a call that has to wait for another session's lock, and return once it does."""
        future = self.start(function, **arguments)
        self.session.wait_blocked()
        return future

    def sweep(self) -> int:
        """Sweep, and return how many jobs that moved. Nobody else may be sweeping: 0 means that it passed by."""
        assert self.session.run("select pg_try_advisory_xact_lock(pgwf._sweep_lock())") == [(True,)], "nobody sweeps"
        ((moved,),) = self.call("sweep", worker_id="s")
        return int(moved)

    def lock_job(self, job_id: str) -> None:
        self.session.run("select from pgwf.job where job_id = %s for update", [job_id])


def statement(function: str, arguments: dict[str, Any]) -> str:
    named = ", ".join(
        f"p_{name} => %({name})s{'::text[]' if isinstance(value, list) else ''}" for name, value in arguments.items()
    )
    return f"select * from pgwf.{function}({named})"


def outcome(future: Future[Rows]) -> Rows | str:
    """The rows of a call, or the SQLSTATE with which it was refused."""
    error = future.exception(timeout=20)
    if error is None:
        return future.result()
    sqlstate: str | None = getattr(error, "sqlstate", None)
    if sqlstate is None:
        raise error
    return sqlstate
