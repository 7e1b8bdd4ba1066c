"""The example that needs nothing but psql."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tests.pgwf.leasing import Leasing, run_psql

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "leasing_lifecycle.sql"
TRAIL = [
    ("submit_job", "uploader"),
    ("get_work", "ingest-1"),
    ("reschedule_job", "ingest-1"),
    ("get_work", "transform-1"),
    ("extend_lease", "transform-1"),
    ("reschedule_job", "transform-1"),
    ("lease_job", "PROD;HUMAN-REVIEW;jim@example.org"),
    ("reschedule_job", "PROD;HUMAN-REVIEW;jim@example.org"),
    ("get_work", "finalize-1"),
    ("complete_job", "finalize-1"),
]


def test_the_lifecycle_example_passes_a_job_through_three_fleets_and_a_person(
    db: psycopg.Connection[Any], database: str
) -> None:
    output = run_psql(database, EXAMPLE, "-A", "-t")

    trail = [tuple(line.split("|")[1:3]) for line in output.splitlines() if line[:1].isdigit() and "|" in line]
    assert trail[-len(TRAIL) :] == TRAIL
    assert Leasing(db).rows("select from pgwf.name") == []
    assert Leasing(db).broken() == []
