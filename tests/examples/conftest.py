"""`pgwf_env`, the fixture of the pytest plugin, on the suite's own server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgwf_sdk.testing import Environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgwf_sdk.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def pgwf_environment(server: EmbeddedServer) -> Iterator[Environment]:
    with Environment(server.dsn) as environment:
        yield environment
