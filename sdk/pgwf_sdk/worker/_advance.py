"""The hot call as values: items become its parameters, its rows become answers. No I/O.

`pgwf_sdk.advance` takes parallel arrays; an `Item` is one element of each. What an item's dispositions and the answers'
statuses mean stands at the SQL function.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import astuple

from pgwf_journal import Entry, Kind, NewEntry, Phase
from pgwf_sql.database import (
    PackedArray,
    bigints,
    booleans,
    byteas,
    floats,
    instants,
    integers,
    smallints,
    texts,
    uuids,
)

Disposition = Literal["keep", "park", "hop", "release", "complete", "fail", "cancel", "continue", "block"]
ItemStatus = Literal[
    "ok", "unread", "undecided", "fenced", "conflict", "child_exists", "no_run", "cycle", "busy", "unknown"
]
"""What `advance` says of an item; or "unknown", when after a conflict the journal does not tell what it came of."""


_TELLING = frozenset((Kind.RUN, Kind.AWAKEABLE, Kind.ATTRIBUTE, Kind.CANCEL, Kind.COMPENSATION, Kind.HOP))
"""Entries that change the run's row as well, or are written where they can be looked for."""

_PLAIN: frozenset[Disposition] = frozenset({"keep", "complete", "fail", "cancel"})


class ChildStart(NamedTuple):
    """A child run to start with an item; `key` is the call of the parent that waits for it."""

    key: str
    run_id: str
    workflow: str
    need: str
    build: str | None
    payload: bytes
    encoding: int
    close: str | None = None


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
    escalate: str | None
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


class Attaching(TypedDict):
    """A call that is to be told of the end of a run; `run_id` None: that nobody waits for any more."""

    key: str
    run_id: str | None


class Item(Struct):
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
    told: int = 0
    entries: list[NewEntry] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    tasks: list[TaskOpening | TaskClosing] = field(default_factory=list)
    attempts: list[AttemptNote] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    attaches: list[Attaching] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """True when it goes without what `pgwf_sdk.advance` takes from the short arrays."""
        is_usual = not (self.decides or self.lapsed or self.told)
        return self.disposition in _PLAIN and is_usual and not (self.tasks or self.attaches)

    @property
    def is_one_entry(self) -> bool:
        """True when all it says is one entry, for which there is a shorter call: `pgwf_sdk.append`."""
        if len(self.entries) != 1 or self.disposition != "keep" or self.entries[0].kind in _TELLING:
            return False
        return self.is_plain and not (self.children or self.consumed or self.attempts or self.cancels)

    @property
    def payload_bytes(self) -> int:
        """How much its entries, children and tasks weigh."""
        weight = 0
        for entry in self.entries:
            if entry.payload is not None:
                weight += len(entry.payload)
        if self.children or self.tasks:
            weight += sum(opened_bytes(self.children, self.tasks).values())
        return weight


def opened_bytes(children: Sequence[ChildStart], tasks: Sequence[TaskOpening | TaskClosing]) -> dict[str, int]:
    """How much what is opened weighs, by the key of its call."""
    weights = {child.key: len(child.payload) for child in children}
    return weights | {task["key"]: len(task["subject"]) for task in tasks if "close" not in task}


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


class ItemAnswer(Struct, frozen=True):
    """What became of one item; `inbox` has the rows that kept it from parking or deciding, `taken` the ids of children
    (of any item of the call) that exist already, or the keys of calls that cannot attach. `entries` are those that an
    earlier try of it has left in the journal."""

    status: ItemStatus
    now_at: datetime
    inbox: list[InboxRow]
    taken: list[str]
    entries: list[Entry] | None = None


