"""Rows for the calls of a run, read from its journal.

A journal says when a call got its outcome, not when a step began. A step begins when the call before it in
the same scope has its outcome, at the earliest when the lease that recorded it began; that is what the rows
show.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec import Struct

from pgwf_sdk._wording import count_words, duration_words
from pgwf_sdk.ops._failures import error_words
from pgwf_sdk.ops._rows import FINAL_STATUSES, Activation, Attempt, JournalEntry, RunSummary, TaskSummary
from pgwf_sdk.ops._timeline_rows import Look, RowState, Segment, TimelineRow

SEQ_MAX = 2**63 - 1
"""After every entry a journal can have."""

_CALL_KINDS = frozenset(
    {"step", "timer", "signal", "awakeable", "child", "attach", "human", "compensation", "select", "cancel", "hop"}
)
_LOOK_OF_KIND = MappingProxyType(
    {
        "timer": Look.SLEEP,
        "signal": Look.WAIT,
        "awakeable": Look.WAIT,
        "attach": Look.WAIT,
        "select": Look.WAIT,
        "child": Look.CHILD,
        "human": Look.HUMAN,
        "cancel": Look.CANCELLED,
        "hop": Look.QUEUED,
    }
)
_PREFIX_OF_KIND = MappingProxyType(
    {
        "timer": "",
        "signal": "signal ",
        "awakeable": "awakeable ",
        "child": "child ",
        "attach": "other run ",
        "human": "human ",
        "compensation": "at exit ",
        "select": "",
        "step": "",
        "cancel": "",
        "hop": "hop to ",
    }
)
_STATE_OF_PHASE = MappingProxyType(
    {
        "completed": RowState.COMPLETED,
        "failed": RowState.FAILED,
        "timed_out": RowState.TIMED_OUT,
        "cancelled": RowState.CANCELLED,
    }
)


class Facts(Struct, frozen=True, kw_only=True):
    """What is known about a run at one instant, `asked_at` by the database's clock."""

    run: RunSummary
    entries: Sequence[JournalEntry]
    activations: Sequence[Activation]
    children: Sequence[RunSummary]
    tasks: Sequence[TaskSummary]
    attempts: Sequence[Attempt]
    asked_at: datetime

    @property
    def started_at(self) -> datetime:
        """When the run was created."""
        return self.run.created_at

    @property
    def ended_at(self) -> datetime:
        """The end of the run, or the time of asking while it is alive."""
        return self.run.finished_at or self.asked_at


class Call(Struct, frozen=True, kw_only=True):
    """The entries of one call of a workflow: opened, resolved, or both."""

    key: str
    kind: str
    name: str
    scope: str
    occurrence: int
    ordinal: int
    opened: JournalEntry | None
    resolved: JournalEntry | None

    @property
    def first_seq(self) -> int:
        """The first entry that speaks of the call."""
        return min(entry.seq for entry in (self.opened, self.resolved) if entry)


def calls_of(entries: Sequence[JournalEntry]) -> list[Call]:
    """The calls that take time, in the order in which the journal first speaks of them."""
    entries_of_key: dict[str, list[JournalEntry]] = {}
    for entry in entries:
        if entry.kind in _CALL_KINDS:
            entries_of_key.setdefault(entry.key, []).append(entry)
    return [
        Call(
            key=key,
            kind=found[0].kind,
            name=found[0].name,
            scope=found[0].scope,
            occurrence=found[0].occurrence,
            ordinal=found[0].call,
            opened=next((entry for entry in found if entry.phase == "opened"), None),
            resolved=next((entry for entry in found if entry.is_resolving), None),
        )
        for key, found in entries_of_key.items()
    ]


