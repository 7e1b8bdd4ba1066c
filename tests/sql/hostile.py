"""What a caller should not pass, by type, and what a call of every function of the three schemas begins with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterator

HUGE = "x" * 1_000_000
DEEP = "[" * 5_000 + "]" * 5_000
MANY = 100_000
NUMBERS: list[Any] = [None, 0, -1]

HOSTILE: dict[str, list[Any]] = {
    "text": [None, "", HUGE, "é✓日本", "\x01\n\t\x7f", "'; drop table pgwf.job; --", "%s %(a)s $1 \\ {", "NaN", " "],
    "smallint": [*NUMBERS, 32767, -32768, 99],
    "integer": [*NUMBERS, 2**31 - 1, -(2**31), 99],
    "bigint": [*NUMBERS, 2**63 - 1, -(2**63)],
    "double precision": [*NUMBERS, "NaN", "Infinity", "-Infinity", 1e308, -1e308, 1e-300],
    "boolean": [None, True, False],
    "timestamp with time zone": [None, "infinity", "-infinity", "0001-01-01", "294276-12-31 23:59:59", "4713-01-01 BC"],
    "interval": [None, "0", "-1 day", "170000000 years", "-170000000 years"],
    "jsonb": [
        *(None, "null", "[]", "{}", "[null]", "[{}]", "[[null]]", "[[[]]]", '"x"', "1e400"),
        *(DEEP, json.dumps(HUGE), '[{"item": 9}]', '[{"item": "x"}]', '[{"name": {}, "call": "x"}]'),
    ],
    "bytea": [None, b"", b"\x00\xff", b"{", b"x" * 1_000_000],
    "uuid": [None, UUID(int=7)],
    "xid8": [None, "0"],
}

# By the name of the argument; one that is not here is left out, which means its default.
USUAL: dict[str, Any] = {
    "enabled": True,
    "p_additional_seconds": 60,
    "p_arguments": "[]",
    "p_by": "ann",
    "p_capabilities": ["python"],
    "p_channels": ["need.python"],
    "p_delay_seconds": 0,
    "p_draining": True,
    "p_encoding": 1,
    "p_entries": '[{"name": "x"}]',
    "p_error": "boom",
    "p_expected_seq": 0,
    "p_files": ["a.py"],
    "p_grace": "1 day",
    "p_aging": "1 minute",
    "p_input": b'{"args":[],"kwargs":{}}',
    "p_job_id": "held",
    "p_job_ids": ["held"],
    "p_journal_id": "own",
    "p_keep": "1 day",
    "p_key": "k",
    "p_kind": 2,
    "p_lease_id": "lease:held",
    "p_lease_ids": ["lease:held"],
    "p_lease_seconds": 60,
    "p_limit": 10,
    "p_limit_jobs": 1,
    "p_lines": [1],
    "p_listener": "l1",
    "p_name": "x",
    "p_need": "python",
    "p_needs": ["python"],
    "p_next_need": "python",
    "p_next_needs": ["python"],
    "p_occurrence": 1,
    "p_payload": b"1",
    "p_priority": 3,
    "p_reason": "why",
    "p_run_id": "order-1",
    "p_run_ids": ["order-1"],
    "p_scope": "",
    "p_signal": "paid",
    "p_task_id": "task-1",
    "p_token": "awk_AAAAAAAAAAAAAAAAAAAAAAAA",
    "p_threshold": 5,
    "p_worker_caps": ["python"],
    "p_worker_id": "w1",
    "p_workflow": "checkout",
}
ENTRY: dict[str, Any] = {
    "p_entry_items": [1],
    "p_entry_calls": [1],
    "p_entry_kinds": [2],
    "p_entry_phases": [2],
    "p_entry_scopes": [""],
    "p_entry_names": ["charge"],
    "p_entry_occurrences": [1],
    "p_entry_payloads": [b"1"],
    "p_entry_encodings": [1],
    "p_entry_codes": [1],
}
ONE_ENTRY: dict[str, Any] = {
    "p_n": "n:order-1",
    "p_lease_id": "lease:order-1",
    "p_expected_seq": 1,
    "p_call": 1,
    "p_phase": 2,
    "p_code": 1,
}
ITEM: dict[str, Any] = {
    "p_n": ["n:order-1"],
    "p_lease_ids": ["lease:order-1"],
    "p_expected_seqs": [1],
    "p_dispositions": ["keep"],
    "p_until": [None],
    "p_delay_seconds": [0.0],
    "p_needs": ["python"],
    "p_inbox_seen": [0],
    "p_wake_after": [0],
    "p_decides": [False],
    "p_notes": [None],
    "p_lapsed": [False],
    "p_told": [0],
}
CHILD: dict[str, Any] = {
    "p_child_items": [1],
    "p_child_keys": ["/child:ship#1"],
    "p_child_run_ids": ["order-1/ship"],
    "p_child_workflows": ["ship"],
    "p_child_needs": ["python"],
    "p_child_builds": [None],
    "p_child_inputs": [b"{}"],
    "p_child_encodings": [1],
}
END: dict[str, Any] = {"p_dispositions": ["complete"], "p_entry_kinds": [1]}
ARRAYS: dict[str, Any] = {
    "p_calls": [1],
    "p_kinds": [2],
    "p_phases": [2],
    "p_scopes": [""],
    "p_names": ["x"],
    "p_occurrences": [1],
    "p_payloads": [b"1"],
    "p_encodings": [1],
    "p_codes": [1],
}
READY: dict[str, Any] = {"p_job_id": "ready"}

AS_USUAL = (
    "add_partitions",
    "archive_cancelled_jobs",
    "cancel_job",
    "channel",
    "check",
    "clear_crash_concern",
    "complete_job",
    "complete_jobs",
    "crash_concern_threshold",
    "drain_worker",
    "expired_grace",
    "extend_lease",
    "extend_leases",
    "forget_worker",
    "get_work",
    "is_notify_enabled",
    "is_trace_enabled",
    "job_dependencies",
    "limit_key",
    "limit_need",
    "next_wakeup",
    "overdue",
    "pause_need",
    "priority_aging",
    "release_job",
    "reschedule_job",
    "reschedule_jobs",
    "resume_need",
    "retain",
    "schema_version",
    "set_crash_concern_threshold",
    "set_notify",
    "set_expired_grace",
    "set_priority",
    "set_priority_aging",
    "set_trace",
    "set_worker_grace",
    "sleep_in_turn",
    "sleep_on",
    "sweep",
    "wake_jobs",
    "wake_next",
    "wake_up",
    "worker_grace",
    "worker_heartbeat",
)
RUNS_AS_USUAL = (
    "add_partitions",
    "cancel_run",
    "decide_task",
    "decision_schema",
    "pause_run",
    "result",
    "resume_run",
    "resume_runs",
    "retain",
    "retry_runs",
    "run_result",
    "signal_run",
    "terminate_run",
)

# What of a function's arguments differs from the usual; a function that is not here has no cases. A case is for the
# overload that has all its arguments.
CASES: dict[str, list[dict[str, Any]]] = {
    **{f"pgwf.{name}": [{}] for name in AS_USUAL},
    "pgwf.complete_unheld_job": [READY],
    "pgwf.lease_job": [{**READY, "p_worker_caps": ["idle"]}],
    "pgwf.reschedule_unheld_job": [READY],
    "pgwf.submit_job": [{"p_job_id": "new"}],
    "pgwf.submit_jobs": [{"p_job_ids": ["new"]}],
    "pgwf_journal.append": [{"p_entries": USUAL["p_entries"]}, ARRAYS],
    "pgwf_journal.code_numbers": [{"p_build": "b1"}],
    "pgwf_journal.entry_key": [{}],
    "pgwf_journal.head": [{}],
    "pgwf_journal.open": [{"p_journal_id": "new"}],
    "pgwf_journal.read": [{}],
    "pgwf_sdk.advance": [
        {**ITEM, **ENTRY, **CHILD, "p_slots": 1},
        {**ITEM, **ENTRY, "p_dispositions": ["park"], "p_told": [1]},
        {**ITEM, **ENTRY, "p_dispositions": ["release"]},
        {**ITEM, **ENTRY, "p_dispositions": ["hop"]},
        {**ITEM, "p_dispositions": ["block"], "p_notes": ["{}"]},
        {**ITEM, **ENTRY, **END, "p_consumed_items": [1], "p_consumed_ids": [1]},
    ],
    "pgwf_sdk.claim_task": [{"p_seconds": 60}],
    "pgwf_sdk.keepalive": [{name: ITEM[name] for name in ("p_n", "p_lease_ids", "p_inbox_seen")}],
    "pgwf_sdk.release_task": [{"p_task_id": "task-2"}],
    "pgwf_sdk.fork_price": [{"p_run_id": "failed", "p_before": 2}],
    "pgwf_sdk.fork_run": [{"p_run_id": "failed", "p_before": 2}],
    "pgwf_sdk.retry_run": [{"p_run_id": "failed"}],
    "pgwf_sdk.append": [ONE_ENTRY],
    "pgwf_sdk.complete_awakeable": [{"p_value": "1"}],
    "pgwf_sdk.end_overdue": [{}],
    "pgwf_sdk.escalate_tasks": [{}],
    "pgwf_sdk.next_overdue": [{}],
    "pgwf_sdk.stray_leases": [{"p_known": ["n:order-1"]}],
    "pgwf_sdk.fail_awakeable": [{"p_message": "no"}],
    "pgwf_sdk.settle_awakeable": [{"p_is_failed": False}],
    "pgwf_sdk.signal": [{"p_payload": "1"}],
    "pgwf_sdk.signal_with_start": [{"p_run_id": "new", "p_payload": "1"}],
    "pgwf_sdk.signal_with_start_run": [{"p_run_id": "new", "p_payload_encoding": 1}],
    "pgwf_sdk.token_key": [{}],
    "pgwf_sdk.limited_needs": [{"p_needs": ["gpu"]}],
    "pgwf_sdk.start": [{"p_run_id": "new"}],
    "pgwf_sdk.start_run": [{"p_run_id": "new"}],
    **{f"pgwf_sdk.{name}": [{}] for name in RUNS_AS_USUAL},
}

CLAIM = (
    "select * into r from pgwf_sdk.advance('w1', p_worker_caps => '{python}', p_slots => 1, p_lease_seconds => 86400);"
)
SAY = """perform pgwf_sdk.advance('w1', array[r.n], array[r.lease_id], '{1}', '{%s}', array[null::timestamptz],
  array[null::float8], array[null], '{0}', '{0}', '{f}', array[null], '{f}', %s);"""
FAIL = """'{1}', '{0}', '{1}', '{3}', '{""}', '{checkout}', '{1}', array['{}'::bytea], '{1}', array[null::int]"""
ASK = """p_tasks => '[
  {"item": 1, "key": "/human:a#1", "task_id": "task-1", "name": "a", "need": "human.a", "subject": "1", "encoding": 1,
    "decision_schema": {}},
  {"item": 1, "key": "/human:b#1", "task_id": "task-2", "name": "b", "need": "human.a", "subject": "1", "encoding": 1,
    "decision_schema": {}}]'"""
