"""Why a run is not running: a sentence or two that say what it waits for, since when, and what can be done."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec import Struct

from pgwf_sdk._wording import count_words, duration_words, shell_word
from pgwf_sdk.ops._failures import error_words
from pgwf_sdk.ops._rows import Attempt, OpenCall, RunSummary, TaskSummary

COUNT_MAX = 1001
"""Counts stop here: whether there are a thousand or a million more changes nothing."""

_SOON = timedelta(seconds=1)

NAMED_CALLS_MAX = 3
"""More waits than this are counted, not named."""


class Circumstances(Struct, frozen=True, kw_only=True):
    """What surrounds a run at the moment of asking."""

    asked_at: datetime
    note: str | None
    successor: str | None
    last_error: str | None
    cancel_at: datetime | None
    cancel_by: str | None
    cancel_reason: str | None
    grace_until: datetime | None
    blocked_report: str | None
    live_workers: int
    last_worker_seen_at: datetime | None
    is_need_paused: bool
    max_active: int | None
    rate: float | None
    active: int
    key_active: int
    key_max_active: int
    key_token_at: datetime | None
    ready_with_same_need: int


class ChildOutlook(Struct, frozen=True, kw_only=True):
    """A child run that is waited for, and how many live workers offer what it needs next (None: it needs none now)."""

    run: RunSummary
    live_workers: int | None


class Situation(Struct, frozen=True, kw_only=True):
    """A run with everything that can keep it from running; `open_calls` and `open_tasks` have no outcome yet.

    `children` has the child runs of the first open calls, by the key of the call; `attempts` those of steps that are to
    be tried again.
    """

    run: RunSummary
    around: Circumstances
    open_calls: Sequence[OpenCall]
    open_tasks: Sequence[TaskSummary]
    children: Mapping[str, ChildOutlook] = MappingProxyType({})
    attempts: Sequence[Attempt] = ()
    error: str | None = None

    def since(self, instant: datetime) -> str:
        """How long ago `instant` was."""
        return duration_words(max((self.around.asked_at - instant).total_seconds(), 0.0))

    def until(self, instant: datetime) -> str:
        """How far ahead `instant` is."""
        return duration_words(max((instant - self.around.asked_at).total_seconds(), 0.0))


def why_sentence(situation: Situation) -> str:
    """Why the run is where it is, and the next step where somebody has to take one: one line of prose, and below it
    the report on a blocked run.
    """
    run, around = situation.run, situation.around
    if run.is_final:
        return _prose(_final(situation))
    sentence = _SENTENCES[run.status](situation)
    if around.cancel_at is not None:
        by = f" by {around.cancel_by}" if around.cancel_by else ""
        why = f": {around.cancel_reason}" if around.cancel_reason else ""
        sentence += f" Its cancellation was requested{by} {situation.since(around.cancel_at)} ago{why}."
        if around.grace_until is not None:
            sentence += f" It may clean up for another {situation.until(around.grace_until)}; then it is terminated."
        sentence += _deafness(situation)
    given_back = around.last_error or (around.note if run.status in {"waiting", "ready"} else None)
    if given_back:
        sentence += f" The last worker gave it back with: {given_back}."
    report = around.blocked_report if run.status == "blocked" else None
    return f"{_prose(sentence)}\n\n{report.strip()}" if report else _prose(sentence)


def _prose(sentence: str) -> str:
    """In one line: notes and errors are others' text, and a line of theirs must not pass for one of the report."""
    return " ".join(sentence.splitlines())


def _deafness(situation: Situation) -> str:
    """What keeps a run from hearing that it is to stop, and what stops it all the same."""
    run, around = situation.run, situation.around
    if run.status in {"paused", "blocked", "crash_concern"}:
        return f" It hears of that when it goes on; `pgwf terminate {shell_word(run.run_id)}` ends it at once."
    if run.status == "running" or (around.live_workers and not around.note):
        return ""
    end = f"`pgwf terminate {shell_word(run.run_id)}`"
    return f" It takes a worker that knows it to hear of that; {end} ends it without one."


def _final(situation: Situation) -> str:
    run, successor = situation.run, situation.around.successor
    ended = f" {situation.since(run.finished_at)} ago" if run.finished_at else ""
    sentence = f"It is over: {run.status}{ended}."
    if successor is not None:
        how = "goes on" if run.status == "continued" else "was retried"
        return f"{sentence} It {how} as {successor} (`pgwf why {shell_word(successor)}`)."
    if run.status == "failed":
        return (
            f"It is over: failed{ended} with {error_words(situation.error)}."
            f" `pgwf result {shell_word(run.run_id)}` shows where, `pgwf retry {shell_word(run.run_id)}` tries again."
        )
    return sentence


