"""Named statements that the clients issue, one file each in queries/."""

from functools import lru_cache
from importlib.resources import files

QUERIES_CACHED_MAX = 1024


class UnknownQueryError(KeyError):
    """No statement has that name: a spelling mistake in the caller, or a file missing from the package."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"query {self.name!r}: pgwf_sql has no queries/{self.name}.sql; a query is named by its file, less .sql"


@lru_cache(maxsize=QUERIES_CACHED_MAX)
def query(name: str) -> str:
    """The text of the statement `name`, with `%(parameter)s` placeholders. UnknownQueryError if there is none.

    Those that begin with `testing_` are the test kit's, for databases of its own.
    """
    folder = files("pgwf_sql") / ("testing/queries" if name.startswith("testing_") else "queries")
    file = folder / f"{name}.sql"
    if not name.replace("_", "").isalnum() or not file.is_file():
        raise UnknownQueryError(name)
    return file.read_text(encoding="utf-8").strip()
