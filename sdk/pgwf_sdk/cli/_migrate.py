"""`pgwf migrate`: the schema, installed or upgraded."""

from types import MappingProxyType

import click

from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._output import talk
from pgwf_sdk.cli._session import dsn_option, session


@click.command("migrate")
@click.option("--sql", "only_sql", is_flag=True, help="Print the SQL instead of running it; for psql -1.")
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit 8 if the schema is missing or old.")
@click.option("--roles", "with_roles", is_flag=True, help="Create the roles too; the role needs CREATEROLE.")
@dsn_option
def migrate(only_sql: bool, only_check: bool, with_roles: bool) -> None:
    """Install or upgrade the schema in one transaction.

    Running it twice changes nothing, and two at once wait for each other. It needs neither a superuser nor an
    extension.
    """
    import pgwf_sql

    if only_sql and only_check:
        raise click.UsageError("--sql and --check exclude each other")
    if only_sql:
        click.echo(pgwf_sql.script())
        if with_roles:
            click.echo(pgwf_sql.roles())
        return
    import psycopg

    with psycopg.connect(session().dsn, autocommit=True) as connection:
        found = pgwf_sql.schema_version(connection)
        if only_check:
            _check(found, pgwf_sql.SCHEMA_VERSION)
            return
        pgwf_sql.install(connection)
        if with_roles:
            with connection.transaction():
                connection.execute(pgwf_sql.roles().encode())
        was = "new" if found is None else f"was {found}"
        talk(f"schema version {pgwf_sql.SCHEMA_VERSION} is installed ({was})")


def _check(found: int | None, needed: int) -> None:
    if found == needed:
        talk(f"schema version {found} is installed, as this pgwf needs")
        return
    state = "is not installed" if found is None else f"has version {found}"
    raise CliError(f"schema pgwf {state}, this pgwf needs {needed}; run `pgwf migrate`", ExitCode.UNHEALTHY)


COMMANDS = MappingProxyType({"migrate": migrate})
