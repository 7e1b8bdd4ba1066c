"""The one query layer: what the command line, the console and the API know about runs, tasks, needs and
workers.

Functions take a client, or a psycopg connection whose transaction they join, and answer with frozen values.
They read the database only, so they work while every worker is down.
"""

from pgwf_sdk._wording import count_words, duration_words, short_duration_words, stuck_words
from pgwf_sdk.ops._decisions import DecisionError, DecisionForm, Field, Variant
from pgwf_sdk.ops._failures import Failure, failure_of
from pgwf_sdk.ops._filters import FilterError, RunFilter, parse_duration, parse_filter
from pgwf_sdk.ops._fleet import drain_worker, limit_key, limit_need, pause_need, resume_need
from pgwf_sdk.ops._folding import fold_equal_rows
from pgwf_sdk.ops._queries import (
    OPEN_TASK_STATES,
    get_ending,
    get_run,
    get_task,
    list_children,
    list_keys,
    list_needs,
    list_runs,
    list_tasks,
    list_workers,
    now,
    read_journal,
    timeline,
    unoffered_need,
    why_not_running,
)
from pgwf_sdk.ops._replays import Check, Difference, check_runs, difference, recorded_run
from pgwf_sdk.ops._rows import (
    FINAL_STATUSES,
    STATUSES,
    Activation,
    Attempt,
    Ending,
    JournalEntry,
    KeySummary,
    NeedSummary,
    OpenCall,
    RunPage,
    RunSummary,
    TaskSummary,
    WorkerSummary,
)
from pgwf_sdk.ops._source import LendsConnection, Source
from pgwf_sdk.ops._timeline import build_timeline
from pgwf_sdk.ops._timeline_calls import Facts
from pgwf_sdk.ops._timeline_rows import BUSY_LOOKS, Look, RowState, Segment, Timeline, TimelineRow
from pgwf_sdk.ops._timescale import Fold, TimeScale, scale_of, time_scale
from pgwf_sdk.ops._why import COUNT_MAX
from pgwf_sdk.ops._writes import decide_json, signal_json, start_from_json

__all__ = [
    "BUSY_LOOKS",
    "COUNT_MAX",
    "FINAL_STATUSES",
    "OPEN_TASK_STATES",
    "STATUSES",
    "Activation",
    "Attempt",
    "Check",
    "DecisionError",
    "DecisionForm",
    "Difference",
    "Ending",
    "Facts",
    "Failure",
    "Field",
    "FilterError",
    "Fold",
    "JournalEntry",
    "KeySummary",
    "LendsConnection",
    "Look",
    "NeedSummary",
    "OpenCall",
    "RowState",
    "RunFilter",
    "RunPage",
    "RunSummary",
    "Segment",
    "Source",
    "TaskSummary",
    "TimeScale",
    "Timeline",
    "TimelineRow",
    "Variant",
    "WorkerSummary",
    "build_timeline",
    "check_runs",
    "count_words",
    "decide_json",
    "difference",
    "drain_worker",
    "duration_words",
    "failure_of",
    "fold_equal_rows",
    "get_ending",
    "get_run",
    "get_task",
    "limit_key",
    "limit_need",
    "list_children",
    "list_keys",
    "list_needs",
    "list_runs",
    "list_tasks",
    "list_workers",
    "now",
    "parse_duration",
    "parse_filter",
    "pause_need",
    "read_journal",
    "recorded_run",
    "resume_need",
    "scale_of",
    "short_duration_words",
    "signal_json",
    "start_from_json",
    "stuck_words",
    "time_scale",
    "timeline",
    "unoffered_need",
    "why_not_running",
]
