"""How Python reaches the SQL: statements as values, and the connections they run on.

The rooms describe what they want as `Statement` values without doing any I/O; `Database` and `AsyncDatabase` run them.
"""

from pgwf_sql.database._arrays import (
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
from pgwf_sql.database._closing import AsyncClosing, Closing
from pgwf_sql.database._direct import PreparedCall, is_direct, prepare_if_direct
from pgwf_sql.database._listener import REQUEST_SECONDS, AsyncListener, Listener
from pgwf_sql.database._numbers import BITS_OF_BIGINT, BITS_OF_INT, shown_number, whole_numbers
from pgwf_sql.database._pool import CONNECTIONS_MAX, AsyncDatabase, Database
from pgwf_sql.database._schema import SchemaMismatchError, SchemaOutdatedError, mismatch
from pgwf_sql.database._shutting import shut_down
from pgwf_sql.database._statement import Rewrite, Row, Statement, execute, execute_async, read_nothing, read_value
from pgwf_sql.database._timestamps import NEVER
from pgwf_sql.database._translate import Translate, message_of, with_hint

__all__ = [
    "BITS_OF_BIGINT",
    "BITS_OF_INT",
    "CONNECTIONS_MAX",
    "NEVER",
    "REQUEST_SECONDS",
    "AsyncClosing",
    "AsyncDatabase",
    "AsyncListener",
    "Closing",
    "Database",
    "Listener",
    "PackedArray",
    "PreparedCall",
    "Rewrite",
    "Row",
    "SchemaMismatchError",
    "SchemaOutdatedError",
    "Statement",
    "Translate",
    "bigints",
    "booleans",
    "byteas",
    "execute",
    "execute_async",
    "floats",
    "instants",
    "integers",
    "is_direct",
    "message_of",
    "mismatch",
    "prepare_if_direct",
    "read_nothing",
    "read_value",
    "shown_number",
    "shut_down",
    "smallints",
    "texts",
    "uuids",
    "whole_numbers",
    "with_hint",
]
