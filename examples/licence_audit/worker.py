"""One worker process of the demo: `python -m examples.licence_audit.worker NAME CAPABILITY`.

Like `pgwf worker run examples.licence_audit.workflow --capability …`, with three differences that suit a demo: a dead
worker's runs are taken over after LEASE instead of 15 seconds, each attempt of a step is logged, and the process ends
when the one that started it does, however that ends.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import timedelta

from examples.licence_audit.workflow import audit, audit_one
from pgwf_sdk import Client, Worker

LEASE = timedelta(seconds=5)
CONCURRENCY = 2  # Small, so that two workers share even a small audit.


def main(name: str, capability: str) -> None:
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("pgwf_sdk.worker").setLevel(logging.DEBUG)
    with Client(os.environ["DATABASE_URL"], name=name) as client:
        worker = Worker(
            client,
            workflows=[audit, audit_one],
            capabilities=[capability],
            concurrency=CONCURRENCY,
            lease=LEASE,
            worker_id=name,
        )
        threading.Thread(target=_stop_with_parent, args=(worker,), daemon=True).start()
        worker.run()


def _stop_with_parent(worker: Worker) -> None:
    """Standard input is a pipe from the demo; its end means that the demo is gone, even by SIGKILL."""
    while os.read(0, 4096):
        pass
    worker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
