"""What a client is told when it is made, checked before anything is opened."""

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from pgwf_sdk._kinds import check_counts, check_kind, check_texts
from pgwf_sdk._misuse import check_sealing
from pgwf_sdk._telemetry import Telemetry

_DSN = "a PostgreSQL connection string, such as postgresql://user@host/db"


def check_client(
    used: str,
    dsn: str,
    listen_dsn: str | None,
    sealing: object,
    name: object,
    connections_max: int,
    telemetry: object,
) -> None:
    """TypeError, ValueError: a client cannot be made like this; `used` is its class."""
    check_dsn(dsn, used=f"{used}(dsn)")
    if listen_dsn is not None:
        check_dsn(listen_dsn, used=f"{used}(listen_dsn=…)")
    check_sealing(sealing, used=f"{used}(sealing=…)")
    check_texts(used, name=name)
    check_counts(used, connections_max=connections_max)
    if connections_max < 1:
        raise ValueError(f"{used}(connections_max=…): found {connections_max}; expected 1 or more")
    check_kind(telemetry, (Telemetry, type(None)), used=f"{used}(telemetry=…)", expected="Telemetry(…)")


def check_dsn(found: str, *, used: str) -> None:
    """TypeError: no text. ValueError: a text by which no database can be found."""
    check_kind(found, str, used=used, expected=_DSN)
    try:
        if found.strip():
            conninfo_to_dict(found)
            return
    except ProgrammingError:
        pass
    may_hold_password = "@" in found or "=" in found
    shown = "a text that is none; it is not shown, as it may hold a password" if may_hold_password else repr(found)
    raise ValueError(f"{used}: found {shown}; expected {_DSN}")
