"""An environment on the suite's own server, reset for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgwf_sdk.testing import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def environment(server: EmbeddedServer) -> Iterator[Environment]:
    with Environment(server.dsn) as environment:
        yield environment


@pytest.fixture
def env(environment: Environment) -> Iterator[Environment]:
    environment.reset()
    yield environment
    environment.check()
    environment.retire_mocks()
