"""What a command knows of its surroundings: which database, which form of output, who is asking."""

import base64
import getpass
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgwf_sdk.cli._exit import CliError, ExitCode

if TYPE_CHECKING:
    from pgwf_sdk._client import Client
    from pgwf_sdk._sealing import Sealing

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("table", "json", "ids")
KEYS_VARIABLE = "PGWF_KEYS"
DSN_VARIABLES = ("PGWF_DSN", "DATABASE_URL")
LISTEN_VARIABLE = "PGWF_LISTEN_DSN"


class Session:
    """One command's surroundings; made by the root command, filled by the options of any command below it."""

    def __init__(self) -> None:
        self.dsn_option: str | None = None
        self.form = "table"
        self._client: Client | None = None

    @property
    def dsn(self) -> str:
        """The connection string: --dsn, then PGWF_DSN, then DATABASE_URL."""
        candidates = {"--dsn": self.dsn_option, **{name: os.environ.get(name) for name in DSN_VARIABLES}}
        source, found = next(((name, text) for name, text in candidates.items() if text), ("", None))
        if found is None:
            raise CliError(
                "no database given: found neither --dsn nor PGWF_DSN nor DATABASE_URL; expected something like "
                "postgresql://user@host/name. For one of your own on this machine run `pgwf dev`",
                ExitCode.USAGE,
            )
        return _checked_dsn(found, source)

    @property
    def client(self) -> "Client":
        """A client for the database, opened on first use and closed when the command ends."""
        if self._client is None:
            from pgwf_sdk._client import Client

            listen_dsn = os.environ.get(LISTEN_VARIABLE)
            self._client = Client(
                self.dsn,
                name=f"{self.user} (pgwf)",
                connections_max=1,
                listen_dsn=_checked_dsn(listen_dsn, LISTEN_VARIABLE) if listen_dsn else None,
                sealing=self.sealing,
            )
            click.get_current_context().call_on_close(self._client.close)
        return self._client

    @property
    def sealing(self) -> "Sealing | None":
        """How values are sealed, by the keys of PGWF_KEYS; None without the variable."""
        return _sealing(os.environ.get(KEYS_VARIABLE))

    @property
    def user(self) -> str:
        """The name under which people act: PGWF_USER, else the account's."""
        return os.environ.get("PGWF_USER") or getpass.getuser()

    @property
    def is_coloured(self) -> bool:
        """Whether stdout wants colours: a terminal does unless NO_COLOR is set; CLICOLOR_FORCE insists."""
        if os.environ.get("CLICOLOR_FORCE", "0") != "0":
            return True
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def is_ascii(self) -> bool:
        """Whether stdout can only show ASCII."""
        try:
            "█…".encode(sys.stdout.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return True
        return False


def _checked_dsn(text: str, source: str) -> str:
    from pgwf_sdk._client._options import check_dsn

    try:
        check_dsn(text, used=source)
    except ValueError as error:
        raise CliError(str(error), ExitCode.USAGE) from None
    return text


def _sealing(keys: str | None) -> "Sealing | None":
    """How values are sealed by the keys of PGWF_KEYS, `name=base64,…`, the one that seals first; empty: compressed."""
    from pgwf_sdk._sealing import Sealing

    if keys is None:
        return None
    named: dict[str, bytes] = {}
    for part in filter(None, (one.strip() for one in keys.split(","))):
        name, equals, text = part.partition("=")
        try:
            named[name] = base64.b64decode(text, validate=True)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise CliError(
                f"{KEYS_VARIABLE}: key {name!r} cannot be read; expected name=base64 of 32 bytes, several with commas"
                " between them",
                ExitCode.USAGE,
            )
    return Sealing(named)


def session() -> Session:
    """The session of the running command."""
    return click.get_current_context().ensure_object(Session)


def _set_dsn(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Session).dsn_option = value


def _set_form(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Session).form = value


def dsn_option(command: F) -> F:
    """Adds --dsn; it works before and after the command's name."""
    return click.option(
        "--dsn",
        metavar="DSN",
        callback=_set_dsn,
        expose_value=False,
        help="Database to use instead of PGWF_DSN or DATABASE_URL.",
    )(command)


def form_option(command: F) -> F:
    """Adds -o; it works before and after the command's name."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMS),
        callback=_set_form,
        expose_value=False,
        help="Form of the output (default: table).",
    )(command)


def output_options(command: F) -> F:
    """Adds --dsn and -o; they work before and after the command's name."""
    return dsn_option(form_option(command))
