"""`pgwf version`."""

import platform
from importlib.metadata import version
from types import MappingProxyType

import click

from pgwf_sdk.cli._output import write_object
from pgwf_sdk.cli._session import output_options


@click.command("version")
@output_options
def version_command() -> None:
    """Print the versions of pgwf, of the schema it installs, and of Python."""
    import pgwf_sql

    write_object(
        "pgwf.version/1",
        {"pgwf": version("pgwf"), "schema_version": pgwf_sql.SCHEMA_VERSION, "python": platform.python_version()},
        text=f"pgwf {version('pgwf')} (schema {pgwf_sql.SCHEMA_VERSION}, Python {platform.python_version()})",
    )


COMMANDS = MappingProxyType({"version": version_command})