def call_rows(facts: Facts) -> list[TimelineRow]:
    """One row per call in the order they were made, branches together below a row for their `parallel` or
    `map`.

    A step that has failed attempts and no outcome yet has a row too. One that runs for the first time is not recorded:
    a row without its name stands for it, if the run is with a worker and nothing else is open.
    """
    starts = _StartTimes(facts)
    tasks = {task.key: task for task in facts.tasks}
    children = {child.parent_key: child for child in facts.children}
    calls = calls_of(facts.entries)
    placed: list[tuple[_Place, TimelineRow]] = [
        (
            starts.place_of(call.scope, call.first_seq),
            _row_of_call(call, facts, starts, child=children.get(call.key), task=tasks.get(call.key)),
        )
        for call in calls
    ]
    resolved_keys = {call.key for call in calls}
    placed += [
        (starts.place_of(_step_of(attempt)[0], SEQ_MAX), _row_of_attempt(attempt, facts))
        for attempt in facts.attempts
        if attempt.key not in resolved_keys
    ]
    at_work = None if any(row.state is RowState.OPEN for _, row in placed) else _row_at_work(facts)
    placed += _group_rows(placed, starts)
    placed += [] if at_work is None else [((SEQ_MAX,), at_work)]
    return [row for _, row in sorted(placed, key=lambda item: item[0])]


def depth_of(scope: str) -> int:
    """How deep a scope lies: 1 for the workflow body, one more per enclosing branch."""
    return 1 + scope.count("/branch:")


def _row_of_call(
    call: Call, facts: Facts, starts: "_StartTimes", *, child: RunSummary | None, task: TaskSummary | None
) -> TimelineRow:
    start = starts.of(call)
    end = call.resolved.recorded_at if call.resolved else facts.ended_at
    state = _STATE_OF_PHASE[call.resolved.phase] if call.resolved else RowState.OPEN
    if call.kind in {"step", "compensation"}:
        cut_off = starts.cut_off(call)
        segments = (*cut_off, *(_step_segments(start, end, state) if call.resolved else _begun_segments(start, facts)))
        note = _outcome_words(state, end - start)
        note += ", cut off before" if cut_off else ""
    elif call.kind == "child":
        segments = _child_segments(start, end, state, child)
        note = _child_note(state, _worked(segments), child)
    elif call.kind == "human":
        segments = _human_segments(start, end, task)
        note = _human_note(state, end - start, task)
    elif call.kind == "hop":
        segments, note = _hopped(start, call, facts)
    else:
        segments = (Segment(start, end, _LOOK_OF_KIND[call.kind]),)
        note = _wait_note(call, state, end - start, facts)
    return TimelineRow(
        depth=depth_of(call.scope),
        group=_group_of(call.scope),
        kind=call.kind,
        name=call.name,
        title=_title(call),
        label=_label(call),
        state=state,
        segments=segments,
        note=note,
    )


def _title(call: Call) -> str:
    # What a compensation undoes is recorded before it begins; a step that `ctx.on_exit` planned undoes nothing.
    undoes = call.kind == "compensation" and call.opened is not None and call.opened.payload is not None
    prefix = "undo " if undoes else _PREFIX_OF_KIND[call.kind]
    return prefix + (call.name or {"timer": "sleep", "select": "wait"}.get(call.kind, call.kind))


def _label(call: Call) -> str:
    index = f"[{call.scope.rpartition('[')[2]} " if call.scope else ""
    number = f"#{call.occurrence}" if call.occurrence > 1 else ""
    return f"{index}{_title(call)}{number}"


def _step_segments(start: datetime, end: datetime, state: RowState) -> tuple[Segment, ...]:
    look = {RowState.COMPLETED: Look.RUN, RowState.CANCELLED: Look.CANCELLED}.get(state, Look.FAILED)
    return (Segment(start, end, look),)


