"""Runs told as journals: entries, leases, children and tasks at seconds after a start, for tests that draw them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pgwf_sdk import ops

START = datetime(2030, 1, 1, 9, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The instant so many seconds after the start of the story."""
    return START + timedelta(seconds=seconds)


def a_run(
    run_id: str = "order-17", *, status: str = "completed", start: float = 0, end: float | None = 60, **other: Any
) -> ops.RunSummary:
    """A run that was created `start` and ended `end` seconds into the story."""
    fields: dict[str, Any] = {
        "n": 1,
        "workflow": "checkout",
        "need": "python",
        "current_need": "python",
        "build": None,
        "parent_run_id": None,
        "root_run_id": run_id,
        "priority": 3,
        "entry_count": 0,
        "worker_id": None,
        "lease_until": None,
        "available_at": None,
        "deadline": None,
        "lapses": 0,
        "streak": 0,
        "attempts": 0,
    }
    return ops.RunSummary(
        run_id=run_id,
        status=status,
        created_at=at(start),
        finished_at=None if end is None else at(end),
        **{**fields, **other},
    )


def a_task(key: str, *, opened: float, state: str = "open", **other: Any) -> ops.TaskSummary:
    """A human task of the story's run."""
    fields: dict[str, Any] = {
        "task_id": f"order-17{key}",
        "first_need": "human.risk",
        "escalate_need": None,
        "escalated_at": None,
        "title": None,
        "subject": None,
        "decision_schema": None,
        "prefill": None,
        "assigned": None,
        "excluded": (),
        "holder": None,
        "claim_until": None,
        "due_at": None,
        "expires_at": None,
        "decision": None,
        "decided_by": None,
        "decided_at": None,
    }
    return ops.TaskSummary(
        run_id="order-17",
        key=key,
        name=key.partition(":")[2].partition("#")[0],
        need="human.risk",
        state=state,
        created_at=at(opened),
        **{**fields, **other},
    )


class Story:
    """Collects what happened to one run; `facts` is what the query layer would know about it."""

    def __init__(self, **run: Any) -> None:
        self.run = run
        self.entries: list[ops.JournalEntry] = []
        self.activations: list[ops.Activation] = []
        self.children: list[ops.RunSummary] = []
        self.tasks: list[ops.TaskSummary] = []
        self.attempts: list[ops.Attempt] = []
        self._calls: dict[str, dict[str, int]] = {}
        self.entry(0, "run", "checkout", "opened", call=0)

    def entry(
        self,
        seconds: float,
        kind: str,
        name: str,
        phase: str = "completed",
        *,
        scope: str = "",
        occurrence: int = 1,
        call: int | None = None,
        lease_no: int = 1,
        payload: str | None = None,
    ) -> None:
        """Append an entry; calls of a scope are numbered in the order in which they are first told of."""
        key = f"{scope}/{kind}:{name}#{occurrence}"
        numbers = self._calls.setdefault(scope, {})
        number = numbers.setdefault(key, len(numbers) + 1) if call is None else call
        self.entries.append(
            ops.JournalEntry(
                seq=len(self.entries) + 1,
                key=key,
                kind=kind,
                phase=phase,
                scope=scope,
                name=name,
                occurrence=occurrence,
                call=number,
                payload=payload,
                encoding=0,
                recorded_at=at(seconds),
                lease_no=lease_no,
                code_file=None,
                code_line=None,
            )
        )

    def lease(self, number: int, worker: str, start: float, end: float | None, ended_by: str | None = None) -> None:
        """A worker held the run."""
        self.activations.append(
            ops.Activation(
                lease_no=number,
                worker_id=worker,
                started_at=at(start),
                ended_at=None if end is None else at(end),
                ended_by=ended_by,
            )
        )

    def facts(self, *, asked: float = 1e6) -> ops.Facts:
        """What is known at `asked` seconds."""
        return ops.Facts(
            run=a_run(**{"entry_count": len(self.entries), **self.run}),
            entries=self.entries,
            activations=self.activations,
            children=self.children,
            tasks=self.tasks,
            attempts=self.attempts,
            asked_at=at(asked),
        )


def refund() -> Story:
    """A refund that two people decide over a day, on three workers; the last but one is lost on the way."""
    story = Story(run_id="refund-42", end=97_200)
    story.entry(0.4, "step", "load_order")
    story.entry(15, "step", "fraud_score", lease_no=2)
    story.entry(15, "human", "risk", "opened", lease_no=3)
    story.entry(15, "human", "legal", "opened", lease_no=3)
    story.entry(65_400, "human", "risk", lease_no=4)
    story.entry(93_600, "human", "legal", lease_no=5)
    story.entry(97_193, "step", "pay_out", lease_no=6)
    story.entry(97_200, "step", "email_customer", lease_no=6)
    story.lease(1, "python-1", 0, 0.5, "reschedule_job")
    story.lease(2, "gpu-1", 9, 15, "reschedule_job")
    story.lease(3, "python-1", 15, 15.1, "reschedule_job")
    story.lease(4, "python-2", 65_400, 65_400.2, "reschedule_job")
    story.lease(5, "python-2", 93_600, 93_605, "lease_lapsed")
    story.lease(6, "python-1", 97_188, 97_200, "complete_job")
    story.tasks = [
        a_task("/human:risk#1", opened=15, state="decided", holder="bob", decided_by="bob", decided_at=at(65_400)),
        a_task("/human:legal#1", opened=15, state="decided", holder="carol", decided_by="carol", decided_at=at(93_600)),
    ]
    return story


def audit(*, items: int = 60, slow: tuple[int, ...] = (7, 22, 41)) -> Story:
    """A map over many children of which a few take far longer; a worker is lost in the middle."""
    ends = {index: 0.7 + index * 0.12 + (6.1 if index in slow else 0.1) for index in range(items)}
    last = max(ends.values())
    story = Story(run_id="audit", end=last + 0.4)
    story.entry(0.6, "step", "discover")
    for index, end in ends.items():
        scope = f"/branch:map#1[{index}]"
        story.entry(0.65, "child", "audit_one", "opened", scope=scope)
        story.children.append(
            a_run(
                f"audit/audit_one#{index + 1}",
                start=0.7 + index * 0.12,
                end=end,
                parent_key=f"{scope}/child:audit_one#1",
            )
        )
    for index in sorted(ends, key=ends.__getitem__):
        story.entry(ends[index] + 0.01, "child", "audit_one", scope=f"/branch:map#1[{index}]", lease_no=2)
    story.entry(last + 0.3, "step", "write_report", lease_no=3)
    story.lease(1, "w-1", 0.1, 3, "lease_lapsed")
    story.lease(2, "w-2", 6, 6.1, "reschedule_job")
    story.lease(3, "w-2", last + 0.01, last + 0.3, "complete_job")
    return story
