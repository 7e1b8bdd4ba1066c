"""A worker moved by hand: it claims runs and says, with the statements real workers send, what becomes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString, cast
from uuid import UUID

from pgwf_journal import Kind, NewEntry, Phase
from pgwf_sdk.worker._advance import (
    ChildStart,
    Claim,
    InboxRow,
    Item,
    ItemAnswer,
    answers,
    parameters,
)
from pgwf_sql import query

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from pgwf_sdk.worker._advance import Disposition

LEASE = timedelta(minutes=1)
INPUT = b'{"args":[],"kwargs":{}}'
ADVANCE = query("sdk_advance")
STATUS_COLUMN = 2  # of the rows of `advance`, for sessions that return tuples

__all__ = ["ADVANCE", "INPUT", "LEASE", "ChildStart", "Hand", "Held", "InboxRow", "Item", "Kind", "Phase"]


@dataclass(slots=True)
class Held:
    """A leased run and how far its journal goes, as its holder knows it."""

    n: int
    lease_id: UUID
    head: int
    run_id: str
    claim: Claim

    def item(self, disposition: Disposition, *entries: NewEntry, **options: Any) -> Item:
        """What to say about the run; `options` are fields of `Item`."""
        return Item(
            **{
                "n": self.n,
                "lease_id": self.lease_id,
                "expected_seq": self.head,
                "disposition": disposition,
                "entries": list(entries),
                **options,
            }
        )

    def end(self, disposition: Disposition = "complete", payload: bytes | None = b"42", **options: Any) -> Item:
        """The run ends with `payload`."""
        phase = {"complete": Phase.COMPLETED, "fail": Phase.FAILED, "cancel": Phase.CANCELLED}[disposition]
        encoding = 0 if payload is None else 1
        last = NewEntry(0, Kind.RUN, phase, "", self.claim.workflow, 1, payload, encoding)
        return self.item(disposition, *options.pop("entries", ()), last, **options)


class Hand:
    """A worker moved by hand, on a connection of its own."""

    def __init__(self, conn: psycopg.Connection[Any], worker_id: str, capabilities: Sequence[str]) -> None:
        self._conn = conn
        self.worker_id = worker_id
        self.capabilities = list(capabilities)
        self._held: dict[int, Held] = {}

    def call(
        self, *items: Item, slots: int = 0, lease: timedelta = LEASE, busy_ok: bool = False
    ) -> tuple[list[ItemAnswer], list[Held]]:
        """Say `items` and claim up to `slots` runs in one call."""
        with self._conn.cursor() as cursor:
            cursor.execute(ADVANCE, self.parameters(*items, slots=slots, lease=lease, busy_ok=busy_ok))
            settled, claims = answers(cursor.fetchall())
        for item, answer in zip(items, settled, strict=True):
            if answer.status in ("ok", "unread") and item.n in self._held:
                self._held[item.n].head += len(item.entries)
        held = [Held(claim.n, claim.lease_id, claim.head, claim.run_id, claim) for claim in claims]
        self._held.update((one.n, one) for one in held)
        return settled, held

    def parameters(
        self, *items: Item, slots: int = 0, lease: timedelta = LEASE, busy_ok: bool = False
    ) -> dict[str, Any]:
        """The parameters of `ADVANCE` for a call that another session is to make."""
        return parameters(
            self.worker_id, items, capabilities=self.capabilities, slots=slots, lease=lease, busy_ok=busy_ok
        )

    def say(self, *items: Item) -> list[str]:
        """Say `items`; the status of each."""
        return [answer.status for answer in self.call(*items)[0]]

    def answer(self, item: Item) -> ItemAnswer:
        """Say one item; its answer."""
        (answer,) = self.call(item)[0]
        return answer

    def claim(self, slots: int, lease: timedelta = LEASE) -> list[Held]:
        """Claim up to `slots` runs."""
        return self.call(slots=slots, lease=lease)[1]

    def take(self, lease: timedelta = LEASE) -> Held:
        """Claim the one run that is next."""
        (held,) = self.claim(1, lease)
        return held


def entry(
    name: str = "charge",
    call: int = 1,
    *,
    kind: Kind = Kind.STEP,
    phase: Phase = Phase.COMPLETED,
    scope: str = "",
    occurrence: int = 1,
    payload: bytes | None = b"1",
) -> NewEntry:
    """An entry to append; a completed step unless told otherwise."""
    return NewEntry(call, kind, phase, scope, name, occurrence, payload, 0 if payload is None else 1)


def child(run_id: str, key: str = "/child:ship#1", *, workflow: str = "ship", need: str = "python") -> ChildStart:
    """A child run to start."""
    return ChildStart(key, run_id, workflow, need, None, INPUT, 1)


def task(task_id: str, key: str = "/human:review#1", **options: Any) -> Any:
    """A human task to open."""
    return {
        "key": key,
        "task_id": task_id,
        "name": "review",
        "title": None,
        "need": "human.review",
        "subject": '{"total": 12}',
        "encoding": 1,
        "decision_schema": {"type": "boolean"},
        "prefill": None,
        "assigned": None,
        "excluded": [],
        "due_seconds": None,
        "expires_seconds": None,
        **options,
    }


def start(
    conn: psycopg.Connection[Any],
    run_id: str = "order-1",
    *,
    workflow: str = "checkout",
    need: str = "python",
    input_: bytes | None = INPUT,
    priority: int | None = 3,
    start_at: datetime | None = None,
    deadline: datetime | None = None,
    trace: str | None = None,
    started_by: str | None = None,
    attributes: dict[str, Any] | None = None,
    singleton_key: str | None = None,
) -> tuple[int, str, bool]:
    """Start a run: its number, its id, whether it is new."""
    row = conn.execute(
        query("sdk_start_run").encode(),
        {
            "run_id": run_id,
            "workflow": workflow,
            "need": need,
            "input": input_,
            "encoding": 1,
            "priority": priority,
            "start_at": start_at,
            "deadline": deadline,
            "build": None,
            "trace": trace,
            "started_by": started_by,
            "attributes": None if attributes is None else json.dumps(attributes),
            "singleton_key": singleton_key,
        },
    ).fetchone()
    assert row is not None
    return cast("tuple[int, str, bool]", row)


def begin(conn: psycopg.Connection[Any], run_id: str = "order-1", *, need: str = "python") -> None:
    """Start a run that is ready to go on after its first step."""
    start(conn, run_id, need=need)
    hand = Hand(conn, "beginner", [need])
    assert hand.say(hand.take().item("release", entry())) == ["ok"]


def rows(conn: psycopg.Connection[Any], statement: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    return conn.execute(statement, values).fetchall()


def value(conn: psycopg.Connection[Any], statement: LiteralString, *values: Any) -> Any:
    """The one value of a statement."""
    row = conn.execute(statement, values).fetchone()
    assert row is not None, statement
    return row[0]


def status(conn: psycopg.Connection[Any], run_id: str = "order-1") -> str:
    """The status of a run."""
    return str(value(conn, "select status from pgwf_sdk.runs where run_id = %s", run_id))


def journal(conn: psycopg.Connection[Any], run_id: str = "order-1") -> list[tuple[int, str, str]]:
    """Number, key and phase of the entries of a run."""
    return rows(conn, "select seq, key, phase from pgwf_journal.entries where journal_id = %s order by seq", run_id)


def inbox(conn: psycopg.Connection[Any], run_id: str = "order-1") -> list[tuple[str, str, str]]:
    """Kind, name and phase of what a run has not consumed."""
    return rows(
        conn,
        """
        select k.label, i.name, f.label
        from pgwf_sdk.inbox i
        join pgwf_sdk.run r on r.n = i.n
        join pgwf_journal.kind k on k.kind = i.kind
        join pgwf_journal.phase f on f.phase = i.phase
        where r.run_id = %s
        order by i.id
        """,
        run_id,
    )


def signal(
    conn: psycopg.Connection[Any],
    name: str = "delivered",
    run_id: str = "order-1",
    *,
    payload: bytes | None = b"1",
    dedup_id: str | None = None,
) -> bool:
    """Send a signal; False when it was sent before."""
    return bool(value(conn, "select pgwf_sdk.signal_run(%s, %s, %s::bytea, 1, %s)", run_id, name, payload, dedup_id))