def _begun_segments(start: datetime, facts: Facts) -> tuple[Segment, ...]:
    """A step that was recorded before it began and has no outcome yet: it runs while a worker holds the run, and those
    that lost their leases were cut off.
    """
    leases = [lease for lease in facts.activations if lease.ended_at is None or lease.ended_at >= start]
    segments = tuple(
        Segment(
            max(start, lease.started_at), lease.ended_at or facts.ended_at, Look.FAILED if lease.ended_at else Look.RUN
        )
        for lease in leases
    )
    return segments or (Segment(start, facts.ended_at, Look.QUEUED),)


def _child_segments(start: datetime, end: datetime, state: RowState, child: RunSummary | None) -> tuple[Segment, ...]:
    look = Look.FAILED if state is RowState.FAILED else Look.CHILD
    if child is None:
        return (Segment(start, end, look),)
    child_start = max(child.created_at, start)
    child_end = max(min(child.finished_at or end, end), child_start)
    taken = min(max(child.first_leased_at or child_start, child_start), child_end)
    worked = Segment(taken, child_end, look)
    return (worked,) if taken == child_start else (Segment(child_start, taken, Look.QUEUED), worked)


def _worked(segments: Sequence[Segment]) -> timedelta:
    """From when somebody had it to its end."""
    return segments[-1].end - segments[-1].start


def _human_segments(start: datetime, end: datetime, task: TaskSummary | None) -> tuple[Segment, ...]:
    is_held = task is not None and task.state in {"claimed", "decided"}
    return (Segment(start, end, Look.HUMAN if is_held else Look.WAIT),)


def _outcome_words(state: RowState, took: timedelta) -> str:
    words = duration_words(took.total_seconds())
    if state is RowState.COMPLETED:
        return words
    return f"since {words}" if state is RowState.OPEN else f"{state.value.replace('_', ' ')} after {words}"


def _child_note(state: RowState, took: timedelta, child: RunSummary | None) -> str:
    if state is RowState.OPEN and child is not None:
        return f"{child.status}, since {duration_words(took.total_seconds())}"
    return _outcome_words(state, took)


def _human_note(state: RowState, took: timedelta, task: TaskSummary | None) -> str:
    words = duration_words(took.total_seconds())
    if task is None or state in {RowState.TIMED_OUT, RowState.CANCELLED}:
        return _outcome_words(state, took)
    if task.decided_by is not None:
        return f"{task.decided_by} decided after {words}"
    if task.holder is None and task.escalated_at is not None:
        left = took - (task.escalated_at - task.created_at)
        return f"open to {task.need} since {duration_words(left.total_seconds())}"
    return f"{task.holder} has it, since {words}" if task.holder else f"nobody has it, since {words}"


def _hopped(start: datetime, call: Call, facts: Facts) -> tuple[tuple[Segment, ...], str]:
    """How long it took until a worker of the new home had the run; one that stayed where it was took no time."""
    lease_no = (call.resolved.lease_no if call.resolved else None) or 0
    later = [lease.started_at for lease in facts.activations if lease.lease_no > lease_no]
    is_on_its_way = not later and facts.run.status not in {"running", *FINAL_STATUSES}
    end = max(min(later), start) if later else facts.ended_at if is_on_its_way else start
    words = duration_words((end - start).total_seconds())
    note = f"taken after {words}" if later else f"since {words}" if is_on_its_way else ""
    return (Segment(start, end, Look.QUEUED),), note


def _wait_note(call: Call, state: RowState, took: timedelta, facts: Facts) -> str:
    if call.kind == "cancel":
        return "cancellation requested"
    if call.kind == "timer" and state is RowState.OPEN and facts.run.available_at is not None:
        left = (facts.run.available_at - facts.asked_at).total_seconds()
        if left > 0:
            return f"fires in {duration_words(left)}"
    return _outcome_words(state, took)


def _row_at_work(facts: Facts) -> TimelineRow | None:
    """What the worker that has the run executes now, of which nothing is recorded; None: no worker has it."""
    since = _at_work_since(facts)
    if since is None:
        return None
    took = duration_words((facts.ended_at - since).total_seconds())
    return TimelineRow(
        depth=1,
        kind="running",
        name="",
        title="running",
        label="running",
        state=RowState.OPEN,
        segments=(Segment(since, facts.ended_at, Look.RUN),),
        note=f"since {took}, not recorded yet",
    )


