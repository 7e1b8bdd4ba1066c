"""Tests of workflows: a real PostgreSQL, a clock that jumps, and a worker inside the test that can be cut off anywhere.

    def test_checkout(pgwf_env):
        pgwf_env.mock(charge, returns=Receipt("17"))
        assert pgwf_env.run(checkout(order)) == Receipt("17")

`pgwf_env` is a fixture of the pytest plugin that comes with pgwf; without pytest, make an `Environment`.
"""

from pgwf_sdk.testing._crashes import CrashReport, Cut
from pgwf_sdk.testing._differences import CrashDifferenceError, ReplayDifferenceError, RunStuckError
from pgwf_sdk.testing._environment import Environment
from pgwf_sdk.testing._mocks import MockCall, StepMock, UnusedMockWarning
from pgwf_sdk.testing._recording import Recording

__all__ = [
    "CrashDifferenceError",
    "CrashReport",
    "Cut",
    "Environment",
    "MockCall",
    "Recording",
    "ReplayDifferenceError",
    "RunStuckError",
    "StepMock",
    "UnusedMockWarning",
]
