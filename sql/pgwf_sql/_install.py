"""The install script, and the call that runs it."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

from pgwf_sql._queries import query

if TYPE_CHECKING:
    from typing import Any

    from psycopg import Connection

SCHEMA_VERSION: Final = 2
ROOMS: Final = ("pgwf", "pgwf_journal", "pgwf_sdk")  # In the order in which they build on each other.
ROLES_FILE: Final = "60_roles.sql"


class SchemaVersionError(Exception):
    """The installed schema does not fit this package: run `pgwf migrate`, or upgrade the package."""

    def __init__(self, found: int, expected: int) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"schema pgwf: found version {found}, this package installs version {expected}; "
            "upgrade the package before it installs into this database"
        )


def _room_files(room: str) -> list[Traversable]:
    folder = files("pgwf_sql") / room
    if not folder.is_dir():
        return []
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)


def _joined(chosen: list[tuple[str, Traversable]]) -> str:
    return "\n".join(f"-- {room}/{file.name}\n{file.read_text(encoding='utf-8')}" for room, file in chosen)


def script() -> str:
    """The whole install script. Run it in one transaction (`psql -1 -v ON_ERROR_STOP=1`): a second run changes
    nothing, two at once wait for each other. It creates no role and needs no superuser and no extension."""
    return _joined([(room, file) for room in ROOMS for file in _room_files(room) if file.name != ROLES_FILE])


def roles() -> str:
    """The script that creates the roles and their grants; needs CREATEROLE, and the schemas installed."""
    return _joined([(room, file) for room in ROOMS for file in _room_files(room) if file.name == ROLES_FILE])


def install_test_kit(conn: "Connection[Any]") -> None:
    """Take an installed database for tests: its clock stands still and is moved, and its tables can be cleared.

    psycopg's ObjectNotInPrerequisiteState: the database has held a job, so it is not the kit's to take.
    """
    with conn.transaction():
        conn.execute((files("pgwf_sql") / "testing" / "schema.sql").read_text(encoding="utf-8").encode())


def schema_version(conn: "Connection[Any]") -> int | None:
    """The version of the schema installed in this database, None if there is none."""
    row = conn.execute(query("pgwf_is_installed").encode()).fetchone()
    if row is None or not row[0]:
        return None
    row = conn.execute(query("pgwf_schema_version").encode()).fetchone()
    return None if row is None else row[0]


def install(conn: "Connection[Any]") -> None:
    """Install or repair the schema, in the transaction that is open on `conn` or in one of its own. Idempotent, safe
    from several processes at once; changes no setting. SchemaVersionError: the database has a newer schema."""
    found = schema_version(conn)
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaVersionError(found, SCHEMA_VERSION)
    with conn.transaction():
        conn.execute(script().encode())
