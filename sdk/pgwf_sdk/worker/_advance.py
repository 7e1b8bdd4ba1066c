"""The hot call as values: items become its parameters, its rows become answers. No I/O.

`pgwf_sdk.advance` takes parallel arrays; an `Item` is one element of each. What an item's dispositions and the answers'
statuses mean stands at the SQL function.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from pgwf_journal import Entry, Kind, NewEntry, Phase

Disposition = Literal["keep", "park", "hop", "release", "complete", "fail", "cancel", "block"]
ItemStatus = Literal["ok", "unread", "undecided", "fenced", "conflict", "child_exists"]


class ChildStart(NamedTuple):
    """A child run to start with an item; `key` is the call of the parent that waits for it."""

    key: str
    run_id: str
    workflow: str
    need: str
    build: str | None
    payload: bytes
    encoding: int


class TaskOpening(TypedDict):
    """A human task to open with an item."""

    key: str
    task_id: str
    name: str
    title: str | None
    need: str
    subject: str
    encoding: int
    decision_schema: dict[str, Any]
    prefill: str | None
    assigned: str | None
    excluded: list[str]
    due_seconds: float | None
    expires_seconds: float | None


class TaskClosing(TypedDict):
    """A human task whose time is over, or whose answer nobody waits for any more; it is closed with an item."""

    key: str
    close: Literal["expired", "cancelled"]


class AttemptNote(TypedDict):
    """How many attempts of a step failed, when the next one is due, what the last one reported.

    `next_seconds` None takes the note back: the step is over.
    """

    key: str
    no: int
    next_seconds: float | None
    error: str | None
    heartbeat: str | None


@dataclass(slots=True)
class Item:
    """What a worker has to say about one run; see `pgwf_sdk.advance`."""

    n: int
    lease_id: UUID
    expected_seq: int | None
    disposition: Disposition = "keep"
    until: datetime | None = None
    delay: timedelta | None = None
    need: str | None = None
    inbox_seen: int = 0
    wake_after: int = 1
    decides: bool = False
    note: str | None = None
    lapsed: bool = False
    entries: list[NewEntry] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    tasks: list[TaskOpening | TaskClosing] = field(default_factory=list)
    attempts: list[AttemptNote] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        """How much its entries and children weigh."""
        return sum(len(entry.payload or b"") for entry in self.entries) + sum(len(one.payload) for one in self.children)


class InboxRow(NamedTuple):
    """Something that came from outside and waits to be consumed. `name` is a signal's name or the key of a call."""

    id: int
    kind: Kind
    name: str
    phase: Phase
    payload: bytes | None
    encoding: int
    received_at: datetime


class Attempt(NamedTuple):
    """A step's failed attempts so far: how many, when the first failed, when to try again, what the last reported."""

    no: int
    first_at: datetime
    next_at: datetime
    heartbeat: str | None = None


class ItemAnswer(NamedTuple):
    """What became of one item; `inbox` has the rows that kept it from parking or deciding, `taken` the ids of children
    (of any item of the call) that exist already."""

    status: ItemStatus
    now_at: datetime
    inbox: list[InboxRow]
    taken: list[str]


