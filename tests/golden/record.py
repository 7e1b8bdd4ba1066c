"""Records the journals of this folder: `python -m tests.golden.record DSN [WORKFLOW]…`, on a database with the schema.

Journals that are there already are left alone: they are what runs of earlier versions have recorded.
"""

from __future__ import annotations

import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgwf_sdk import Client, Worker, ops
from tests.golden.programs import ELSEWHERE, TOKENS, WORKFLOWS, Parcel
from tests.support import wait_for_status, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_sdk import Run, Workflow

ROOT = Path(__file__).parents[2]
JOURNALS = Path(__file__).parent / "journals"
SECONDS_MAX = 60.0


def record(dsn: str, names: Sequence[str]) -> None:
    with Client(dsn, name="golden") as client:
        worker = Worker(client, workflows=WORKFLOWS, capabilities=[ELSEWHERE], worker_id="golden", build="first")
        working = threading.Thread(target=worker.run, daemon=True)
        working.start()
        for workflow in WORKFLOWS:
            file = JOURNALS / f"{workflow.name}.json"
            if not file.exists() and (not names or workflow.name in names):
                run = client.start(_call(workflow), run_id=workflow.name)
                _accompany(client, run)
                _until_over(run)
                document = ops.recorded_run(client, run.run_id).to_json()
                file.write_bytes(document.replace(f"{ROOT}/".encode(), b""))
                sys.stdout.write(f"{file.name}\n")
        worker.stop()
        working.join()


def _call(workflow: Workflow[..., Any]) -> Any:
    arguments = {"golden.child": (5,), "golden.chain": (1,)}
    return workflow(*arguments.get(workflow.name, ()))


def _accompany(client: Client, run: Run[Any]) -> None:
    """Do what the run needs from outside."""
    match run.run_id:
        case "golden.signals":
            for number in (1, 2):
                run.signal("parcel", {"code": f"s{number}", "grams": "1.5"})
        case "golden.human":
            wait_until(lambda: client.human.list(need="human.golden"), f"{run.run_id} is there", seconds=SECONDS_MAX)
            (task,) = client.human.list(need="human.golden")
            client.human.decide(task.task_id, Parcel("h", Decimal(2)), by="ann")
        case "golden.promises":
            wait_until(lambda: len(TOKENS) == 2, f"{run.run_id} is there", seconds=SECONDS_MAX)
            client.complete_awakeable(TOKENS[1], "yes")
            client.complete_awakeable(TOKENS[0], {"code": "p", "grams": "2"})
        case "golden.cancel":
            wait_for_status(run, "waiting", seconds=SECONDS_MAX)
            run.cancel(reason="changed her mind", by="ann")
        case _:
            pass


def _until_over(run: Run[Any]) -> None:
    wait_until(lambda: run.details().is_final, f"{run.run_id} is there", seconds=SECONDS_MAX)


if __name__ == "__main__":
    JOURNALS.mkdir(exist_ok=True)
    record(sys.argv[1], sys.argv[2:])
