"""Where a sealed value stands: what it is bound to, as far as its writer and its reader both know it.

A run's copies (its retry, its fork) take entries over as they are, so the run itself is no part of it.
"""

from __future__ import annotations

from pgwf_journal import Kind, Phase


def entry_place(kind: int, phase: int, name: str, key: str) -> str:
    """Of an entry of a journal."""
    if kind != Kind.RUN:
        return f"entry {key}"
    return input_place(name) if phase in (Phase.OPENED, Phase.CONTINUED) else end_place()


def input_place(workflow: str) -> str:
    """Of what a run is started with."""
    return f"input of {workflow}"


def end_place() -> str:
    """Of what a run returns, or of its error: in its own journal, and on its way to the run that waits for it."""
    return "end of a run"


def signal_place(name: str) -> str:
    """Of a signal."""
    return f"signal {name}"


def awakeable_place() -> str:
    """Of what an awakeable is settled with: who has its token does not know which call it is."""
    return "awakeable"


def subject_place(task_id: str) -> str:
    """Of what a person looks at."""
    return f"subject of task {task_id}"


def prefill_place(task_id: str) -> str:
    """Of a proposed decision."""
    return f"prefill of task {task_id}"


def decision_place(task_id: str) -> str:
    """Of what a person decided."""
    return f"decision of task {task_id}"


def attempt_place(key: str) -> str:
    """Of why an attempt of a step failed, and of what it reported last."""
    return f"attempt of {key}"