class Claim(NamedTuple):
    """A leased run with all a worker needs to go on. `head` may be past the last of `history`: read the rest.

    `need` is its home need, `current_need` the one it was claimed by.
    """

    n: int
    run_id: str
    workflow: str
    need: str
    current_need: str
    build: str | None
    seed: int
    trace: str | None
    deadline: datetime | None
    lease_id: UUID
    lease_no: int
    streak: int
    head: int
    history: list[Entry]
    inbox: list[InboxRow]
    attempts: dict[str, Attempt]
    now_at: datetime


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def parameters(
    worker_id: str, items: Sequence[Item], *, capabilities: Sequence[str], slots: int, lease: timedelta
) -> dict[str, Any]:
    """The parameters of one call for `items`, which also claims up to `slots` runs."""
    entries = [(index, entry) for index, item in enumerate(items, 1) for entry in item.entries]
    children = [(index, child) for index, item in enumerate(items, 1) for child in item.children]
    consumed = [(index, row_id) for index, item in enumerate(items, 1) for row_id in item.consumed]
    tasks = [{"item": index, **task} for index, item in enumerate(items, 1) for task in item.tasks]
    attempts = [{"item": index, **note} for index, item in enumerate(items, 1) for note in item.attempts]
    return {
        "worker_id": worker_id,
        "n": [item.n for item in items],
        "lease_ids": [item.lease_id for item in items],
        "expected_seqs": [item.expected_seq for item in items],
        "dispositions": [item.disposition for item in items],
        "until": [item.until for item in items],
        "delay_seconds": [_seconds(item.delay) for item in items],
        "needs": [item.need for item in items],
        "inbox_seen": [item.inbox_seen for item in items],
        "wake_after": [item.wake_after for item in items],
        "decides": [item.decides for item in items],
        "notes": [item.note for item in items],
        "lapsed": [item.lapsed for item in items],
        "entry_items": [index for index, _ in entries],
        "entry_calls": [entry.call for _, entry in entries],
        "entry_kinds": [int(entry.kind) for _, entry in entries],
        "entry_phases": [int(entry.phase) for _, entry in entries],
        "entry_scopes": [entry.scope for _, entry in entries],
        "entry_names": [entry.name for _, entry in entries],
        "entry_occurrences": [entry.occurrence for _, entry in entries],
        "entry_payloads": [entry.payload for _, entry in entries],
        "entry_encodings": [entry.encoding for _, entry in entries],
        "entry_codes": [entry.code for _, entry in entries],
        "child_items": [index for index, _ in children],
        "child_keys": [child.key for _, child in children],
        "child_run_ids": [child.run_id for _, child in children],
        "child_workflows": [child.workflow for _, child in children],
        "child_needs": [child.need for _, child in children],
        "child_builds": [child.build for _, child in children],
        "child_inputs": [child.payload for _, child in children],
        "child_encodings": [child.encoding for _, child in children],
        "consumed_items": [index for index, _ in consumed],
        "consumed_ids": [row_id for _, row_id in consumed],
        "tasks": json.dumps(tasks),
        "attempts": json.dumps(attempts),
        "worker_caps": list(capabilities),
        "slots": slots,
        "lease_seconds": lease.total_seconds(),
    }


def answers(rows: Iterable[dict[str, Any]]) -> tuple[list[ItemAnswer], list[Claim]]:
    """The answers to the items, in their order, and the claimed runs."""
    settled: list[ItemAnswer] = []
    claimed: list[Claim] = []
    for row in rows:
        if row["status"] == "claimed":
            claimed.append(_claim(row))
        else:
            settled.append(ItemAnswer(row["status"], row["now_at"], inbox_rows(row["inbox"]), row["taken"] or []))
    return settled, claimed


def inbox_rows(rows: list[dict[str, Any]] | None) -> list[InboxRow]:
    """Inbox rows from the JSON form in which an answer carries them."""
    return [
        InboxRow(
            row["id"],
            Kind(row["kind"]),
            row["name"],
            Phase(row["phase"]),
            None if row["payload"] is None else base64.b64decode(row["payload"]),
            row["encoding"],
            datetime.fromisoformat(row["received_at"]),
        )
        for row in rows or ()
    ]


def _claim(row: dict[str, Any]) -> Claim:
    columns = (
        row["calls"],
        row["kinds"],
        row["phases"],
        row["scopes"],
        row["names"],
        row["occurrences"],
        row["payloads"],
        row["encodings"],
        row["times"],
    )
    history = [
        Entry(seq, call, Kind(kind), Phase(phase), scope, name, occurrence, payload, encoding, recorded_at)
        for seq, (call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at) in enumerate(
            zip(*columns, strict=True), 1
        )
    ]
    attempts = {
        note["key"]: Attempt(
            note["no"],
            datetime.fromisoformat(note["first_at"]),
            datetime.fromisoformat(note["next_at"]),
            note["heartbeat"],
        )
        for note in row["attempts"] or ()
    }
    return Claim(
        n=row["n"],
        run_id=row["run_id"],
        workflow=row["workflow"],
        need=row["need"],
        current_need=row["current_need"],
        build=row["build"],
        seed=row["seed"],
        trace=row["trace"],
        deadline=row["deadline"],
        lease_id=row["lease_id"],
        lease_no=row["lease_no"],
        streak=row["streak"],
        head=row["head"],
        history=history,
        inbox=inbox_rows(row["inbox"]),
        attempts=attempts,
        now_at=row["now_at"],
    )