RUN = "do $$ declare r record; begin perform pgwf_sdk.start('checkout', '[]', '{}', 'python'); {} {} end $$"
# A database with a little of everything.
WORLD = [
    "select pgwf.submit_job('held', 'w1', 'solder')",
    "select pgwf.get_work('w1', '{solder}', 86400)",
    "select pgwf.submit_job('ready', 'w1', 'idle')",
    "select pgwf_journal.open('own')",
    "select pgwf_journal.code_numbers('b0', '{a.py}', '{1}')",
    RUN.format("failed", CLAIM, SAY % ("fail", FAIL)),
    RUN.format("order-1", CLAIM, SAY % ("keep", ASK) + " perform pgwf_sdk.claim_task('task-2', 'ann');"),
]
# What stands for leases and numbers in the arguments above.
TOKENS = """
    select 'lease:' || j.job_id, l.lease_id::text from pgwf.lease l join pgwf.job j on j.n = l.n
    union all select 'n:' || j.job_id, j.n::text from pgwf.job j
"""


def hostile(kind: str, *, is_first: bool) -> Iterator[Any]:
    """Values that should not come, of a type; of an array: none, NULL, one of each of these, unequal and very many.

    What is huge, and the same for every case of a function, comes for the first one only.
    """
    element = kind.removesuffix("[]")
    values = [value for value in HOSTILE[element] if is_first or value is not HUGE]
    if element == kind:
        yield from values
        return
    yield None
    yield []
    for value in values:
        yield [value]
    plain = next(value for value in HOSTILE[element][1:] if value not in ("", HUGE))
    yield [plain, plain]
    yield [[plain, plain], [plain, plain]]
    if not isinstance(plain, bytes):
        yield f'[0:1]={{"{plain}","{plain}"}}'
    if is_first:
        yield [f"{plain}{i}" for i in range(MANY)] if element == "text" else [plain] * MANY


def filled(value: Any, tokens: dict[str, str]) -> Any:
    """`value` with leases and numbers in place of what stands for them."""
    if isinstance(value, list) and len(value) < 5:
        return [filled(each, tokens) for each in value]
    return tokens.get(value, value) if isinstance(value, str) else value
