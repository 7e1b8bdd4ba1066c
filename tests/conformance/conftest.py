"""The test kit's environment: real PostgreSQL, a clock that jumps, each run replayed at each commit."""

from tests.sdk.testing.conftest import env, environment

__all__ = ["env", "environment"]