def _running(situation: Situation) -> str:
    run = situation.run
    left = situation.until(run.lease_until) if run.lease_until else "0 s"
    return f"It is running on {run.worker_id}; the lease ends in {left} unless it is prolonged."


def _ready(situation: Situation) -> str:
    run, around = situation.run, situation.around
    need = run.current_need or run.need
    if around.is_need_paused:
        return (
            f"It is ready, but the need {need!r} is paused: no worker is handed its runs until "
            f"`pgwf needs resume {shell_word(need)}`."
        )
    if around.live_workers == 0:
        seen = around.last_worker_seen_at
        last = f"; one that ended without a word was last seen {situation.since(seen)} ago" if seen else ""
        return (
            f"It is ready, but no live worker offers {need!r}{last}. "
            f"Start one: `pgwf worker run MODULE` with a workflow or `--capability {need}` that offers it."
        )
    workers = count_words(around.live_workers, "worker")
    verb = "offers" if around.live_workers == 1 else "offer"
    ahead = around.ready_with_same_need
    queue = f"{count_words(ahead, 'other run')} of the same need" if ahead < COUNT_MAX else "1000+ other runs"
    if around.max_active is not None and around.active >= around.max_active:
        return (
            f"It is ready; {workers} {verb} {need!r}, but it is limited to {around.max_active} at once, and"
            f" {around.active} are with workers: it waits for one to end, or for"
            f" `pgwf needs limit {shell_word(need)} …`."
        )
    if (key := _key_words(situation)) is not None:
        return f"It is ready; {workers} {verb} {need!r}, but {key}"
    if ahead:
        paced = f", of which {around.rate:g} a second are handed out" if around.rate is not None else ""
        return f"It is ready; {workers} {verb} {need!r}, and {queue} may be taken first{paced}."
    return f"It is ready; {workers} {verb} {need!r}, so it should be taken within seconds."


def _key_words(situation: Situation) -> str | None:
    """What keeps the runs of its singleton key apart; None: nothing does now."""
    key, around = situation.run.singleton_key, situation.around
    if key is None:
        return None
    if around.key_active >= around.key_max_active:
        with_it = "1 other with it is" if around.key_active == 1 else f"{around.key_active} others with it are"
        return (
            f"of runs with its singleton key {key!r} {around.key_max_active} may be with a worker at a time, and"
            f" {with_it}: it waits for one to wait or end, or for `pgwf keys limit {shell_word(key)} …`."
        )
    if around.key_token_at is not None:
        return (
            f"runs with its singleton key {key!r} start at a limited rate: the next one may in"
            f" {situation.until(around.key_token_at)}."
        )
    return None


def _waiting(situation: Situation) -> str:
    waits = [(_task_words(task, situation), task.expires_at) for task in situation.open_tasks]
    calls = sorted(situation.open_calls, key=lambda call: call.kind == "child" and _is_beside(call, situation))
    waits += [(_wait_words(call, situation), call.ends_at) for call in calls if call.kind != "human"]
    waits += [(_attempt_words(attempt, situation), attempt.next_at) for attempt in situation.attempts]
    until = situation.run.available_at
    is_told = until is not None and any(end is not None and end <= until + _SOON for _, end in waits[:NAMED_CALLS_MAX])
    next_look = f" It looks again in {situation.until(until)}." if until and not is_told else ""
    if not waits:
        if until:
            if situation.around.note:
                return f"It waits to be taken again.{next_look}"
            return f"It is to start in {situation.until(until)}."
        return (
            "It waits for something from outside, such as a signal, without a deadline; the last line of "
            f"`pgwf show {shell_word(situation.run.run_id)} --journal` says how far it has come."
        )
    named = [words for words, _ in waits[:NAMED_CALLS_MAX]]
    if more := len(waits) - len(named):
        named.append(f"{count_words(more, 'more call')}")
    return f"It waits for {_listed(named)}.{next_look}"


def _is_beside(call: OpenCall, situation: Situation) -> bool:
    """Whether this child is over, or one of many: those that are not over were looked up first."""
    child = situation.children.get(call.key)
    return child.run.is_final if child is not None else len(situation.children) >= NAMED_CALLS_MAX