def _at_work_since(facts: Facts) -> datetime | None:
    """Since when the worker that has the run is at what it does now; None: no worker has it."""
    leases = [lease.started_at for lease in facts.activations if lease.ended_at is None]
    if facts.run.status != "running" or not leases:
        return None
    return max([leases[-1], *(entry.recorded_at for entry in facts.entries if entry.is_resolving)])


def _row_of_attempt(attempt: Attempt, facts: Facts) -> TimelineRow:
    scope, name = _step_of(attempt)
    segments, note = _tried(attempt, facts)
    return TimelineRow(
        depth=depth_of(scope),
        group=_group_of(scope),
        kind="step",
        name=name,
        title=name,
        label=name,
        state=RowState.OPEN,
        segments=segments,
        note=note,
    )


def _tried(attempt: Attempt, facts: Facts) -> tuple[tuple[Segment, ...], str]:
    """The attempts of a step that has no outcome yet. One without a failed attempt has only said that it is alive."""
    left = (attempt.next_at - facts.asked_at).total_seconds()
    since = _at_work_since(facts) if left <= 0 else None
    if not attempt.number:
        began = attempt.first_at if since is None else min(since, attempt.first_at)
        words = duration_words((facts.ended_at - began).total_seconds())
        look, note = (Look.QUEUED, "cut off, runs again") if since is None else (Look.RUN, f"since {words}")
        return (Segment(began, facts.ended_at, look),), note
    segments = [
        Segment(attempt.first_at, facts.ended_at, Look.QUEUED),
        Segment(attempt.first_at, attempt.first_at, Look.FAILED),
    ]
    then = f"next in {duration_words(left)}" if left > 0 else "next now"
    if since is not None:
        again = Segment(max(since, attempt.next_at), facts.ended_at, Look.RUN)
        segments.append(again)
        then = f"runs again since {duration_words(again.seconds)}"
    return tuple(segments), f"{count_words(attempt.number, 'failed attempt')}, {then}: {error_words(attempt.error)}"


def _step_of(attempt: Attempt) -> tuple[str, str]:
    """Scope and name of the step that an attempt belongs to."""
    scope, _, call = attempt.key.rpartition("/step:")
    return scope, call.rpartition("#")[0]


def _group_rows(
    placed: Sequence[tuple["_Place", TimelineRow]], starts: "_StartTimes"
) -> list[tuple["_Place", TimelineRow]]:
    """A row above the branches of each `parallel` or `map`."""
    members: dict[str, list[tuple[_Place, TimelineRow]]] = {}
    for place, row in placed:
        if row.group:
            members.setdefault(row.group, []).append((place, row))
    rows: list[tuple[_Place, TimelineRow]] = []
    for group, found in members.items():
        outer, _, call = group.rpartition("/branch:")
        depth = depth_of(outer)
        segments = [segment for _, row in found for segment in row.segments]
        branches = {place[: 2 * depth] for place, _ in found}
        is_open = any(row.state is RowState.OPEN for _, row in found)
        span = Segment(min(s.start for s in segments), max(s.end for s in segments), Look.SPAN)
        row = TimelineRow(
            depth=depth,
            group=_group_of(outer),
            kind="branch",
            name=call,
            title=call,
            label=call.removesuffix("#1"),
            state=RowState.OPEN if is_open else RowState.COMPLETED,
            segments=(span,),
            note=f"{count_words(len(branches), 'branch')}, {duration_words(span.seconds)}",
        )
        rows.append((found[0][0][: 2 * depth - 1], row))
    return rows


_Place = tuple[int, ...]
"""Where a row stands: for each enclosing group its first entry and the branch, then the row's own first
entry.
"""


