"""The schema version this release needs, and what a client says when the database has another."""

from typing import Any

from psycopg import AsyncConnection, Connection, errors

from pgwf_sql import SCHEMA_VERSION
from pgwf_sql.database._statement import Statement, execute, execute_async, read_value

_STATEMENT: Statement[int] = Statement("pgwf_schema_version", {}, read_value, is_repeatable=True)


class SchemaOutdatedError(Exception):
    """The database has no pgwf schema, or one older than this release needs. An operator must run `pgwf migrate`."""

    def __init__(self, *, found: int | None, needed: int) -> None:
        state = "the schema pgwf is not installed" if found is None else f"the schema pgwf has version {found}"
        super().__init__(
            f"{state}; this release needs version {needed} or newer: "
            "run `pgwf migrate` against this database (or `psql -f sql/install.sql`)"
        )
        self.found = found
        self.needed = needed


class SchemaMismatchError(SchemaOutdatedError):
    """The schema was changed under a client, and lacks a call that it makes: another release installed it."""

    def __init__(self, *, found: int, needed: int, lacks: str) -> None:
        Exception.__init__(
            self,
            f"the schema pgwf has version {found}, and was installed by another release than this one, which needs"
            f" version {needed}: {lacks}; expected pgwf of the release that ran `pgwf migrate` last: upgrade it here,"
            " or run `pgwf migrate` with this one where it is the newer",
        )
        self.found = found
        self.needed = needed


def require_schema_version(connection: Connection[Any]) -> None:
    """Raise SchemaOutdatedError unless the schema is installed and new enough; a newer one is accepted."""
    try:
        found = execute(connection, _STATEMENT)
    except (errors.UndefinedFunction, errors.InvalidSchemaName) as error:
        raise SchemaOutdatedError(found=None, needed=SCHEMA_VERSION) from error
    if found < SCHEMA_VERSION:
        raise SchemaOutdatedError(found=found, needed=SCHEMA_VERSION)


async def require_schema_version_async(connection: AsyncConnection[Any]) -> None:
    """Like `require_schema_version`, on an asynchronous connection."""
    try:
        found = await execute_async(connection, _STATEMENT)
    except (errors.UndefinedFunction, errors.InvalidSchemaName) as error:
        raise SchemaOutdatedError(found=None, needed=SCHEMA_VERSION) from error
    if found < SCHEMA_VERSION:
        raise SchemaOutdatedError(found=found, needed=SCHEMA_VERSION)


async def mismatch(connection: AsyncConnection[Any], error: errors.UndefinedFunction) -> SchemaOutdatedError:
    """What to raise when the database says that it has no function of the name and arguments of a call."""
    try:
        await require_schema_version_async(connection)
    except SchemaOutdatedError as outdated:
        return outdated
    found = await execute_async(connection, _STATEMENT)
    return SchemaMismatchError(found=found, needed=SCHEMA_VERSION, lacks=error.diag.message_primary or "")
