"""The rules, by number, and what a finding is."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

RULES: Final = MappingProxyType(
    {
        "PGWF000": "the file cannot be read as Python",
        "PGWF101": "the clock is read in a workflow",
        "PGWF102": "randomness in a workflow that does not come from its context",
        "PGWF103": "input or output in a workflow",
        "PGWF104": "the environment is read in a workflow",
        "PGWF105": "a step uses a context",
        "PGWF106": "a call of the context is not awaited",
        "PGWF107": "calls of the context in the order of a set",
        "PGWF108": "threads, processes or tasks of its own in a workflow",
        "PGWF109": "a handler swallows what stops a workflow",
        "PGWF110": "an effect in a finally block of a workflow",
        "PGWF111": "a lambda as a step, which has no name that lasts",
        "PGWF112": "a step is called directly in a workflow",
        "PGWF113": "a workflow changes a variable of its module",
        "PGWF114": "a workflow blocks the thread",
        "PGWF115": "a branch uses a context that is not its own",
    }
)
"""What each number stands for. A line that ends with `# pgwf: ignore PGWF101` is excused from that rule."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One place in the code; lines and columns count from 1."""

    file: str
    line: int
    column: int
    rule: str
    message: str
    workflow: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.rule} {self.message}"
