"""What the query layer answers with: frozen values, times in UTC, payloads as the exact text that was
recorded.
"""

from datetime import datetime

from msgspec import Struct

FINAL_STATUSES = frozenset({"completed", "failed", "cancelled", "terminated", "continued"})
"""A run with one of these statuses is over: nothing changes it again."""

STATUSES = ("ready", "running", "waiting", "paused", "blocked", "crash_concern", *sorted(FINAL_STATUSES))
"""Every status a run can have, the living ones first."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """One run as lists show it. `need` is its home, `current_need` what it requires next.

    `parent_key` is the journal key of the call in the parent that started it. `first_leased_at` is known only of
    children, and only where the trace is on.

    The run before this one in its chain is `retry_of_run_id` or `continues_run_id`, that after it `successor_run_id`;
    lists do not tell.

    `available_at` is None for a run that waits without a deadline. `lapses` counts leases that ended without
    being given back, `streak` those since the journal last grew, `attempts` the failed attempts of steps
    still open.
    """

    run_id: str
    n: int
    workflow: str
    need: str
    current_need: str | None
    status: str
    build: str | None
    parent_run_id: str | None
    parent_key: str | None = None
    root_run_id: str | None
    priority: int
    entry_count: int
    worker_id: str | None
    lease_until: datetime | None
    available_at: datetime | None
    deadline: datetime | None
    created_at: datetime
    finished_at: datetime | None
    lapses: int
    streak: int
    attempts: int
    first_leased_at: datetime | None = None
    attributes: dict[str, str | bool | int | float] = {}
    singleton_key: str | None = None
    successor_run_id: str | None = None
    retry_of_run_id: str | None = None
    continues_run_id: str | None = None

    @property
    def is_final(self) -> bool:
        """True when nothing changes the run again."""
        return self.status in FINAL_STATUSES


class ForkPrice(Struct, frozen=True, kw_only=True):
    """What a fork before entry `before_seq` would take over, and do again if its code goes the same way.

    `entry_count` and `payload_bytes` are copied. `steps_again` are the keys of recorded steps that run again;
    `calls_again` of other calls that are made anew: timers, waits, awakeables, tasks and children, the last three with
    new ids; `results_kept` of awakeables, tasks and children whose results are taken over. At most 1,000 keys each; the
    counts are complete.
    """

    run_id: str
    before_seq: int
    entry_count: int
    payload_bytes: int
    steps_again: tuple[str, ...]
    steps_again_count: int
    calls_again: tuple[str, ...]
    calls_again_count: int
    results_kept: tuple[str, ...]
    results_kept_count: int


class RunPage(Struct, frozen=True, kw_only=True):
    """Some runs, newest first, and where the next page starts (None: this was the last one)."""

    runs: tuple[RunSummary, ...]
    next_before: int | None


class JournalEntry(Struct, frozen=True, kw_only=True):
    """One line of a run's journal. `payload` is the JSON text as recorded, None when the entry carries none."""

    seq: int
    key: str
    kind: str
    phase: str
    scope: str
    name: str
    occurrence: int
    call: int
    payload: str | None
    encoding: int
    recorded_at: datetime
    lease_no: int | None
    code_file: str | None
    code_line: int | None

    @property
    def is_resolving(self) -> bool:
        """True when the entry gives its call an outcome."""
        return self.phase in {"completed", "failed", "timed_out", "cancelled"}


class Ending(Struct, frozen=True, kw_only=True):
    """How far a run is. `payload` is the JSON text of its result, or of its error, once it is over."""

    run_id: str
    status: str
    payload: str | None
    encoding: int
    finished_at: datetime | None


class OpenCall(Struct, frozen=True, kw_only=True):
    """A call the journal opened and nothing has resolved yet: a timer, a wait, a child, a human task.

    `ends_at` is when a timer fires, or when a wait times out (None: never). `run_id` is that of the run a call is
    attached to.
    """

    seq: int
    key: str
    kind: str
    name: str
    recorded_at: datetime
    ends_at: datetime | None = None
    run_id: str | None = None


class Activation(Struct, frozen=True, kw_only=True):
    """One lease's execution of a run.

    `worker_id` is None when the trace was off and the lease is over; `started_at` is then the first entry written under
    the lease. `ended_at` is None while the lease is held. `ended_by` is the traced event that ended it: `lease_lapsed`
    for a worker that was lost, otherwise the call that gave it back, such as `reschedule_job`; None when not known.
    """

    lease_no: int
    worker_id: str | None
    started_at: datetime
    ended_at: datetime | None
    ended_by: str | None


class Attempt(Struct, frozen=True, kw_only=True):
    """The failed attempts of a step that is still open: how many, since when, and when the next one may start.

    `error` is the JSON of the last failure, as `failure_of` reads it.
    """

    key: str
    number: int
    first_at: datetime
    next_at: datetime
    error: str | None


class TaskSummary(Struct, frozen=True, kw_only=True):
    """A question to a person. `subject`, `decision_schema` (a JSON Schema), `prefill` (a proposed decision) and
    `decision` are JSON text as recorded.

    Only `assigned` may decide it, if given; those in `excluded` may not. A claim that has run out counts as none:
    `state` is then `open` and `holder` None. `need` is that of now: a task that is due and that nobody holds is handed
    on, from `first_need` to `escalate_need` (None: to nobody), at `escalated_at`. `is_overdue` is decided by the
    database's clock: nobody has decided it, and it was due.
    """

    task_id: str
    run_id: str
    key: str
    name: str
    title: str | None
    need: str
    first_need: str
    escalate_need: str | None
    escalated_at: datetime | None
    subject: str | None
    decision_schema: str | None
    prefill: str | None
    assigned: str | None
    excluded: tuple[str, ...]
    state: str
    holder: str | None
    claim_until: datetime | None
    due_at: datetime | None
    is_overdue: bool = False
    expires_at: datetime | None
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    created_at: datetime


class NeedSummary(Struct, frozen=True, kw_only=True):
    """What is asked for under one need, and how many live workers offer it.

    `ready` is counted up to `COUNT_MAX` only. `oldest_ready_at` is None when nothing is ready. `max_active` and `rate`
    (per second) are its limits, None where there is none.
    """

    need: str
    ready: int
    running: int
    workers: int
    oldest_ready_at: datetime | None
    is_paused: bool
    max_active: int | None
    rate: float | None


class KeySummary(Struct, frozen=True, kw_only=True):
    """A singleton key: how many runs and other jobs of it are leased, and how many found it without room.

    `waiting` is counted up to `COUNT_MAX` only. `max_active` and `rate` (per second) are its limits; None: one at a
    time, and no rate.
    """

    singleton_key: str
    running: int
    waiting: int
    max_active: int | None
    rate: float | None


class WorkerSummary(Struct, frozen=True, kw_only=True):
    """A worker as its heartbeat describes it. `is_live` is decided by the database's clock.

    `slots` is how many runs it works on at once, None when it did not say.
    """

    worker_id: str
    capabilities: tuple[str, ...]
    build: str | None
    started_at: datetime | None
    last_seen_at: datetime | None
    draining: bool
    is_live: bool
    leases: int
    slots: int | None
