"""The pytest plugin: fixture `pgwf_env`, and where its database is. Found by pytest through its entry point.

Everything else is imported by the first test that asks for an environment, so other tests pay nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk.testing import Environment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line, and settings of the same names in the configuration file."""
    group = parser.getgroup("pgwf", "durable workflows")
    group.addoption(
        "--pgwf-server",
        metavar="DSN",
        help="PostgreSQL whose account may create databases (default: pgwf_server, else an embedded server)",
    )
    group.addoption(
        "--pgwf-no-replay",
        action="store_true",
        help="do not replay each run from its journal after every commit",
    )
    parser.addini("pgwf_server", "PostgreSQL whose account may create databases (default: an embedded server)")


@pytest.fixture(scope="session")
def pgwf_environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The environment that the session's tests use one after the other; `pgwf_env` is it, reset for each test."""
    from pgwf_sdk.testing import Environment

    config = request.config
    server: str | None = config.getoption("--pgwf-server") or config.getini("pgwf_server") or None
    with Environment(server, replay=not config.getoption("--pgwf-no-replay")) as environment:
        yield environment


@pytest.fixture
def pgwf_env(pgwf_environment: Environment) -> Iterator[Environment]:
    """An environment without runs and mocks, whose clock shows the present until the test moves it."""
    pgwf_environment.reset()
    yield pgwf_environment
    pgwf_environment.check()
    pgwf_environment.retire_mocks()