class Claim(Struct, frozen=True):
    """A leased run with all a worker needs to go on. `head` may be past the last of `history`: read the rest.

    From `run_id` to `head` in the order of the answer's columns.

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


def claim_parameters(
    worker_id: str, *, capabilities: Sequence[str], slots: int, lease: timedelta, position: Sequence[int] | None
) -> dict[str, Any]:
    """The parameters of a call that claims up to `slots` runs, looking from `position` on."""
    return {
        "worker_id": worker_id,
        "worker_caps": texts(capabilities),
        "slots": slots,
        "lease_seconds": lease.total_seconds(),
        "position": None if position is None else bigints(position),
    }


def parameters(
    worker_id: str,
    items: Sequence[Item],
    *,
    capabilities: Sequence[str],
    slots: int,
    lease: timedelta,
    position: Sequence[int] | None = None,
    busy_ok: bool = False,
) -> dict[str, Any]:
    """The parameters of a call for `items`, which also claims."""
    return {
        **claim_parameters(worker_id, capabilities=capabilities, slots=slots, lease=lease, position=position),
        "n": bigints([item.n for item in items]),
        "lease_ids": uuids([item.lease_id for item in items]),
        "expected_seqs": bigints([item.expected_seq for item in items]),
        "dispositions": texts([item.disposition for item in items]),
        **_details(items),
        "entry_items": integers([index for index, item in enumerate(items, 1) for _ in item.entries]),
        **_entries([entry for item in items for entry in item.entries]),
        **_children([(index, child) for index, item in enumerate(items, 1) for child in item.children]),
        "consumed_items": integers([index for index, item in enumerate(items, 1) for _ in item.consumed]),
        "consumed_ids": bigints([row_id for item in items for row_id in item.consumed]),
        "tasks": json.dumps([{"item": index, **task} for index, item in enumerate(items, 1) for task in item.tasks]),
        "attempts": json.dumps(
            [{"item": index, **note} for index, item in enumerate(items, 1) for note in item.attempts]
        ),
        "child_closes": texts([child.close for item in items for child in item.children]),
        "cancels": json.dumps(
            [{"item": index, "key": key} for index, item in enumerate(items, 1) for key in item.cancels]
        ),
        "attaches": json.dumps(
            [{"item": index, **one} for index, item in enumerate(items, 1) for one in item.attaches]
        ),
        "busy_ok": busy_ok,
    }


def entry_parameters(item: Item) -> dict[str, Any]:
    """The parameters of the shorter call, for an item that `is_one_entry`."""
    (entry,) = item.entries
    return {
        "n": item.n,
        "lease_id": item.lease_id,
        "expected_seq": item.expected_seq,
        "call": entry.call,
        "kind": int(entry.kind),
        "phase": int(entry.phase),
        "scope": entry.scope,
        "name": entry.name,
        "occurrence": entry.occurrence,
        "payload": entry.payload,
        "encoding": entry.encoding,
        "code": entry.code,
    }


def _details(items: Sequence[Item]) -> dict[str, PackedArray]:
    """What matters only to items that do more than append; a short array has the usual values."""
    count = len(items)
    while count and items[count - 1].is_plain:
        count -= 1
    items = items[:count]
    return {
        "until": instants([item.until for item in items]),
        "delay_seconds": floats([None if item.delay is None else item.delay.total_seconds() for item in items]),
        "needs": texts([item.need for item in items]),
        "inbox_seen": bigints([item.inbox_seen for item in items]),
        "wake_after": integers([item.wake_after for item in items]),
        "decides": booleans([item.decides for item in items]),
        "notes": texts([item.note for item in items]),
        "lapsed": booleans([item.lapsed for item in items]),
        "told": integers([item.told for item in items]),
    }


def _entries(entries: Sequence[NewEntry]) -> dict[str, PackedArray]:
    columns = zip(*[astuple(entry) for entry in entries], strict=True)
    calls, kinds, phases, scopes, names, occurrences, payloads, encodings, codes = columns if entries else _NO_COLUMNS
    return {
        "entry_calls": integers(calls),
        "entry_kinds": smallints(kinds),
        "entry_phases": smallints(phases),
        "entry_scopes": texts(scopes),
        "entry_names": texts(names),
        "entry_occurrences": integers(occurrences),
        "entry_payloads": byteas(payloads),
        "entry_encodings": smallints(encodings),
        "entry_codes": integers(codes),
    }


def _children(children: Sequence[tuple[int, ChildStart]]) -> dict[str, PackedArray]:
    return {
        "child_items": integers([index for index, _ in children]),
        "child_keys": texts([child.key for _, child in children]),
        "child_run_ids": texts([child.run_id for _, child in children]),
        "child_workflows": texts([child.workflow for _, child in children]),
        "child_needs": texts([child.need for _, child in children]),
        "child_builds": texts([child.build for _, child in children]),
        "child_inputs": byteas([child.payload for _, child in children]),
        "child_encodings": smallints([child.encoding for _, child in children]),
    }


def answers(rows: Iterable[tuple[Any, ...]]) -> tuple[list[ItemAnswer], list[Claim]]:
    """The answers to the items, in their order, and the claimed runs. A row has the columns of `pgwf_sdk.advance`."""
    settled: list[ItemAnswer] = []
    claimed: list[Claim] = []
    for row in rows:
        status, now_at, inbox, taken = row[2], row[3], row[25], row[27]
        if status == "claimed":
            claimed.append(_claim(row))
        elif row[0] is not None:
            settled.append(ItemAnswer(status, now_at, inbox_rows(inbox) if inbox else [], taken or []))
    return settled, claimed


def now_of(row: tuple[Any, ...]) -> datetime:
    """The database's time, which each row of an answer has."""
    now_at: datetime = row[3]
    return now_at


def inbox_rows(rows: list[dict[str, Any]]) -> list[InboxRow]:
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
        for row in rows
    ]


def _claim(row: tuple[Any, ...]) -> Claim:
    _, n, _, now_at, *facts = row[:16]
    *columns, inbox, attempts, _, _ = row[16:]
    history = [
        Entry(seq, call, _KINDS[kind], _PHASES[phase], scope, name, occurrence, payload, encoding, recorded_at)
        for seq, (call, kind, phase, scope, name, occurrence, payload, encoding, recorded_at) in enumerate(
            zip(*columns, strict=True), 1
        )
    ]
    gathered = history, inbox_rows(inbox) if inbox else [], _attempts(attempts) if attempts else {}
    values: tuple[Any, ...] = (n, *facts, *gathered, now_at)
    return Claim(*values)


def _attempts(notes: list[dict[str, Any]]) -> dict[str, Attempt]:
    return {
        note["key"]: Attempt(
            note["no"],
            datetime.fromisoformat(note["first_at"]),
            datetime.fromisoformat(note["next_at"]),
            note["heartbeat"],
        )
        for note in notes
    }


_NO_COLUMNS: list[tuple[Any, ...]] = [()] * len(NewEntry.__struct_fields__)
_KINDS = {int(kind): kind for kind in Kind}  # Looked up in a third of the time a call of the enum takes.
_PHASES = {int(phase): phase for phase in Phase}
