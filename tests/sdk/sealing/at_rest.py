"""What the database holds in clear, wherever values of runs may be."""

from __future__ import annotations

from typing import Any

import psycopg

TEXTS = """
    select t.name, t.line from (
      select 'entry' as name, to_jsonb(x) as line from pgwf_journal.entry x
      union all select 'inbox', to_jsonb(x) from pgwf_sdk.inbox x
      union all select 'attempt', to_jsonb(x) from pgwf_sdk.attempt x
      union all select 'task', to_jsonb(x) from pgwf_sdk.task x
      union all select 'blocked', to_jsonb(x) from pgwf_sdk.blocked x
      union all select 'job', to_jsonb(x) from pgwf.job x
      union all select 'run', to_jsonb(x) from pgwf_sdk.run x
    ) t where t.line::text like any (%s)
"""


def in_clear(dsn: str, text: str) -> list[tuple[Any, ...]]:
    """The rows that have `text` in them, as text or as bytes."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(TEXTS, [[f"%{text}%", f"%{text.encode().hex()}%"]]).fetchall()
