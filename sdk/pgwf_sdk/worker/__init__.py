"""Workers: processes that take runs and execute them."""

from pgwf_sdk.worker._health import Health
from pgwf_sdk.worker._settings import JournalLimits
from pgwf_sdk.worker._worker import Worker

__all__ = ["Health", "JournalLimits", "Worker"]
