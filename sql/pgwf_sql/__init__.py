"""Every line of SQL that pgwf runs, and the only module that reads it."""

from pgwf_sql._install import (
    SCHEMA_VERSION,
    SchemaVersionError,
    install,
    install_test_kit,
    roles,
    schema_version,
    script,
)
from pgwf_sql._queries import UnknownQueryError, query

__all__ = [
    "SCHEMA_VERSION",
    "SchemaVersionError",
    "UnknownQueryError",
    "install",
    "install_test_kit",
    "query",
    "roles",
    "schema_version",
    "script",
]