def _task_words(task: TaskSummary, situation: Situation) -> str:
    words = f"a person to decide {task.name!r}, open for {situation.since(task.created_at)}"
    if task.holder is not None:
        words += f", held by {task.holder}"
    else:
        words += f", which nobody has claimed (`pgwf human claim {shell_word(task.task_id)}`)"
    if task.due_at is not None:
        is_late = task.due_at < situation.around.asked_at
        due = situation.since(task.due_at) if is_late else situation.until(task.due_at)
        words += f", overdue by {due}" if is_late else f", due in {due}"
        words += _escalation_words(task, situation, is_late=is_late)
    return words + _end_words("expires", task.expires_at, situation)


def _escalation_words(task: TaskSummary, situation: Situation, *, is_late: bool) -> str:
    if task.escalated_at is not None:
        return f", handed on from {task.first_need!r} to {task.need!r} {situation.since(task.escalated_at)} ago"
    if task.escalate_need is None:
        return ""
    if not is_late:
        return f", and goes to {task.escalate_need!r} then, unless somebody holds it"
    when = "when a worker next looks" if task.holder is None else "when it is given back"
    return f", and goes to {task.escalate_need!r} {when}"


def _attempt_words(attempt: Attempt, situation: Situation) -> str:
    words = f"the next attempt of {attempt.key}, in {situation.until(attempt.next_at)}"
    failed = count_words(attempt.number, "attempt")
    return f"{words}, after {failed} failed, the last with {error_words(attempt.error)}"


def _wait_words(call: OpenCall, situation: Situation) -> str:
    since = situation.since(call.recorded_at)
    ends = _end_words("fires" if call.kind == "timer" else "times out", call.ends_at, situation)
    if call.kind == "timer":
        return f"a timer set {since} ago{ends}"
    if call.kind == "child":
        child = situation.children.get(call.key)
        if child is None:
            return f"child run {call.name!r}, since {since}"
        return f"child run {child.run.run_id!r}, since {since}, which {_child_words(child)}"
    if call.kind == "attach":
        return (
            f"run {call.run_id!r} to be over, since {since} (`pgwf why {shell_word(call.run_id or call.name)}`){ends}"
        )
    how = {
        "signal": f" (`pgwf signal {shell_word(situation.run.run_id)} {shell_word(call.name)}`)",
        "awakeable": (
            " (who has its token completes it: `client.complete_awakeable(token, value)`, or in SQL"
            " `select pgwf_sdk.complete_awakeable('TOKEN', 'JSON')`)"
        ),
    }
    return f"{call.kind} {call.name!r}, since {since}{how.get(call.kind, '')}{ends}"


def _end_words(ends: str, at: datetime | None, situation: Situation) -> str:
    """When what is waited for ends by the clock; nothing where it does not."""
    return "" if at is None else f", {ends} in {situation.until(at)}"


def _child_words(child: ChildOutlook) -> str:
    """How far a child is, one level deep: what it waits for itself is its own answer."""
    run = child.run
    if run.status == "ready" and child.live_workers == 0:
        need = run.current_need or run.need
        return f"is ready, but no live worker offers {need!r} (start one: `pgwf worker run MODULE`)"
    if run.status == "running":
        return f"is running on {run.worker_id}"
    if run.status == "ready" or run.is_final:
        return f"is {run.status}"
    return f"is {run.status} (`pgwf why {shell_word(run.run_id)}`)"


def _paused(situation: Situation) -> str:
    note = f" ({situation.around.note})" if situation.around.note else ""
    return f"It is paused{note}; `pgwf resume {shell_word(situation.run.run_id)}` lets it go on."


def _blocked(situation: Situation) -> str:
    return (
        "It is blocked: its code and its journal, or a value that was sent to it, do not fit each other. Nothing is"
        f" lost; do what a `fix:` below says. After a deploy that is `pgwf resume {shell_word(situation.run.run_id)}`."
    )


def _crash_concern(situation: Situation) -> str:
    return (
        f"Workers lost it {count_words(situation.run.streak, 'time')} in a row without recording anything, so it is "
        "kept from taking down more of them. Look at their logs; then clear it: "
        f"`select pgwf.clear_crash_concern('{situation.run.run_id}', 'NAME', 'REASON')`."
    )


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])}; and {parts[-1]}"


_SENTENCES: MappingProxyType[str, Callable[[Situation], str]] = MappingProxyType(
    {
        "ready": _ready,
        "running": _running,
        "waiting": _waiting,
        "paused": _paused,
        "blocked": _blocked,
        "crash_concern": _crash_concern,
    }
)
