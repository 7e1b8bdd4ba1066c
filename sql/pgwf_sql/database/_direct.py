"""Prepared statements, where they are safe: on a connection that is one session of the server from end to end."""

from typing import Any

from psycopg import AsyncConnection

from pgwf_sql.database._statement import Statement, execute_async, read_value

_BACKEND: Statement[int] = Statement("sdk_backend", {}, read_value, is_repeatable=True)


async def prepare_if_direct(connection: AsyncConnection[Any]) -> None:
    """Let the connection keep its statements prepared, which spares the server to parse and plan them in each call.

    Not behind a pooler, where each transaction may run in another session, which has not prepared them. A pooler gives
    itself away: the process number it told the client at the start is not that of the process that answers.
    """
    if await execute_async(connection, _BACKEND) == connection.info.backend_pid:
        connection.prepare_threshold = 0
