"""A database that is gone for long is tried again and again, and told of once."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from pgwf_sdk import Client, Context, workflow
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.sdk.worker.conftest import StartWorker

pytestmark = pytest.mark.own_session  # A pooler keeps connections of its own, and tells when it likes.

ENDED = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and application_name ~ '^pgwf'"


@workflow
def idle(ctx: Context) -> int:
    return 17


def test_a_worker_tells_once_that_its_database_is_gone_and_once_that_it_is_back(
    dsn: str, client: Client, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def said(text: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    caplog.set_level(logging.INFO, "pgwf_sdk.worker")
    running = start_worker(idle, lease=timedelta(seconds=1))
    wait_until(lambda: running.worker.health().is_ready, "it is ready")
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, dbname="postgres", autocommit=True) as admin:
        admin.execute(f'alter database "{name}" allow_connections false')
        admin.execute(ENDED, [name])
        # Each heart tries once a second.
        wait_until(lambda: (running.worker.health().keepalive_age_seconds or 0) > 4, "it has tried several times")
        admin.execute(f'alter database "{name}" allow_connections true')
    wait_until(lambda: said("can keep its leases alive again"), "it is back")
    assert client.start(idle()).result(timeout=timedelta(seconds=30)) == 17

    assert len(said("cannot keep its leases alive")) == len(said("cannot work with the database")) == 1
    assert len(said("cannot hear of work")) <= 1, "it may have slept"
    assert not said("\n")
