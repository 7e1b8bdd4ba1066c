"""What child runs are called: derived from their parent, so that a replay and a worker that takes over say the same."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["child_id", "given_id", "is_same_chain", "shortened"]

CHILD_ID_BYTES_MAX: Final = 200

_TURN: Final = re.compile(r"~[0-9]{1,6}(?=/|$)")
"""What tells the runs of a chain apart: `order-17`, its retry or continuation `order-17~2`, and so on."""


def child_id(parent_run_id: str, scope: str, workflow: str, occurrence: int) -> str:
    """`<parent>/<name>#<n>`, with the scope in between for a call inside a branch; a hash where that is too long."""
    return shortened(f"{parent_run_id}{scope}/{workflow}#{occurrence}", CHILD_ID_BYTES_MAX)


def given_id(parent_run_id: str, run_id: str) -> str:
    """The id of a child whose parent chose it: in `order-17~2`, the second run of `order-17`, it is `<run_id>~2`.

    So the retry of a run whose child failed does not meet the id that the failed child has for ever.
    """
    return run_id + "".join(_TURN.findall(parent_run_id))


def is_same_chain(run_id: str, other_id: str) -> bool:
    """Whether one is the retry or continuation of the other, or both of a third."""
    return _TURN.sub("", run_id) == _TURN.sub("", other_id)


def shortened(job_id: str, bytes_max: int) -> str:
    """The id itself, or where it is longer than `bytes_max` its beginning and a hash."""
    if len(job_id.encode()) <= bytes_max:
        return job_id
    root = job_id.partition("/")[0].encode()[:100].decode(errors="ignore")
    return f"{root}/{hashlib.blake2b(job_id.encode(), digest_size=16).hexdigest()}"