class _StartTimes:
    """When a call can have begun at the earliest, from what the journal says about the calls before it."""

    def __init__(self, facts: Facts) -> None:
        self._run_start = facts.started_at
        self._lost = [activation for activation in facts.activations if activation.ended_by == "lease_lapsed"]
        self._lease_starts = {a.lease_no: a.started_at for a in facts.activations}
        self._resolved: dict[str, list[JournalEntry]] = {}
        self._first_seq_below: dict[str, int] = {}
        for entry in facts.entries:
            if entry.is_resolving:
                self._resolved.setdefault(entry.scope, []).append(entry)
            for scope in _scopes_around(entry.scope):
                self._first_seq_below.setdefault(_group_of(scope), entry.seq)

    def of(self, call: Call) -> datetime:
        if call.opened is not None:
            return call.opened.recorded_at
        resolved = call.resolved
        if resolved is None:
            raise ValueError(f"call {call.key} has no entry, so it has no start")
        start = self._before(call.scope, resolved.seq, ordinal=call.ordinal)
        if call.kind in {"cancel", "hop"}:
            return resolved.recorded_at
        if call.kind not in {"step", "compensation"}:
            return start
        lease_start = self._lease_starts.get(resolved.lease_no) if resolved.lease_no is not None else None
        return min(max(start, lease_start or start), resolved.recorded_at)

    def cut_off(self, call: Call) -> tuple[Segment, ...]:
        """When workers that lost their leases can have been at a step that another one has recorded."""
        if call.resolved is None or not self._lost:
            return ()
        seq, lease_no = call.resolved.seq, call.resolved.lease_no or 0
        in_branches = [
            found[bisect_left(found, seq, key=lambda entry: entry.seq) - 1].recorded_at
            for scope, found in self._resolved.items()
            if scope.startswith(f"{call.scope}/") and found[0].seq < seq
        ]
        start = max([self._before(call.scope, seq, ordinal=call.ordinal), *in_branches])
        return tuple(
            Segment(max(start, lost.started_at), lost.ended_at, Look.FAILED)
            for lost in self._lost
            if lost.lease_no < lease_no and lost.ended_at is not None and lost.ended_at > start
        )

    def place_of(self, scope: str, seq: int) -> _Place:
        """Where a call with this first entry stands among the rows."""
        place: list[int] = []
        for branch_scope in _scopes_around(scope):
            index = branch_scope.rpartition("[")[2].removesuffix("]")
            place += [self._first_seq_below.get(_group_of(branch_scope), SEQ_MAX), int(index)]
        return (*place, seq)

    def _before(self, scope: str, seq: int, *, ordinal: int) -> datetime:
        resolved = self._resolved.get(scope, [])
        for position in reversed(range(bisect_left(resolved, seq, key=lambda entry: entry.seq))):
            if resolved[position].call < ordinal:
                return resolved[position].recorded_at
        return self._scope_start(scope)

    def _scope_start(self, scope: str) -> datetime:
        """When the branches of the enclosing call began: after what the outer scope had seen before their
        first entry.
        """
        if not scope:
            return self._run_start
        outer = scope.rpartition("/branch:")[0]
        first_seq = self._first_seq_below.get(_group_of(scope))
        resolved = self._resolved.get(outer, [])
        position = bisect_left(resolved, first_seq or 0, key=lambda entry: entry.seq)
        return resolved[position - 1].recorded_at if position else self._scope_start(outer)


def _group_of(scope: str) -> str:
    """The `parallel` or `map` call a branch belongs to: its scope without the index."""
    return scope.rpartition("[")[0]


def _scopes_around(scope: str) -> list[str]:
    """The branch scopes a scope lies in, outermost first, itself included."""
    scopes: list[str] = []
    while scope:
        scopes.append(scope)
        scope = scope.rpartition("/branch:")[0]
    return scopes[::-1]
