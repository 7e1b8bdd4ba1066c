"""A client that was used before its process was forked, as servers that load first and fork then do."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
from datetime import timedelta
from pgwf_sdk import Client, Context, ResultTimeoutError, workflow

@workflow
def order(ctx: Context, number: int) -> int:
    return number

def ask(client: Client, first: int) -> bool:
    runs = [client.start(order(number), run_id=str(number)) for number in range(first, first + 50)]
    try:
        runs[0].result(timeout=timedelta(milliseconds=10))
    except ResultTimeoutError:
        return all(client.get(run.run_id).run_id == run.run_id == str(first + i) for i, run in enumerate(runs))
    return False

client = Client(sys.argv[1])
client.start(order(1), run_id="1")
children = []
for first in (1_000, 2_000):
    child = os.fork()
    if not child:
        os._exit(0 if ask(client, first) else 1)
    children.append(child)
is_right = ask(client, 3_000)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
client.close()
sys.exit(0 if is_right and codes == [0, 0] else 1)
"""


def test_parent_and_children_each_get_their_own_answers(dsn: str) -> None:
    script = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, dsn], capture_output=True, text=True, timeout=60, check=False
    )

    assert (script.returncode, script.stderr) == (0, "")
