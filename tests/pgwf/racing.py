"""Sessions that race: calls of the leasing core that stay open, block, and go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.support import Rows, Session

both_ends = pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])


class Racer:
    """One session. `call` waits for the answer; `start` does not."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self) -> None:
        self.session.run("begin")

    def commit(self) -> None:
        self.session.run("commit")

    def rollback(self) -> None:
        self.session.run("rollback")

    def end(self, *, committed: bool) -> None:
        self.session.run("commit" if committed else "rollback")

    def call(self, function: str, **arguments: Any) -> Rows:
        return self.session.run(statement(function, arguments), arguments)

    def start(self, function: str, **arguments: Any) -> Future[Rows]:
        return self.session.start(statement(function, arguments), arguments)

    def start_blocked(self, function: str, **arguments: Any) -> Future[Rows]:
        """Start a call that has to wait for another session's lock, and return once it does."""
        return self.session.start_blocked(statement(function, arguments), arguments)

    def claim(self, *needs: str, limit: int = 5, seconds: int = 60) -> list[str]:
        """Claim, and return the ids of what was leased. One that comes back short sweeps, and keeps other sweeps out
        until its end."""
        return [job_id for job_id, *_ in self._get_work(*needs, limit=limit, seconds=seconds)]

    def take(self, *needs: str) -> dict[str, Any]:
        """Lease exactly one job."""
        ((job_id, lease_id, *_),) = self._get_work(*needs, limit=1)
        return {"job_id": job_id, "lease_id": lease_id}

    def sweep(self) -> int:
        """Sweep, and return how many jobs that moved. Nobody else may be sweeping: 0 means that it passed by."""
        assert self.session.run("select pg_try_advisory_xact_lock(pgwf._sweep_lock())") == [(True,)], "nobody sweeps"
        ((moved,),) = self.call("sweep", worker_id="s")
        return int(moved)

    def lock_job(self, job_id: str) -> None:
        self.session.run("select from pgwf.job where job_id = %s for update", [job_id])

    def _get_work(self, *needs: str, limit: int, seconds: int = 60) -> Rows:
        return self.call(
            "get_work",
            worker_id="worker",
            worker_caps=list(needs or ("python",)),
            lease_seconds=seconds,
            limit_jobs=limit,
        )


def statement(function: str, arguments: dict[str, Any]) -> str:
    named = ", ".join(
        f"p_{name} => %({name})s{'::text[]' if isinstance(value, list) else ''}" for name, value in arguments.items()
    )
    return f"select * from pgwf.{function}({named})"
